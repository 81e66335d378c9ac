//! Rejections as responses of axum: a handler may return `Result<_, Limited>`.

use crate::{Limited, RejectionResponse};
use axum_core::response::{IntoResponse, Response};

/// Converts the response.
impl IntoResponse for RejectionResponse {
    fn into_response(self) -> Response {
        self.into()
    }
}

/// The default response; see [`RejectionResponse`].
impl IntoResponse for Limited {
    fn into_response(self) -> Response {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::integrations::fixtures;

    #[test]
    fn limited_converts_to_axum_response() {
        let result: Result<&str, Limited> = Err(fixtures::rate_limited());
        let response = result.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "3");
        assert_eq!(RejectionResponse::redirect("/wait").into_response().headers()["location"], "/wait");
    }
}
