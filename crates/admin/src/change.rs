//! `/reload` and `/api/v1/reset`.

use super::{AdminState, events, read::text_response};
use crate::GatewayError;
use axum::{body::Body, response::Response};
use http::StatusCode;
use tidegate_http_server::{ApiError, Operator};
use tidegate_service::decisions::{QueryBatch, RESET, reset};

impl AdminState {
    /// Reloads the policy; responds with the scope of the change, or with all errors.
    pub(super) async fn reload(&self, operator: &Operator) -> Response {
        events::ReloadRequested { author: &operator.name }.emit();
        let (status, text) = match self.gateway.reload().await {
            Ok(reloaded) => (StatusCode::OK, format!("{reloaded}\n")),
            Err(error @ GatewayError::Stopped) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
            Err(error) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")),
        };
        let mut response = text_response(text, "text/plain; charset=utf-8");
        *response.status_mut() = status;
        response
    }

    /// Resets the counters of a key.
    pub(super) async fn reset(&self, operator: &Operator, body: &[u8]) -> Result<Response, ApiError> {
        let batch = QueryBatch::parse(body, &RESET)?;
        batch.items().iter().try_for_each(|members| self.reject_hashed_key(members))?;
        Ok(reset(&self.decision_state, batch, operator).await?.map(Body::new))
    }
}
