//! Refusals and answers as responses of actix-web: a handler may return `Result<_, Limited>`.

use crate::{Answer, Limited};
use actix_web::{
    HttpRequest, HttpResponse, Responder, ResponseError,
    body::BoxBody,
    http::{
        StatusCode,
        header::{HeaderName, HeaderValue},
    },
};

/// The answer as it stands. A header that HTTP does not allow is left out.
impl From<Answer> for HttpResponse {
    fn from(answer: Answer) -> Self {
        let status = StatusCode::from_u16(answer.final_status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        let mut response = Self::with_body(status, BoxBody::new(answer.body));
        for (name, value) in answer.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
                response.headers_mut().append(name, value);
            }
        }
        response
    }
}

/// The answer as it stands.
impl Responder for Answer {
    type Body = BoxBody;

    fn respond_to(self, _request: &HttpRequest) -> HttpResponse {
        self.into()
    }
}

/// The default answer; see [`Answer`].
impl ResponseError for Limited {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(Answer::from(self).status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
    }

    fn error_response(&self) -> HttpResponse {
        Answer::from(self).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cast;

    #[test]
    fn a_handler_may_return_it() {
        let refused: actix_web::Error = cast::over_the_limit().into();
        let response = refused.error_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers().get("retry-after").unwrap(), "3");
        assert_eq!(response.headers().get("content-type").unwrap(), "application/problem+json");
        assert_eq!(cast::broken().status_code(), 503);
        assert_eq!(cast::closed().status_code(), 503);

        let answer = HttpResponse::from(Answer::new(0).header("x-note", "a\r\nb: c"));
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers().get("x-note").unwrap(), "ab: c");
    }
}
