//! Formats, compression, and several files.

use crate::support::{builtin_formats, open_logs, parse_policy};
use std::{io::Write as _, path::Path};
use tidegate_replay::{
    ReplayError, ReplayResult,
    log::{LineFormats, LogInput, RequestLog},
    replay_log,
};

const PER_IP_POLICY: &str = "rules: [{ name: each, key: ip, quota: 2/h }]";

fn replay_with_formats(formats: LineFormats, log: &[u8], text: &str) -> Result<ReplayResult, ReplayError> {
    let policy = parse_policy(text);
    replay_log(open_logs(&[log], formats, &policy)?, (&policy, Path::new("")), None, |_| {})
}

/// Three requests of one address in every built-in format.
#[test]
fn builtin_formats_are_detected() {
    let cases = [
        ("common", r#"192.0.2.1 - alice [01/Feb/2024:12:00:0N +0000] "GET /a?b=c HTTP/1.1" 200 12"#),
        (
            "combined",
            r#"192.0.2.1 - - [01/Feb/2024:12:00:0N +0000] "GET /a HTTP/1.1" 200 - "-" "a \"quoted\" agent""#,
        ),
        (
            "vhost",
            r#"example.com:443 192.0.2.1 - - [01/Feb/2024:12:00:0N +0000] "GET /a HTTP/1.1" 200 12 "-" "agent""#,
        ),
        (
            "envoy",
            r#"[2024-02-01T12:00:0N.000Z] "GET /a HTTP/1.1" 200 - 0 12 5 4 "198.51.100.9,192.0.2.1" "agent" "id" "example.com" "10.0.0.1:80""#,
        ),
        (
            "json",
            r#"{"time": 170678880N, "ip": "192.0.2.1", "method": "GET", "path": "/a", "status": 200, "user": null}"#,
        ),
        (
            "json",
            r#"{"start_time":"2024-02-01T12:00:0N.000Z","method":"GET","path":"/a?q=\"x\"","response_code":200,"duration":5,"x_forwarded_for":"192.0.2.1","authority":"example.com","bytes":{"sent":[1,{"a":2}]}}"#,
        ),
        (
            "json",
            r#"{"time_local":"01/Feb/2024:12:00:0N +0000","remote_addr":"192.0.2.1","request":"GET /a HTTP/2.0","status":"200"}"#,
        ),
    ];
    for (name, line) in cases {
        let log: String = (1..=3).map(|second| line.replace('N', &second.to_string()) + "\n").collect();
        let result = replay_with_formats(builtin_formats(), log.as_bytes(), PER_IP_POLICY)
            .unwrap_or_else(|failure| panic!("{name}: {failure}"));
        assert_eq!(result.log.formats, [(name.to_owned(), 3)]);
        assert_eq!((result.stats.admitted, result.stats.denied), (2, 1), "{line}");
        assert_eq!(result.stats.rules[0].keys.top()[0].name, "192.0.2.1", "{line}");
    }
}

#[test]
fn custom_formats_are_parsed() {
    let cases = [
        (
            r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_x_api_key" $request_time"#,
            r#"192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] "POST /a HTTP/1.1" 201 12 "KEY" 0.250"#,
        ),
        (
            r#"%{X-Api-Key}i %a %{%Y-%m-%dT%H:%M:%S}t "%m %U%q" %>s %D"#,
            r#"KEY 192.0.2.1 2024-02-01T12:00:00 "POST /a?b=c" 201 250000"#,
        ),
        (
            "%START_TIME(%s.%3f)% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% %REQ(X-API-KEY):20% %DURATION%\\n",
            "1706788800.000 POST /a 201 KEY 250",
        ),
    ];
    for (format, line) in cases {
        let log: String = ["one", "one", "two"].map(|key| line.replace("KEY", key) + "\n").concat();
        let formats = LineFormats::single(format, &[]);
        // Apache logs the query with its `?`, so path and query have no delimiter.
        if format.contains("%U%q") {
            assert!(formats.unwrap_err().to_string().contains("put a delimiter between them"));
            continue;
        }
        let policy =
            "rules: [{ name: each, key: header x-api-key, match: { method: POST, path: /a }, quota: 1/h }]";
        let result = replay_with_formats(formats.unwrap(), log.as_bytes(), policy)
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!((result.stats.admitted, result.stats.denied), (2, 1), "{format}");
    }
    for (format, expected) in [
        ("squid", "unknown format `squid`"),
        ("$remote_addr", "no time field"),
        ("[$time_local] $status", "no request field and no path field"),
        ("%h %t %", "ends with a `%`"),
    ] {
        let error = LineFormats::single(format, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{format}: {error}");
    }
}

#[test]
fn json_fields_are_configurable() {
    let log = r#"{"when": 1706788800.5, "who": {"address": "192.0.2.1", "key": "k1"}, "what": "/a", "how": "GET"}
{"when": 1706788801, "who": {"address": "192.0.2.2", "key": "k1"}, "what": "/a", "how": "GET"}
"#;
    let pairs = [
        ("time", "when"),
        ("ip", "who.address"),
        ("header x-key", "who.key"),
        ("path", "what"),
        ("method", "how"),
    ];
    let fields = pairs.map(|(name, member)| (name.to_owned(), member.to_owned()));
    let policy =
        "rules: [{ name: each, key: header x-key, quota: 1/h }, { name: addresses, key: ip, quota: 1/h }]";
    let result =
        replay_with_formats(LineFormats::single("json", &fields).unwrap(), log.as_bytes(), policy).unwrap();
    assert_eq!((result.stats.rules[0].denied, result.stats.rules[1].denied), (1, 0));
    let wrong =
        LineFormats::single("json", &[("colour".to_owned(), "c".to_owned())]).unwrap_err().to_string();
    assert!(wrong.contains("unknown field `colour`; use one of time, completed, ip"), "{wrong}");
}

/// nginx logs the time of the response, so the duration is subtracted. Apache and Envoy log the time of the request.
#[test]
fn request_time_is_arrival_time() {
    let policy = "rules: [{ name: one, quota: 1 at once }]";
    // From 12:00:00 to 12:00:10, and from 12:00:10.9 to 12:00:11; then from 12:01:00 and from 12:01:01, both to 12:01:10.
    let nginx = "$remote_addr [$time_iso8601] \"$request\" $request_time";
    let lines = [("12:00:10", "10.0"), ("12:00:11", "0.1"), ("12:01:10", "10.0"), ("12:01:10", "9.0")];
    let log: String = lines
        .map(|(at, took)| format!("192.0.2.1 [2024-02-01T{at}+00:00] \"GET / HTTP/1.1\" {took}\n"))
        .concat();
    let result =
        replay_with_formats(LineFormats::single(nginx, &[]).unwrap(), log.as_bytes(), policy).unwrap();
    assert_eq!((result.stats.admitted, result.stats.denied), (3, 1), "nginx");

    let json: String = lines
        .map(|(at, took)| {
            format!("{{\"time_iso8601\":\"2024-02-01T{at}+00:00\",\"path\":\"/\",\"request_time\":{took}}}\n")
        })
        .concat();
    let result = replay_with_formats(builtin_formats(), json.as_bytes(), policy).unwrap();
    assert_eq!((result.stats.admitted, result.stats.denied), (3, 1), "JSON");

    let lines = [("12:00:00", 10), ("12:00:10", 1), ("12:01:00", 10), ("12:01:01", 9)];
    let log: String = lines
        .map(|(at, took)| format!("192.0.2.1 [01/Feb/2024:{at} +0000] \"GET / HTTP/1.1\" {took}\n"))
        .concat();
    let result =
        replay_with_formats(LineFormats::single("%h %t \"%r\" %T", &[]).unwrap(), log.as_bytes(), policy)
            .unwrap();
    assert_eq!((result.stats.admitted, result.stats.denied), (3, 1), "Apache");
}

/// The `main` format of the nginx packages is detected.
#[test]
fn nginx_main_format_is_detected() {
    let line = "192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"curl/8\" \"203.0.113.9\"\n";
    let result = replay_with_formats(builtin_formats(), line.repeat(3).as_bytes(), PER_IP_POLICY).unwrap();
    assert_eq!((result.stats.admitted, result.stats.denied), (2, 1));
    assert_eq!(result.log.formats, [("main".to_owned(), 3)]);
}

/// The user field of a log stands for the user header of the policy.
#[test]
fn log_user_is_policy_user() {
    let line =
        |user: &str| format!("192.0.2.1 - {user} [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let log = [line("alice"), line("bob"), line("alice")].concat();
    let result = replay_with_formats(
        builtin_formats(),
        log.as_bytes(),
        "user: header x-user\nrules: [{ name: each, key: user, quota: 1/h }]",
    )
    .unwrap();
    assert_eq!(result.stats.denied, 1);
    assert_eq!(result.stats.rules[0].keys.top()[0].name, "alice");
}

#[test]
fn compressed_logs_are_read() {
    let line =
        |second: u64| format!("192.0.2.1 - - [01/Feb/2024:12:00:0{second} +0000] \"GET / HTTP/1.1\" 200 1\n");
    let (first, second) = (line(1) + &line(2), line(3));
    let compress_both = |compress: fn(&str) -> Vec<u8>| [compress(&first), compress(&second)];
    for [first, second] in [gzip, zstd, bzip2, xz].map(compress_both) {
        // Two concatenated streams, as `cat a.gz b.gz` writes them.
        let packed = [&first[..], &second].concat();
        let result = replay_with_formats(builtin_formats(), &packed, PER_IP_POLICY).unwrap();
        assert_eq!((result.stats.admitted, result.stats.denied), (2, 1));
        // A pipe may return one byte at a time.
        let policy = parse_policy(PER_IP_POLICY);
        let bytes = LogInput::from_stream("a pipe", OneByte(std::io::Cursor::new(packed)));
        let log = RequestLog::open(vec![bytes], builtin_formats(), None).unwrap();
        assert_eq!(replay_log(log, (&policy, Path::new("")), None, |_| {}).unwrap().stats.denied, 1);
        let broken = &first[..20];
        let failure = replay_with_formats(builtin_formats(), broken, PER_IP_POLICY).unwrap_err().to_string();
        assert!(failure.starts_with("cannot read log0: "), "{failure}");
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
}

fn bzip2(text: &str) -> Vec<u8> {
    let mut packed = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

fn xz(text: &str) -> Vec<u8> {
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut packed = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

/// Returns one byte at a time.
struct OneByte<R>(R);

impl<R: std::io::Read> std::io::Read for OneByte<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let len = into.len().min(1);
        self.0.read(&mut into[..len])
    }
}

/// A line that expands to many megabytes is skipped while it is decompressed.
#[test]
fn decompressed_line_of_any_length_is_skipped() {
    let line = "192.0.2.1 - - [01/Feb/2024:12:00:01 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let text = format!("{line}{}\n{line}", "x".repeat(20 << 20));
    for packed in [gzip, zstd, bzip2, xz].map(|compress| compress(&text)) {
        assert!(packed.len() < 1 << 20);
        let result = replay_with_formats(builtin_formats(), &packed, PER_IP_POLICY).unwrap();
        assert_eq!((result.log.requests, result.log.broken), (2, 1));
    }
}

/// The header of an xz file can ask for gigabytes of memory.
#[test]
fn xz_memory_is_limited() {
    let line = "192.0.2.1 - - [01/Feb/2024:12:00:01 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let mut packed = xz(line);
    // The size of the dictionary is in the header of the block, which has a checksum: 40 stands for 4 GiB.
    let header = packed[12..24].to_vec();
    assert_eq!(header[2..4], [0x21, 1], "LZMA2 with one byte of properties");
    let mut crc = flate2::Crc::new();
    packed[16] = 40;
    crc.update(&packed[12..20]);
    packed[20..24].copy_from_slice(&crc.sum().to_le_bytes());
    let failure = replay_with_formats(builtin_formats(), &packed, PER_IP_POLICY).unwrap_err().to_string();
    assert!(failure.contains("it needs more than 128 MiB to decompress"), "{failure}");
}

/// The first file has the even seconds, the second the odd ones; a limit of one per second with a burst of one shows
/// whether they were merged.
#[test]
fn files_are_merged_by_time() {
    let line = |second: u64| {
        let (minute, second) = (second / 60, second % 60);
        format!("192.0.2.1 - - [01/Feb/2024:12:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n")
    };
    let even: String = (0..600).step_by(2).map(line).collect();
    let odd: String = (1..600).step_by(2).map(line).collect();
    let policy = parse_policy("rules: [{ name: each, key: ip, quota: 1/s burst 1 }]");
    let log = open_logs(&[even.as_bytes(), odd.as_bytes()], builtin_formats(), &policy).unwrap();
    let result = replay_log(log, (&policy, Path::new("")), None, |_| {}).unwrap();
    assert_eq!((result.stats.admitted, result.stats.denied, result.log.late), (600, 0, 0));
    assert_eq!(result.log.names, ["log0", "log1"]);
}

/// A file that is read in many batches has the same result as one that is read at once.
#[test]
fn batched_reading_equals_whole_reading() {
    let mut log = String::new();
    for place in 0..60_000_u64 {
        // Every hundredth line is seven seconds late.
        let at = place / 50 - if place % 100 == 99 && place > 1_000 { 7 } else { 0 };
        let (minute, second) = (at / 60, at % 60);
        let ip = place % 250;
        log += &format!(
            "192.0.2.{ip} - - [01/Feb/2024:12:{minute:02}:{second:02} +0000] \"GET /{place} HTTP/1.1\" 200 1\n"
        );
    }
    assert!(log.len() > 4 << 20);
    let policy = parse_policy("rules: [{ name: each, key: ip, quota: 6/min }]");
    let input = LogInput::from_stream("a stream", std::io::Cursor::new(log.clone().into_bytes()));
    let opened = RequestLog::open(vec![input], builtin_formats(), None).unwrap();
    let mut reported = 0;
    let result =
        replay_log(opened, (&policy, Path::new("")), None, |progress| reported = progress.requests).unwrap();
    assert_eq!((result.log.requests, result.log.late, reported), (60_000, 0, 60_000));
    assert_eq!(result.log.reordered, 590);
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_by_key(|line| line[line.find('[').unwrap()..line.find(']').unwrap()].to_owned());
    let sorted = lines.join("\n");
    let again = replay_with_formats(
        builtin_formats(),
        sorted.as_bytes(),
        "rules: [{ name: each, key: ip, quota: 6/min }]",
    )
    .unwrap();
    assert_eq!((again.stats.denied, again.log.reordered), (result.stats.denied, 0));
    assert!(result.stats.denied > 1_000);
}
