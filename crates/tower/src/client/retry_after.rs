//! Parses the backoff from the headers of a response. Malformed headers are ignored.

use super::message::ClientResponse;
use http::{HeaderMap, StatusCode, header};
use std::time::{Duration, UNIX_EPOCH};
use tidegate_core::{
    Micros,
    header::{parse_items, parse_seconds},
};

/// Returns the backoff that a response requests, unless it is zero.
pub(crate) fn parse_backoff(answer: &(impl ClientResponse + ?Sized), now: Micros) -> Option<Micros> {
    parse_wait(answer, now).filter(|wait| *wait > Micros::ZERO)
}

/// Returns the wait that a response requests, which may be zero.
///
/// `Retry-After` applies to 429 and 503, in seconds or as a date. A date is relative to the `Date` of the response, so
/// clocks need not agree. An exhausted `RateLimit` applies to any status.
pub(crate) fn parse_wait(answer: &(impl ClientResponse + ?Sized), now: Micros) -> Option<Micros> {
    let headers = answer.headers();
    let is_rejection =
        matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let retry = if is_rejection { parse_retry_after(headers, now) } else { None };
    retry.max(exhausted_quota_wait(headers))
}

fn parse_retry_after(headers: &HeaderMap, now: Micros) -> Option<Micros> {
    let value = headers.get(header::RETRY_AFTER)?;
    if let Some(seconds) = parse_seconds(value.as_bytes()) {
        return Some(seconds_to_micros(seconds));
    }
    let date = |text: &str| httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok();
    let sent = headers.get(header::DATE).and_then(|sent| date(sent.to_str().ok()?));
    let now = sent.map_or(now, Micros::from);
    Some(Micros::from(date(value.to_str().ok()?)?).saturating_sub(now))
}

/// Returns the longest wait of all exhausted quotas.
fn exhausted_quota_wait(headers: &HeaderMap) -> Option<Micros> {
    let lines = headers.get_all("ratelimit").iter();
    let quotas = lines.flat_map(|line| parse_items(line.as_bytes())).map(|(_, left)| left);
    quotas
        .filter(|left| left.remaining == 0)
        .filter_map(|left| left.refill_after)
        .max()
        .map(seconds_to_micros)
}

fn seconds_to_micros(seconds: u64) -> Micros {
    Duration::from_secs(seconds).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const DATE_PLUS_TEN: &str = "Sun, 06 Nov 1994 08:49:47 GMT";

    type Headers<'a> = &'a [(&'a str, &'a str)];

    fn backoff(status: u16, headers: Headers<'_>) -> Option<Micros> {
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        parse_backoff(&answer.body(()).unwrap(), Micros::from_secs(784_111_777 + 4))
    }

    #[test]
    fn valid_headers_set_backoff() {
        let cases: &[(u16, Headers<'_>, u64)] = &[
            (429, &[("retry-after", "30")], 30),
            (503, &[("retry-after", " 30 ")], 30),
            (429, &[("retry-after", DATE_PLUS_TEN)], 6),
            (429, &[("retry-after", DATE_PLUS_TEN), ("date", DATE)], 10),
            (429, &[("retry-after", DATE_PLUS_TEN), ("date", "yesterday")], 6),
            (200, &[("ratelimit", r#""default";r=0;t=7"#)], 7),
            (404, &[("ratelimit", r#""a";r=0;t=7, "b";r=0;t=9;pk=:AA==:, "c";r=1;t=99"#)], 9),
            (200, &[("ratelimit", r#""a";r=1;t=7"#), ("ratelimit", r#""b"; r=0; t=3"#)], 3),
            (200, &[("ratelimit", r#""odd, \";r=0;t=50";r=0;t=2"#)], 2),
            (429, &[("retry-after", "1"), ("ratelimit", r#""a";r=0;t=5"#)], 5),
        ];
        for (status, headers, seconds) in cases {
            assert_eq!(backoff(*status, headers), Some(Micros::from_secs(*seconds)), "{status} {headers:?}");
        }
    }

    #[test]
    fn invalid_headers_are_ignored() {
        let nothing: &[(u16, Headers<'_>)] = &[
            (200, &[("retry-after", "30")]),
            (301, &[("retry-after", "30")]),
            (429, &[]),
            (429, &[("retry-after", "0")]),
            (429, &[("retry-after", "-5")]),
            (429, &[("retry-after", "1.5")]),
            (429, &[("retry-after", "soon")]),
            (429, &[("retry-after", "")]),
            (429, &[("retry-after", "\u{fc}")]),
            (429, &[("retry-after", DATE)]),
            (200, &[("ratelimit", r#""default";r=0"#)]),
            (200, &[("ratelimit", r#""default";t=7"#)]),
            (200, &[("ratelimit", r#""default";r=0;t=-7"#)]),
            (200, &[("ratelimit", r#""r=0;t=7"#)]),
            (200, &[("ratelimit", "r=0,t=7")]),
            (200, &[("ratelimit", "")]),
        ];
        for (status, headers) in nothing {
            assert_eq!(backoff(*status, headers), None, "{status} {headers:?}");
        }
    }

    #[test]
    fn overlong_retry_after_saturates() {
        let endless = "9".repeat(400);
        assert!(backoff(429, &[("retry-after", &endless)]) > Some(Micros::from_secs(1 << 32)));
    }
}
