//! The logs of servers, load balancers and containers. The lines follow the documentation of each program.

use crate::support::builtin_formats;
use std::fmt::Write as _;
use tidegate_replay::log::{LineFormats, LogInput, LogStats, RequestLog};
use tidegate_rule::request::RequestHead as _;

/// Opens a log in a given format, or in any.
fn open(log: &[u8], format: Option<&str>) -> RequestLog {
    let formats = format.map_or_else(builtin_formats, |name| LineFormats::single(name, &[]).unwrap());
    RequestLog::open(vec![LogInput::from_bytes("log", log)], formats, None).unwrap()
}

/// Reads all requests, one line each: time, address, method, path, query, host, user, status, duration, headers.
fn describe(log: &[u8], format: Option<&str>, headers: &[&str]) -> (Vec<String>, LogStats) {
    let mut log = open(log, format);
    let mut lines = Vec::new();
    while let Some((request, time)) = log.next_request().unwrap() {
        let peer = request.peer().map_or("-".to_owned(), |ip| ip.to_string());
        let text = |value: Option<&str>| value.unwrap_or("-").to_owned();
        let mut line = format!(
            "{} {peer} {} {} {} {} {} {} {}",
            time.get() / 1_000,
            request.method(),
            request.path(),
            text(request.query()),
            text(request.host()),
            text(request.user()),
            request.status(),
            request.duration().map_or("-".to_owned(), |took| took.get().to_string()),
        );
        for name in headers {
            request.for_each_header(name, &mut |value| {
                let _ = write!(line, " {name}={}", String::from_utf8_lossy(value));
            });
        }
        lines.push(line);
    }
    (lines, log.stats())
}

/// Checks that a log is read in the same way with the name of its format and without it.
fn check(log: &[u8], format: &str, headers: &[&str], expected: &[&str], invalid: u64) {
    for name in [Some(format), None] {
        let (lines, stats) = describe(log, name, headers);
        assert_eq!(lines, expected, "{name:?}");
        assert_eq!(stats.broken, invalid, "{:?}", stats.samples);
        assert!(stats.formats.iter().all(|(used, _)| used.starts_with(format)), "{:?}", stats.formats);
    }
}

/// The time is that of the request, or that of the response minus the duration. The default port is not a part of the host.
#[test]
fn alb_log_is_read() {
    let expected = [
        "1470866920945 192.0.2.9 GET /old - www.example.com - 200 2000000 user-agent=curl/7.46.0",
        "1530570168364 192.0.2.1 GET /a q=1 www.example.com - 200 1000 user-agent=curl/7.46.0",
        "1530570169364 2001:db8::1 GET /a\"b - www.example.com - 200 171000 user-agent=an \"agent\"",
        "1530570170364 192.0.2.1 GET /b - www.example.com - 502 - user-agent=curl/7.46.0",
    ];
    check(include_bytes!("../data/servers/alb.log"), "alb", &["user-agent"], &expected, 0);
}

/// Paths and queries are encoded once, headers once or twice. A `#Fields` line sets the columns of the lines after it.
#[test]
fn cloudfront_log_is_read() {
    let expected = [
        "1575493349999 192.0.2.100 GET /index.html - shop.example.com - 200 1001000 user-agent=Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36",
        "1575493351500 192.0.2.100 GET /a%20b\" q=%22v%22 d111111abcdef8.cloudfront.net - 200 500000 user-agent=Mozilla/5.0 (Windows NT) referer=https://example.com/x%20y x-forwarded-for=203.0.113.9, 198.51.100.2",
        "1575493353000 2001:db8::7 POST /short - - - 0 -",
    ];
    let headers = ["user-agent", "referer", "x-forwarded-for"];
    let log = include_bytes!("../data/servers/cloudfront.log");
    check(log, "cloudfront", &headers, &expected, 0);
    // Without a header, the columns are those of the documentation.
    let line = log.split_inclusive(|byte| *byte == b'\n').nth(2).unwrap();
    check(line, "cloudfront", &headers, &expected[..1], 0);
}

/// The values of captured headers have no names and are ignored. A timer of -1 is an unknown duration.
#[test]
fn haproxy_log_is_read() {
    let expected = [
        "1233922454655 192.0.2.1 GET /index.html - - - 200 109000",
        "1233922455663 192.0.2.1 GET /a\"b#é x=|y - - 200 30000",
        "1233922456000 2001:db8::5 POST /v1 - api.example.com - 503 0",
        "1233922458000 192.0.2.2 GET /truncated/pa - - - 0 -",
    ];
    check(include_bytes!("../data/servers/haproxy.log"), "haproxy", &[], &expected, 1);
}

