//! Tests of `tidegate simulate` with the binary.

#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject has failed")]

use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

#[test]
fn default_shows_double_limit_at_window_boundary() {
    let shown = simulate_stdout(&[]);
    let expected = "\
  100/min fixed-window                 admitted 200, denied 40
                        █████▄░  ██████░
                       ███████░  ██████▄░
                       ├ worst 1min: 200, bound 200 ─┤
  bound: at most 200 in any 1min
";
    assert!(shown.contains(expected), "{shown}");
    assert!(shown.contains("worst 1min: 100, bound 100"), "{shown}");
    assert!(!shown.contains('\x1b'), "colors in a pipe");

    let json = simulate_json(&[]);
    let number = |value: &Value| value.as_u64().unwrap();
    let worst: Vec<_> = json_quotas(&json)
        .map(|quota| {
            (quota["quota"].as_str().unwrap(), number(&quota["worst"]["cost"]), number(&quota["bound"]))
        })
        .collect();
    let expected = [
        ("100/min fixed-window", 200, 200),
        ("100/min sliding-window", 128, 199),
        ("100/min", 156, 200),
        ("100/min sliding-strict 60", 100, 100),
    ];
    assert_eq!(worst, expected);
}

#[test]
fn every_load_shape_offers_its_requests() {
    for (load, title, offered, admitted) in [
        ("steady", "steady: 150/min for 2min", 300, 200),
        ("burst", "burst: 120 requests within 15s", 120, 100),
        ("boundary", "boundary: two bursts of 120 requests around 1min, where a window ends", 240, 200),
        ("ramp", "ramp: from nothing to 300/min in 2min", 300, 175),
        ("on-off", "on-off: 300/min for 15s, then nothing for 15s, in turn", 300, 200),
    ] {
        let json = simulate_json(&["100/min fixed-window", "--load", load]);
        assert_eq!(json["load"], title);
        assert_eq!(json["offered"]["requests"], offered, "{load}");
        assert_eq!(json["quotas"][0]["allowed"]["requests"], admitted, "{load}");
    }
}

#[test]
fn load_uses_rate_cost_and_length_arguments() {
    let json =
        simulate_json(&["10/s", "--load", "steady", "--rate", "20/s", "--cost", "2", "--for", "500ms"]);
    assert_eq!(json["offered"], serde_json::json!({ "requests": 10, "cost": 20 }));
    assert_eq!(json["quotas"][0]["allowed"], serde_json::json!({ "requests": 7, "cost": 14 }));
    assert_eq!(json["window_us"], 1_000_000);
}

#[test]
fn load_title_describes_the_load() {
    for (args, title, offered) in [
        (
            &["100/min", "--for", "70s"][..],
            "boundary: two bursts of 120 requests around 1min, where a window ends, cut off after 70s",
            120 + 64,
        ),
        // One minute of arrivals in two minutes: pauses do not increase the rate.
        (
            &["100/min", "--load", "on-off", "--rate", "1/min"],
            "on-off: 1/min for 15s, then nothing for 15s, in turn",
            1,
        ),
        (&["100/min", "--load", "burst", "--rate", "4/min"], "burst: 1 request within 15s", 1),
    ] {
        let json = simulate_json(args);
        assert_eq!(json["load"], title);
        assert_eq!(json["offered"]["requests"], offered, "{title}");
    }
}

#[test]
fn default_cost_fits_every_quota() {
    for quotas in [&["100/s", "10000/h"][..], &["1.5MB/s burst 1kB"], &["1MB/s leaky-bucket queue 10"]] {
        for quota in simulate_json(quotas)["quotas"].as_array().unwrap() {
            assert_eq!(quota["impossible"]["requests"], 0, "{quotas:?}");
        }
    }
}

#[test]
fn bins_add_up_to_the_totals() {
    let json = simulate_json(&[
        "100/min leaky-bucket queue 20",
        "100/min smooth",
        "100/min warm-up 30s",
        "3 at once",
    ]);
    for quota in json_quotas(&json) {
        let sum = |name: &str| quota[name].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
        assert_eq!(quota["allowed"]["cost"], sum("allowed_bins"), "{quota}");
        assert_eq!(quota["delayed"]["cost"], sum("delayed_bins"), "{quota}");
        let number = |value: &Value| value.as_u64().unwrap();
        assert!(number(&quota["worst"]["cost"]) <= number(&quota["bound"]), "{quota}");
        let count = |name: &str| quota[name]["requests"].as_u64().unwrap();
        assert_eq!(json["offered"]["requests"], count("allowed") + count("delayed") + count("denied"));
    }
}

