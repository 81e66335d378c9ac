//! What nginx, Apache, Envoy and writers of JSON call the fields of a log.

use super::{field::Field, time::TimeForm};

/// Notes the name of a header, and gives its place.
pub(super) type Place<'a> = dyn FnMut(&str) -> Option<usize> + 'a;

pub(super) const COMBINED: &str = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#;
/// What nginx is packaged with.
pub(super) const MAIN: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_forwarded_for""#;
pub(super) const VHOST: &str = r#"%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
pub(super) const COMMON: &str = r#"%h %l %u %t "%r" %>s %b"#;
pub(super) const ENVOY: &str = r#"[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%""#;

const SECOND: u64 = 1_000_000;
const MILLI: u64 = 1_000;

/// What nginx's `$name` says.
pub(super) fn nginx(name: &str, place: &mut Place<'_>) -> Field {
    match name {
        "remote_addr" | "realip_remote_addr" | "binary_remote_addr" => Field::Ip,
        "remote_user" => Field::User,
        "time_local" => Field::Answered(TimeForm::Common),
        "time_iso8601" => Field::Answered(TimeForm::Iso),
        "msec" => Field::Answered(TimeForm::Seconds),
        "request" => Field::Request,
        "request_method" => Field::Method,
        "request_uri" | "uri" | "document_uri" => Field::Target,
        "args" | "query_string" => Field::Query,
        "host" | "http_host" | "server_name" => Field::Host,
        "status" => Field::Status,
        "body_bytes_sent" | "bytes_sent" | "request_length" => Field::Number,
        "request_time" => Field::Took(SECOND),
        "http_x_forwarded_for" => forwarded(place),
        other => match other.strip_prefix("http_") {
            Some(header) => self::header(&header.replace('_', "-"), place),
            None => Field::Other,
        },
    }
}

/// What Apache's `%x` or `%{argument}x` says. The text in front of it may be `>` or `<`.
pub(super) fn apache(letter: &str, argument: Option<&str>, place: &mut Place<'_>) -> Field {
    match (letter, argument) {
        ("h" | "a", _) => Field::Ip,
        ("u", _) => Field::User,
        ("t", None) => Field::Time(TimeForm::Common),
        ("t", Some("sec")) => Field::Time(TimeForm::Seconds),
        ("t", Some("msec")) => Field::Time(TimeForm::Millis),
        ("t", Some(_)) => Field::Time(TimeForm::Any),
        ("r", _) => Field::Request,
        ("m", _) => Field::Method,
        ("U", _) => Field::Target,
        ("q", _) => Field::Query,
        ("v" | "V", _) => Field::Host,
        ("s", _) => Field::Status,
        ("b" | "B" | "O" | "I", _) => Field::Number,
        ("D", _) | ("T", Some("us")) => Field::Took(1),
        ("T", None | Some("s")) => Field::Took(SECOND),
        ("T", Some("ms")) => Field::Took(MILLI),
        ("i", Some(name)) => named_header(name, place),
        _ => Field::Other,
    }
}

/// What Envoy's `%NAME(argument)%` says.
pub(super) fn envoy(name: &str, argument: Option<&str>, place: &mut Place<'_>) -> Field {
    match (name, argument) {
        ("START_TIME", _) => Field::Time(TimeForm::Any),
        ("REQ", Some(":METHOD")) => Field::Method,
        ("REQ", Some(path)) if path.ends_with(":PATH") => Field::Target,
        ("REQ", Some(":AUTHORITY")) => Field::Host,
        ("REQ", Some(name)) => named_header(name, place),
        ("RESPONSE_CODE", _) => Field::Status,
        ("DURATION", _) => Field::Took(MILLI),
        ("BYTES_RECEIVED" | "BYTES_SENT", _) => Field::Number,
        (
            "DOWNSTREAM_REMOTE_ADDRESS"
            | "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
            | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS"
            | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
            _,
        ) => Field::Ip,
        _ => Field::Other,
    }
}

/// What members of JSON are called that nobody has named: those of Envoy, of nginx's usual recipes, of this gateway.
pub(super) const JSON: &[(&str, &str)] = &[
    ("time", "time"),
    ("timestamp", "time"),
    ("@timestamp", "time"),
    ("ts", "time"),
    ("start_time", "time"),
    ("time_iso8601", "answered"),
    ("time_local", "answered"),
    ("msec", "answered"),
    ("ip", "ip"),
    ("client", "ip"),
    ("client_ip", "ip"),
    ("clientip", "ip"),
    ("remote_addr", "ip"),
    ("remote_ip", "ip"),
    ("downstream_remote_address", "ip"),
    ("method", "method"),
    ("request_method", "method"),
    ("request", "request"),
    ("path", "path"),
    ("uri", "path"),
    ("request_uri", "path"),
    ("url", "path"),
    ("query", "query"),
    ("args", "query"),
    ("query_string", "query"),
    ("host", "host"),
    ("http_host", "host"),
    ("authority", "host"),
    ("status", "status"),
    ("response_code", "status"),
    ("user", "user"),
    ("remote_user", "user"),
    ("request_time", "seconds"),
    ("duration", "milliseconds"),
    ("duration_ms", "milliseconds"),
    ("took_us", "microseconds"),
    ("x_forwarded_for", "header x-forwarded-for"),
    ("http_x_forwarded_for", "header x-forwarded-for"),
    ("user_agent", "header user-agent"),
    ("http_user_agent", "header user-agent"),
    ("agent", "header user-agent"),
    ("referer", "header referer"),
    ("http_referer", "header referer"),
];

/// The names that a person gives fields of JSON.
pub(super) const NAMES: &str = "time, answered, ip, method, path, query, request, host, status, user, seconds, milliseconds, microseconds, `header NAME`";

/// What a person calls a field.
pub(super) fn named(name: &str, place: &mut Place<'_>) -> Option<Field> {
    Some(match name {
        "time" => Field::Time(TimeForm::Any),
        "answered" => Field::Answered(TimeForm::Any),
        "ip" => Field::Ip,
        "method" => Field::Method,
        "path" => Field::Target,
        "query" => Field::Query,
        "request" => Field::Request,
        "host" => Field::Host,
        "status" => Field::Status,
        "user" => Field::User,
        "seconds" => Field::Took(SECOND),
        "milliseconds" => Field::Took(MILLI),
        "microseconds" => Field::Took(1),
        other => match other.strip_prefix("header ").map(str::trim) {
            Some(header) if !header.is_empty() => named_header(header, place),
            _ => return None,
        },
    })
}

fn named_header(name: &str, place: &mut Place<'_>) -> Field {
    match name.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => forwarded(place),
        "host" => Field::Host,
        name => header(name, place),
    }
}

fn header(name: &str, place: &mut Place<'_>) -> Field {
    place(name).map_or(Field::Other, Field::Header)
}

fn forwarded(place: &mut Place<'_>) -> Field {
    place("x-forwarded-for").map_or(Field::Other, Field::Forwarded)
}