/// All headers of the request are known, and none of the response.
#[test]
fn caddy_log_is_read() {
    let expected = [
        "1646861401024 192.0.2.1 GET /a q=\"x\" localhost alice 200 500000 x-api-key=k\"1\\ x-api-key=k2 user-agent=curl/7.82.0",
        "1646861401999 192.0.2.2 POST /b%20c - example.com:8080 - 201 65",
    ];
    let headers = ["x-api-key", "user-agent", "cookie"];
    check(include_bytes!("../data/servers/caddy.log"), "caddy", &headers, &expected, 1);
}

/// Traefik does not escape its text lines. Its JSON has the time of the request, or else that of the line.
#[test]
fn traefik_log_is_read() {
    let expected = [
        "1257894000000 192.0.2.1 GET /a q=1 - alice 200 123000000 user-agent=agent \\x22 1",
        "1257894001000 192.0.2.2 GET /foo - - - 0 0",
        "1257894002742 192.0.2.3 GET /p q=&\" example.com - 404 204055 user-agent=curl/8 x-api-key=k1",
        "1257894007000 192.0.2.4 GET /late - example.com - 200 2000000",
    ];
    check(
        include_bytes!("../data/servers/traefik.log"),
        "traefik",
        &["user-agent", "x-api-key"],
        &expected,
        0,
    );
}

/// The requests of nginx and Apache are the bytes that they received.
#[test]
fn nginx_and_apache_escapes_are_undone() {
    let request = "1706788800000 192.0.2.1 GET /a\"b\\cé%20d x=\"1\" - - 200 - user-agent=q\"uo\\te\tx";
    check(include_bytes!("../data/servers/nginx.log"), "combined", &["user-agent"], &[request], 0);
    let request = format!("{request}\n");
    check(include_bytes!("../data/servers/apache.log"), "combined", &["user-agent"], &[&request], 0);
    let json = br#"{"time":1706788800,"ip":"192.0.2.1","request":"GET /a\"b\\c\u00e9%20d?x=\x221\x22 HTTP/1.1","status":200,"user_agent":"q\"uo\\te\tx\n"}"#;
    check(json, "json", &["user-agent"], &[&request], 0);
}

/// Lines of Docker are unwrapped, and parts of lines are joined by stream. Line numbers are those of the file.
#[test]
fn docker_log_is_read() {
    let log = include_bytes!("../data/servers/docker.log");
    let (lines, stats) = describe(log, None, &[]);
    let expected = [
        "1706788800000 192.0.2.1 GET /a\"b - - - 200 -",
        "1706788801000 192.0.2.2 GET /first-second - - - 0 -",
        "1706788802000 192.0.2.3 GET /other - - - 200 -",
        "1706788803000 192.0.2.4 GET /last - - - 200 -",
    ];
    assert_eq!(lines, expected);
    assert_eq!((stats.broken, stats.samples[0].1), (1, 2));
    assert_eq!(stats.samples[0].2, "starting up");
}

/// The parts of a line may be in different batches.
#[test]
fn docker_parts_are_joined_across_batches() {
    let wrap = |text: &str| {
        let text = serde_json::Value::from(text);
        format!("{{\"log\":{text},\"stream\":\"stdout\",\"time\":\"2024-02-01T12:00:00Z\"}}\n")
    };
    let line = |second: usize| {
        let agent = "x".repeat(40_000);
        format!(
            "192.0.2.1 - - [01/Feb/2024:12:00:{second:02} +0000] \"GET /{second} HTTP/1.1\" 200 1 \"-\" \"{agent}\"\n"
        )
    };
    let parts = |line: String| {
        let bytes = line.as_bytes().chunks(16_384).map(|part| wrap(str::from_utf8(part).unwrap()));
        bytes.collect::<String>()
    };
    let log: String = (0..60).map(|second| parts(line(second))).collect();
    assert!(log.len() > 2 << 20);
    let (lines, stats) = describe(log.as_bytes(), None, &["user-agent"]);
    assert_eq!((lines.len(), stats.broken, stats.lines), (60, 0, 180));
    assert!(lines.iter().all(|line| line.ends_with(&"x".repeat(40_000))));
}

/// Arbitrary lines in the formats of servers are read or counted, and never panic.
#[test]
fn truncated_server_lines_are_read_or_counted() {
    let logs: [&[u8]; 5] = [
        include_bytes!("../data/servers/alb.log"),
        include_bytes!("../data/servers/cloudfront.log"),
        include_bytes!("../data/servers/haproxy.log"),
        include_bytes!("../data/servers/caddy.log"),
        include_bytes!("../data/servers/docker.log"),
    ];
    for log in logs {
        let first = log.split_inclusive(|byte| *byte == b'\n').find(|line| !line.starts_with(b"#")).unwrap();
        let mut broken = log.to_vec();
        for end in 0..first.len() {
            broken.extend_from_slice(&first[..end]);
            broken.push(b'\n');
        }
        let (lines, stats) = describe(&broken, None, &[]);
        assert!(stats.broken > 0 && lines.len() as u64 == stats.requests);
    }
}