#[test]
fn shapers_report_wait_times() {
    let shown =
        simulate_stdout(&["60/min leaky-bucket", "60/min smooth", "--load", "burst", "--rate", "4/s"]);
    assert!(shown.contains("admitted 60 (59 delayed), denied 0"), "{shown}");
    assert!(shown.contains("callers wait as long as the queue allows; the longest wait is 44.2s"), "{shown}");
    assert!(shown.contains("callers wait for up to 1s; the longest wait is 1s"), "{shown}");

    let impatient =
        simulate_json(&["60/min leaky-bucket", "--load", "burst", "--rate", "4/s", "--wait", "0"]);
    assert_eq!(impatient["quotas"][0]["delayed"]["requests"], 0);
    let patient = simulate_json(&["60/min burst 5", "--load", "burst", "--rate", "4/s", "--wait", "10s"]);
    assert_eq!(patient["quotas"][0]["longest_wait_us"], 10_000_000);

    // A caller of a shaper does not wait for its own cost, so the last request may exceed the rate by its cost.
    let large =
        simulate_json(&["10/s smooth", "10/s warm-up 4s", "--load", "burst", "--cost", "70", "--wait", "1h"]);
    for quota in json_quotas(&large) {
        assert!(quota["worst"]["cost"].as_u64().unwrap() <= quota["bound"].as_u64().unwrap(), "{quota}");
    }
}

#[test]
fn concurrency_slots_are_released() {
    let args = ["3 at once", "--hold", "250ms", "--load", "steady", "--rate", "20/s", "--for", "1s"];
    let json = simulate_json(&args);
    // Three requests are admitted every 250ms, at 0, 50 and 100ms.
    assert_eq!(json["quotas"][0]["allowed"]["requests"], 12);
    assert_eq!(json["quotas"][0]["worst"]["cost"], 3);
    assert!(simulate_stdout(&args).contains("most in flight: 3, bound 3"));

    // The release time of a slot is unknown, so callers never wait for one.
    let report =
        serde_json::from_str::<Value>(&simulate_stdout(&[&args[..], &["--wait", "1s", "--json"]].concat()));
    assert_eq!(report.unwrap()["quotas"][0]["max_wait_us"], 0);
}

#[test]
fn traces_are_sorted_and_may_name_quotas() {
    let trace = "\
# expectations are ignored
quota 10/s burst 3

at 100ms  cost 2   allow  remaining 0
at 0ms    cost 2   allow  remaining 1
at 0ms    cost 2   deny   retry 100ms   # a comment
at 0.5s   cost 1   remaining 2
1s cost 3
";
    let file = write_temporary("scenario.trace", trace);
    let json = simulate_json(&["--trace", file.to_str().unwrap()]);
    assert_eq!(json["quotas"][0]["quota"], "10/s burst 3");
    assert_eq!(json["offered"], serde_json::json!({ "requests": 5, "cost": 10 }));
    assert_eq!(json["quotas"][0]["allowed"], serde_json::json!({ "requests": 4, "cost": 8 }));

    let other = simulate_stdout(&["5/s", "--trace", file.to_str().unwrap()]);
    assert!(other.contains("5/s (token-bucket)"), "{other}");

    let dated =
        run_with_stdin(&["2/s", "--trace", "-", "--json"], "1700000000.25\n1700000000.5\n1700000001\n");
    let dated: Value = serde_json::from_slice(&dated.stdout).unwrap();
    assert_eq!(dated["start_us"], 1_700_000_000_248_000_u64);
    assert_eq!(dated["quotas"][0]["allowed"]["requests"], 3);
    assert_eq!(dated["load"], "trace: 3 requests of standard input");

    let from_windows = run_with_stdin(&["2/s", "--trace", "-", "--json"], "\u{feff}1s\r\n2s\r\n");
    assert!(from_windows.status.success(), "{from_windows:?}");
}

