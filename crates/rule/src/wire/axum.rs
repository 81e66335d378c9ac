//! Refusals and answers as responses of axum: a handler may return `Result<_, Limited>`.

use crate::{Answer, Limited};
use axum_core::response::{IntoResponse, Response};

/// The answer as it stands.
impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        self.into()
    }
}

/// The default answer; see [`Answer`].
impl IntoResponse for Limited {
    fn into_response(self) -> Response {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cast;

    #[test]
    fn a_handler_may_return_it() {
        let refused: Result<&str, Limited> = Err(cast::over_the_limit());
        let response = refused.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "3");
        assert_eq!(Answer::redirect("/wait").into_response().headers()["location"], "/wait");
    }
}
