//! The names of log fields in nginx, Apache, Envoy and JSON logs.

use super::{field::LogField, time::TimeFormat};

/// Registers the name of a header, and returns its index.
pub(super) type HeaderIndex<'a> = dyn FnMut(&str) -> Option<usize> + 'a;

pub(super) const COMBINED_FORMAT: &str = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#;
/// The `main` format of the nginx packages.
pub(super) const MAIN_FORMAT: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_forwarded_for""#;
pub(super) const VHOST_FORMAT: &str = r#"%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
pub(super) const COMMON_FORMAT: &str = r#"%h %l %u %t "%r" %>s %b"#;
pub(super) const ENVOY_FORMAT: &str = r#"[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%""#;

const MICROS_PER_SECOND: u64 = 1_000_000;
const MICROS_PER_MILLI: u64 = 1_000;

/// Returns the field of nginx's `$name`.
pub(super) fn nginx_field(name: &str, place: &mut HeaderIndex<'_>) -> LogField {
    match name {
        "remote_addr" | "realip_remote_addr" | "binary_remote_addr" => LogField::Ip,
        "remote_user" => LogField::User,
        "time_local" => LogField::CompletionTime(TimeFormat::Common),
        "time_iso8601" => LogField::CompletionTime(TimeFormat::Iso),
        "msec" => LogField::CompletionTime(TimeFormat::Seconds),
        "request" => LogField::Request,
        "request_method" => LogField::Method,
        "request_uri" | "uri" | "document_uri" => LogField::Target,
        "args" | "query_string" => LogField::Query,
        "host" | "http_host" | "server_name" => LogField::Host,
        "status" => LogField::Status,
        "body_bytes_sent" | "bytes_sent" | "request_length" => LogField::Number,
        "request_time" => LogField::Duration(MICROS_PER_SECOND),
        "http_x_forwarded_for" => forwarded_for_field(place),
        other => match other.strip_prefix("http_") {
            Some(header) => self::plain_header_field(&header.replace('_', "-"), place),
            None => LogField::Other,
        },
    }
}

/// Returns the field of Apache's `%x` or `%{argument}x`. The letter may have a `>` or `<` in front.
pub(super) fn apache_field(letter: &str, argument: Option<&str>, place: &mut HeaderIndex<'_>) -> LogField {
    match (letter, argument) {
        ("h" | "a", _) => LogField::Ip,
        ("u", _) => LogField::User,
        ("t", None) => LogField::Time(TimeFormat::Common),
        ("t", Some("sec")) => LogField::Time(TimeFormat::Seconds),
        ("t", Some("msec")) => LogField::Time(TimeFormat::Millis),
        ("t", Some(_)) => LogField::Time(TimeFormat::Any),
        ("r", _) => LogField::Request,
        ("m", _) => LogField::Method,
        ("U", _) => LogField::Target,
        ("q", _) => LogField::Query,
        ("v" | "V", _) => LogField::Host,
        ("s", _) => LogField::Status,
        ("b" | "B" | "O" | "I", _) => LogField::Number,
        ("D", _) | ("T", Some("us")) => LogField::Duration(1),
        ("T", None | Some("s")) => LogField::Duration(MICROS_PER_SECOND),
        ("T", Some("ms")) => LogField::Duration(MICROS_PER_MILLI),
        ("i", Some(name)) => header_field(name, place),
        _ => LogField::Other,
    }
}

/// Returns the field of Envoy's `%NAME(argument)%`.
pub(super) fn envoy_field(name: &str, argument: Option<&str>, place: &mut HeaderIndex<'_>) -> LogField {
    match (name, argument) {
        ("START_TIME", _) => LogField::Time(TimeFormat::Any),
        ("REQ", Some(":METHOD")) => LogField::Method,
        ("REQ", Some(path)) if path.ends_with(":PATH") => LogField::Target,
        ("REQ", Some(":AUTHORITY")) => LogField::Host,
        ("REQ", Some(name)) => header_field(name, place),
        ("RESPONSE_CODE", _) => LogField::Status,
        ("DURATION", _) => LogField::Duration(MICROS_PER_MILLI),
        ("BYTES_RECEIVED" | "BYTES_SENT", _) => LogField::Number,
        (
            "DOWNSTREAM_REMOTE_ADDRESS"
            | "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
            | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS"
            | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
            _,
        ) => LogField::Ip,
        _ => LogField::Other,
    }
}

/// The default names of JSON members: those of Envoy, of common nginx configurations, and of this gateway.
pub(super) const JSON_FIELDS: &[(&str, &str)] = &[
    ("time", "time"),
    ("timestamp", "time"),
    ("@timestamp", "time"),
    ("ts", "time"),
    ("start_time", "time"),
    ("time_iso8601", "completed"),
    ("time_local", "completed"),
    ("msec", "completed"),
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
    ("duration_us", "microseconds"),
    ("x_forwarded_for", "header x-forwarded-for"),
    ("http_x_forwarded_for", "header x-forwarded-for"),
    ("user_agent", "header user-agent"),
    ("http_user_agent", "header user-agent"),
    ("referer", "header referer"),
    ("http_referer", "header referer"),
];

/// The field names of `--field`.
pub(super) const FIELD_NAMES: &str = "time, completed, ip, method, path, query, request, host, status, user, seconds, milliseconds, microseconds, `header NAME`";

/// Returns the field of a name in `--field`.
pub(super) fn field_by_name(name: &str, place: &mut HeaderIndex<'_>) -> Option<LogField> {
    Some(match name {
        "time" => LogField::Time(TimeFormat::Any),
        "completed" => LogField::CompletionTime(TimeFormat::Any),
        "ip" => LogField::Ip,
        "method" => LogField::Method,
        "path" => LogField::Target,
        "query" => LogField::Query,
        "request" => LogField::Request,
        "host" => LogField::Host,
        "status" => LogField::Status,
        "user" => LogField::User,
        "seconds" => LogField::Duration(MICROS_PER_SECOND),
        "milliseconds" => LogField::Duration(MICROS_PER_MILLI),
        "microseconds" => LogField::Duration(1),
        other => match other.strip_prefix("header ").map(str::trim) {
            Some(header) if !header.is_empty() => header_field(header, place),
            _ => return None,
        },
    })
}

fn header_field(name: &str, place: &mut HeaderIndex<'_>) -> LogField {
    match name.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => forwarded_for_field(place),
        "host" => LogField::Host,
        name => plain_header_field(name, place),
    }
}

fn plain_header_field(name: &str, place: &mut HeaderIndex<'_>) -> LogField {
    place(name).map_or(LogField::Other, LogField::Header)
}

fn forwarded_for_field(place: &mut HeaderIndex<'_>) -> LogField {
    place("x-forwarded-for").map_or(LogField::Other, LogField::ForwardedFor)
}