#[test]
fn bad_quotas_point_at_the_word() {
    check_rejected(
        &["100/min burts 20"],
        "\
error: unknown word `burts`
  100/min burts 20
          ^^^^^
use `burst`, `initial`, or one of token-bucket, leaky-bucket, fixed-window, sliding-window, sliding-strict, sliding-log, \
smooth, warm-up, concurrency, total, calendar-window
",
    );
    check_rejected(
        &["100/min", "burst", "20"],
        "\
error: `burst` is not a number above zero
  burst
  ^^^^^
write an amount, as in `100/min`
if it is one quota, quote it: '100/min burst 20'
",
    );
}

#[test]
fn bad_traces_point_at_the_column() {
    for (trace, complaint) in [
        (
            "1s\nat 2s cots 2\n",
            "2:7: unexpected `cots`\n  at 2s cots 2\n        ^^^^\nwrite a time, then `cost` and a number if it is not 1",
        ),
        (
            "soon\n",
            "1:1: `soon` is not a time\n  soon\n  ^^^^\nwrite a number and a unit, as in `12.5ms` or `2min`",
        ),
        (
            "5 parsecs",
            "1:3: unexpected `parsecs`\n  5 parsecs\n    ^^^^^^^\nwrite a time, then `cost` and a number if it is not 1",
        ),
        (
            "5parsecs",
            "1:1: unknown period `parsecs`\n  5parsecs\n  ^^^^^^^^\nuse one of us, ms, s, min, h, d, w",
        ),
        ("\n1s cost", "2:8: missing a number after `cost`\n  1s cost\n         ^\nwrite `cost 2`"),
        (
            "1s cost -1",
            "1:9: `-1` is not a whole number below 2^64\n  1s cost -1\n          ^^\nwrite `cost 2`",
        ),
        // Control characters of a file must not reach the terminal.
        (
            "1s\t\x1b[31m",
            "1:4: unexpected `\u{fffd}[31m`\n  1s \u{fffd}[31m\n     ^^^^^\nwrite a time, then `cost` and a number if it is not 1",
        ),
        (
            "quota 10/fortnight",
            "1:10: unknown period `fortnight`\n  quota 10/fortnight\n           ^^^^^^^^^\nuse one of us, ms, s, min, h, d, w",
        ),
    ] {
        let output = run_with_stdin(&["--trace", "-"], trace);
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("error: standard input:{complaint}\n"));
        assert_eq!(output.status.code(), Some(2));
    }
    let output = run_with_stdin(&["--trace", "-"], "# nothing\n");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: standard input has no requests\n"));
}

#[test]
fn binary_trace_is_rejected_at_its_line() {
    let fix = "use a text file with one request per line";
    for (trace, complaint) in
        [(&b"1s\n2\xff\n"[..], "2: invalid UTF-8"), (&[b'1'; 10_000], "1: line of 4096 bytes or more")]
    {
        let file = write_temporary("no-text.trace", trace);
        check_rejected(
            &["--trace", file.to_str().unwrap()],
            &format!("error: {}:{complaint}\n{fix}\n", file.display()),
        );
    }
}

