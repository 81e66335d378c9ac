//! The built-in formats, and the names of log fields in nginx, Apache, Envoy and JSON logs.

use super::{
    field::{DurationUnit, LogField},
    text::FormatToken,
    time::TimeFormat,
};

/// Registers the name of a header, and returns its index.
pub(super) type HeaderIndex<'a> = dyn FnMut(&str) -> Option<usize> + 'a;

pub(super) const COMBINED_FORMAT: &str = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#;
/// The `main` format of the nginx packages.
pub(super) const MAIN_FORMAT: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_forwarded_for""#;
pub(super) const VHOST_FORMAT: &str = r#"%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
pub(super) const COMMON_FORMAT: &str = r#"%h %l %u %t "%r" %>s %b"#;
/// The access log of Traefik: the combined format, a counter, the router, the server, and the duration.
pub(super) const TRAEFIK_FORMAT: &str =
    r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i" %k "%{RouterName}e" "%{ServiceURL}e" %{ms}Tms"#;
pub(super) const ENVOY_FORMAT: &str = r#"[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%""#;

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
        "request_time" => LogField::Duration(DurationUnit::Seconds),
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
        ("D", _) | ("T", Some("us")) => LogField::Duration(DurationUnit::Micros),
        ("T", None | Some("s")) => LogField::Duration(DurationUnit::Seconds),
        ("T", Some("ms")) => LogField::Duration(DurationUnit::Millis),
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
        ("DURATION", _) => LogField::Duration(DurationUnit::Millis),
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

/// The members of Caddy's access log. `ts` is the time at which the line was written.
pub(super) const CADDY_FIELDS: &[(&str, &str)] = &[
    ("ts", "completed"),
    ("duration", "seconds"),
    ("status", "status"),
    ("user_id", "user"),
    ("request.remote_addr", "ip"),
    ("request.remote_ip", "ip"),
    ("request.client_ip", "ip"),
    ("request.method", "method"),
    ("request.host", "host"),
    ("request.uri", "path"),
];

/// The members of Traefik's access log in JSON. `time` is the time at which the line was written.
pub(super) const TRAEFIK_FIELDS: &[(&str, &str)] = &[
    ("StartUTC", "time"),
    ("StartLocal", "time"),
    ("time", "completed"),
    ("Duration", "nanoseconds"),
    ("DownstreamStatus", "status"),
    ("ClientUsername", "user"),
    ("ClientHost", "ip"),
    ("RequestMethod", "method"),
    ("RequestHost", "host"),
    ("RequestPath", "path"),
];

/// The fields of an Application Load Balancer's access log, with the text after each. The time of the response is used if
/// the time of the request is missing.
pub(super) fn alb_tokens(place: &mut HeaderIndex<'_>) -> Vec<FormatToken> {
    let seconds = LogField::PartialDuration(DurationUnit::Seconds);
    let fields = [
        ("type", LogField::Other, " "),
        ("time", LogField::CompletionTime(TimeFormat::Iso), " "),
        ("elb", LogField::Other, " "),
        ("client:port", LogField::IpAndPort, " "),
        ("target:port", LogField::Other, " "),
        ("request_processing_time", seconds, " "),
        ("target_processing_time", seconds, " "),
        ("response_processing_time", seconds, " "),
        ("elb_status_code", LogField::Status, " "),
        ("target_status_code", LogField::Other, " "),
        ("received_bytes", LogField::Number, " "),
        ("sent_bytes", LogField::Number, " \""),
        ("request", LogField::Request, "\" \""),
        ("user_agent", plain_header_field("user-agent", place), "\" "),
        ("ssl_cipher", LogField::Other, " "),
        ("ssl_protocol", LogField::Other, " "),
        ("target_group_arn", LogField::Other, " \""),
        ("trace_id", LogField::Other, "\" \""),
        ("domain_name", LogField::Other, "\" \""),
        ("chosen_cert_arn", LogField::Other, "\" "),
        ("matched_rule_priority", LogField::Other, " "),
        ("request_creation_time", LogField::Time(TimeFormat::Iso), " "),
    ];
    let token = |(name, field, text): (&str, LogField, &str)| {
        [FormatToken::Field(field, name.to_owned()), FormatToken::Text(text.as_bytes().to_vec())]
    };
    fields.into_iter().flat_map(token).collect()
}

/// The number of fields of an Application Load Balancer's access log that every line has.
pub(super) const ALB_REQUIRED_FIELDS: usize = 14;

/// The fields of CloudFront's standard logs, in the order of files without a `#Fields` line.
pub(super) const CLOUDFRONT_COLUMNS: &str = "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken x-forwarded-for";

/// Returns the field of a column of CloudFront's standard logs, other than `date` and `time`.
pub(super) fn cloudfront_field(name: &str, place: &mut HeaderIndex<'_>) -> LogField {
    match name {
        "c-ip" => LogField::Ip,
        "cs-method" => LogField::Method,
        "cs(Host)" | "x-host-header" => LogField::Host,
        "cs-uri-stem" => LogField::Target,
        "cs-uri-query" => LogField::Query,
        "sc-status" => LogField::Status,
        "time-taken" => LogField::Duration(DurationUnit::Seconds),
        "x-forwarded-for" => forwarded_for_field(place),
        name => match name.strip_prefix("cs(").and_then(|name| name.strip_suffix(')')) {
            Some(header) => header_field(header, place),
            None => LogField::Other,
        },
    }
}

/// The field names of `--field`.
pub(super) const FIELD_NAMES: &str = "time, completed, ip, method, path, query, request, host, status, user, seconds, milliseconds, microseconds, nanoseconds, `header NAME`";

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
        "seconds" => LogField::Duration(DurationUnit::Seconds),
        "milliseconds" => LogField::Duration(DurationUnit::Millis),
        "microseconds" => LogField::Duration(DurationUnit::Micros),
        "nanoseconds" => LogField::Duration(DurationUnit::Nanos),
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
