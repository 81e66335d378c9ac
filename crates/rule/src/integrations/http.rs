//! Rejections as responses of the crate `http`: for hyper, tower and other users of it.

use crate::{Limited, RejectionResponse};
use ::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use std::borrow::Cow;

/// Converts the response. Headers that HTTP does not allow are left out.
impl<B: From<String>> From<RejectionResponse> for Response<B> {
    fn from(rejection: RejectionResponse) -> Self {
        let status = rejection.final_status();
        let mut response = Self::new(rejection.body.into());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        for (name, value) in rejection.headers {
            let value = match value {
                Cow::Borrowed(value) => HeaderValue::from_maybe_shared(Bytes::from_static(value.as_bytes())),
                Cow::Owned(value) => HeaderValue::from_maybe_shared(Bytes::from(value)),
            };
            if let (Some(name), Ok(value)) = (header_name(&name), value) {
                response.headers_mut().append(name, value);
            }
        }
        response
    }
}

/// The usual headers of rejections are constants that need no parsing.
fn header_name(name: &str) -> Option<HeaderName> {
    match name {
        "retry-after" => Some(header::RETRY_AFTER),
        "content-type" => Some(header::CONTENT_TYPE),
        _ => HeaderName::from_bytes(name.as_bytes()).ok(),
    }
}

/// The default response; see [`RejectionResponse`].
impl<B: From<String>> From<Limited> for Response<B> {
    fn from(limited: Limited) -> Self {
        RejectionResponse::from(limited).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::integrations::fixtures;

    fn header<'a>(response: &'a Response<String>, name: &str) -> Option<&'a str> {
        response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    #[test]
    fn unavailable_store_is_503_without_quota_headers() {
        let response: Response<String> = fixtures::store_unavailable().into();
        assert_eq!(response.status(), 503);
        assert_eq!(header(&response, "retry-after"), Some("1"));
        assert_eq!(header(&response, "ratelimit"), None);
        assert!(!response.body().contains("login"), "{}", response.body());
    }

    #[test]
    fn time_limit_is_504() {
        let response: Response<String> = fixtures::time_limit_exceeded().into();
        assert_eq!(response.status(), 504);
        assert!(response.body().contains("The call took too long."), "{}", response.body());
    }

    #[test]
    fn limit_is_429_and_breaker_is_503() {
        let response: Response<String> = fixtures::rate_limited().into();
        assert_eq!(response.status(), 429);
        assert_eq!(header(&response, "retry-after"), Some("3"));
        assert_eq!(header(&response, "ratelimit"), Some(r#""login";r=0;t=3"#));
        assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
        assert!(response.body().contains(r#""detail":"Slow down, \"friend\".""#));

        let response: Response<String> = fixtures::breaker_open().into();
        assert_eq!(response.status(), 503);
        assert_eq!(header(&response, "retry-after"), Some("4"));
        assert_eq!(header(&response, "ratelimit"), None);
    }

    #[test]
    fn invalid_headers_are_dropped() {
        let mut rejection = RejectionResponse::new(99).header("x-note", "é").text("wait");
        rejection.headers.push(("x bad".into(), "a".into()));
        rejection.headers.push(("x-bad".into(), "a\r\nset-cookie: b".into()));
        let response: Response<String> = rejection.into();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers().len(), 2);
        assert_eq!(response.headers()["x-note"].as_bytes(), "é".as_bytes());
        assert_eq!(response.body(), "wait");
    }
}
