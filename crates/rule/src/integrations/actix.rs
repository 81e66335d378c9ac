//! Rejections as responses of actix-web: a handler may return `Result<_, Limited>`.

use crate::{Limited, RejectionResponse};
use actix_web::{
    HttpRequest, HttpResponse, Responder, ResponseError,
    body::BoxBody,
    http::{
        StatusCode,
        header::{HeaderName, HeaderValue},
    },
};

/// Converts the response. Headers that HTTP does not allow are left out.
impl From<RejectionResponse> for HttpResponse {
    fn from(rejection: RejectionResponse) -> Self {
        let status = StatusCode::from_u16(rejection.final_status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        let mut response = Self::with_body(status, BoxBody::new(rejection.body));
        for (name, value) in rejection.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
                response.headers_mut().append(name, value);
            }
        }
        response
    }
}

/// Converts the response.
impl Responder for RejectionResponse {
    type Body = BoxBody;

    fn respond_to(self, _request: &HttpRequest) -> HttpResponse {
        self.into()
    }
}

/// The default response; see [`RejectionResponse`].
impl ResponseError for Limited {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(RejectionResponse::from(self).status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
    }

    fn error_response(&self) -> HttpResponse {
        RejectionResponse::from(self).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::integrations::fixtures;

    #[test]
    fn limited_converts_to_actix_response() {
        let error: actix_web::Error = fixtures::rate_limited().into();
        let response = error.error_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers().get("retry-after").unwrap(), "3");
        assert_eq!(response.headers().get("content-type").unwrap(), "application/problem+json");
        assert_eq!(fixtures::breaker_open().status_code(), 503);
        assert_eq!(fixtures::store_unavailable().status_code(), 503);

        let response = HttpResponse::from(RejectionResponse::new(0).header("x-note", "a\r\nb: c"));
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers().get("x-note").unwrap(), "ab: c");
    }
}