#[test]
fn invalid_arguments_are_rejected_with_a_fix() {
    for (args, line) in [
        (&["--load", "brust"][..], "error: invalid value 'brust' for '--load <SHAPE>'"),
        (&["--load", "brust"], "  tip: a similar value exists: 'burst'"),
        (&["--load", "brust"], "  [possible values: steady, burst, boundary, ramp, on-off]"),
        (
            &["--for", "0s"],
            "error: invalid value '0s' for '--for <TIME>': duration of zero; use a duration above zero",
        ),
        (
            &["--for", "2x"],
            "error: invalid value '2x' for '--for <TIME>': unknown period `x`; use one of us, ms, s, min, h, d, w",
        ),
        (
            &["1000/s", "--load", "steady", "--for", "1d"],
            "error: more than 10000000 requests per quota: steady: 1500/s for 1d",
        ),
        (&["--rate", "3 at once"], "error: --rate: `3 at once` is not a rate"),
        (&["--rate", "9/s burst 2"], "error: --rate: `9/s burst 2` is not a rate"),
        (&["--load", "ramp", "--rate", "1/d"], "error: no requests: ramp: from nothing to 1/d in 2min"),
        (
            &["--load", "burst", "--for", "1s"],
            "error: no requests: burst: 120 requests within 15s, cut off after 1s",
        ),
        (
            &["--wait", "_"],
            "error: invalid value '_' for '--wait <TIME>': `_` is not a time; write a number and a unit, as in `12.5ms` or `2min`",
        ),
        (
            &["--trace", "/does/not/exist"],
            "error: cannot read /does/not/exist: No such file or directory (os error 2)",
        ),
    ] {
        let output = run_simulate(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.lines().any(|found| found == line), "{stderr}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let unwritable = run_simulate(&["--svg", "/does/not/exist.svg"]);
    assert!(unwritable.stderr.starts_with(b"error: cannot write /does/not/exist.svg: "), "{unwritable:?}");
    assert_eq!(unwritable.status.code(), Some(1));
}

#[test]
fn extreme_values_do_not_panic() {
    for args in [
        &["1/w", "1000000/s smooth", "--for", "1us", "--load", "steady"][..],
        &["100/min", "--window", "1us"],
        &["100/min", "--window", "285w", "--load", "on-off"],
        &["9007199254740991/s fixed-window"],
        &["1/d leaky-bucket", "--load", "burst"],
        &["3 at once", "--hold", "9d"],
        &["5MB/s", "1GB/s sliding-window", "--load", "ramp", "--width", "20"],
        &["100/min", "--cost", "18446744073709551615"],
    ] {
        for more in [&[][..], &["--json"], &["--svg", "/dev/null"]] {
            let output = run_simulate(&[args, more].concat());
            assert!(matches!(output.status.code(), Some(0 | 2)), "{args:?}: {output:?}");
            assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{args:?}");
        }
    }
}

#[test]
fn svg_is_well_formed() {
    let file = write_temporary("picture.svg", "");
    let quotas = ["100/min", "100/min leaky-bucket", "1 per 3d", "3 at once"];
    simulate_stdout(&[&quotas[..], &["--svg", file.to_str().unwrap()]].concat());
    let picture = fs::read_to_string(file).unwrap();
    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert!(picture.ends_with("</svg>\n"));
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
    let mut open = Vec::new();
    for tag in picture.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap();
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap();
        match tag {
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            _ if tag.ends_with('/') => {}
            _ => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?} left open");
    for quota in quotas {
        assert!(picture.contains(quota), "{quota}");
    }
}

#[test]
fn closed_stdout_is_no_error() {
    let mut child =
        simulate_command(&["--width", "1000"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &[][..]));
}

fn simulate_command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("simulate").args(args).env_remove("COLUMNS");
    command
}

fn run_simulate(args: &[&str]) -> Output {
    simulate_command(args).output().unwrap()
}

fn simulate_stdout(args: &[&str]) -> String {
    let output = run_simulate(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn simulate_json(args: &[&str]) -> Value {
    serde_json::from_str(&simulate_stdout(&[args, &["--json"]].concat())).unwrap()
}

fn json_quotas(json: &Value) -> impl Iterator<Item = &Value> {
    json["quotas"].as_array().unwrap().iter()
}

fn check_rejected(args: &[&str], stderr: &str) {
    let output = run_simulate(args);
    assert_eq!(String::from_utf8_lossy(&output.stderr), stderr);
    assert_eq!(output.status.code(), Some(2));
}

fn run_with_stdin(args: &[&str], input: &str) -> Output {
    let mut command = simulate_command(args);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn write_temporary(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).unwrap();
    path
}

/// Leased permits are renewed while requests are in flight, also with short leases.
#[test]
fn lease_is_renewed_while_in_use() {
    let most_in_flight = |quota: &str| {
        let output = run_simulate(&[quota, "--hold", "100ms"]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.contains("most in flight")).unwrap().to_string()
    };
    assert!(most_in_flight("3 at once lease 50ms").contains("most in flight: 3,"));
    assert!(most_in_flight("3 at once lease 10s").contains("most in flight: 3,"));
}
