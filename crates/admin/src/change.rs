//! What operators change: the policy, and what was counted.

use super::{AdminState, read::text_response};
use crate::GatewayError;
use axum::{body::Body, response::Response};
use http::StatusCode;
use tidegate_http_server::ApiError;
use tidegate_service::decisions::{QueryBatch, RESET, reset};

impl AdminState {
    /// Reads the policy again: what has changed, or all that is wrong.
    pub(super) async fn reload(&self) -> Response {
        let (status, told) = match self.gateway.reload().await {
            Ok(reloaded) => (StatusCode::OK, format!("{reloaded}\n")),
            Err(error @ GatewayError::Stopped) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
            Err(error) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")),
        };
        let mut response = text_response(told, "text/plain; charset=utf-8");
        *response.status_mut() = status;
        response
    }

    /// Forgets what was counted for a key.
    pub(super) async fn reset(&self, body: &[u8]) -> Result<Response, ApiError> {
        let asked = QueryBatch::parse(body, &RESET)?;
        asked.items().iter().try_for_each(|members| self.reject_hashed_key(members))?;
        Ok(reset(&self.decision_state, asked).await?.map(Body::new))
    }
}
