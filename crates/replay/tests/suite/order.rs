//! Lines out of order: sorted, replayed at another time, or rejected; and lines with a wrong time.

use crate::support::{builtin_formats, parse_policy, replay};
use std::path::Path;
use tidegate_core::Micros;
use tidegate_replay::{
    ReplayError, ReplayResult,
    log::{LogInput, RequestLog, SortWindow},
    replay_log,
    report::{ReplayReport, to_text},
};

const POLICY: &str = "rules: [{ name: each, key: ip, quota: 1/s burst 1 }]";

/// A line at a second of February 2024. Lines have about 70 bytes, so 15,000 are a megabyte.
fn line(second: u64) -> String {
    let (day, hour, minute) = (1 + second / 86_400, second / 3_600 % 24, second / 60 % 60);
    let second = second % 60;
    format!(
        "192.0.2.1 - - [{day:02}/Feb/2024:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n"
    )
}

const FUTURE: &str = "192.0.2.9 - - [01/Jan/2099:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";

fn log_text(seconds: impl Iterator<Item = u64>) -> String {
    seconds.map(line).collect()
}

fn replay_in_window(log: &str, window: &str) -> Result<ReplayResult, ReplayError> {
    let policy = parse_policy(POLICY);
    let input = LogInput::from_bytes("access.log", log.as_bytes());
    let window: SortWindow = window.parse().unwrap();
    let log = RequestLog::open_with_window(vec![input], builtin_formats(), None, window)?;
    replay_log(log, (&policy, Path::new("")), None, |_| {})
}

/// A permutation of the seconds.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |place| place * 7_919 % count)
}

#[test]
fn shuffled_log_is_rejected_with_line_and_command() {
    let log = log_text(shuffled(200_000));
    let error = replay_in_window(&log, "1MiB").unwrap_err().to_string();
    let (place, rest) = error.split_once(": out of order: its time is ").unwrap();
    let number: u64 = place.strip_prefix("access.log:").unwrap().parse().unwrap();
    assert!((1..=200_000).contains(&number), "{error}");
    assert!(
        rest.contains(" of 200000 requests are out of order by more than the sort window of 1MiB\n"),
        "{error}"
    );
    assert!(
        rest.contains("\n  cat 'access.log' | LC_ALL=C sort -s -t '[' -k 2.8,2.11n -k 2.4,2.6M"),
        "{error}"
    );
    assert!(
        rest.contains(
            "\nsort the log by time, or use a larger --sort-window; this command sorts it:\n  cat "
        ),
        "{error}"
    );
    // The advice helps: a larger window, or a sorted log.
    let result = replay_in_window(&log, "16MiB").unwrap();
    assert_eq!((result.log.late, result.log.outliers, result.stats.denied), (0, 0, 0));
}

#[cfg(unix)]
#[test]
fn advised_command_sorts_the_log() {
    let haproxy = |second: u64| {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let header = ["", "Feb  6 12:14:14 lb haproxy[14389]: "][second as usize % 2];
        format!(
            "{header}192.0.2.1:33317 [06/Feb/2009:{hour:02}:{minute:02}:{second:02}.655] in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 \"GET / HTTP/1.1\"\n"
        )
    };
    let last = line(40 * 86_400 - 1).replace("40/Feb", "10/Mar");
    let logs = [log_text(shuffled(60_000)) + &last, shuffled(60_001).map(haproxy).collect()];
    for log in logs {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it's an access.log");
        std::fs::write(&path, log).unwrap();
        let policy = parse_policy(POLICY);
        let replay = || {
            let input = LogInput::from_path(path.to_str().unwrap());
            let log = RequestLog::open(vec![input], builtin_formats(), None).unwrap();
            replay_log(log, (&policy, Path::new("")), None, |_| {})
        };
        let error = replay().unwrap_err().to_string();
        let command = error.lines().find_map(|line| line.strip_prefix("  ")).unwrap();
        let command = command.strip_suffix(" > sorted.log").unwrap();
        let sorted = std::process::Command::new("sh").args(["-c", command]).output().unwrap().stdout;
        std::fs::write(&path, sorted).unwrap();
        let result = replay().unwrap();
        assert_eq!((result.log.requests, result.log.reordered, result.log.late), (60_001, 0, 0), "{command}");
    }
}

/// A clock that steps back for some lines does not reject a log.
#[test]
fn few_late_lines_are_accepted() {
    let steps = (0..50_000).chain(10_000..10_090).chain(50_000..100_000);
    let result = replay(log_text(steps).as_bytes(), POLICY).unwrap();
    assert_eq!((result.log.late, result.log.requests), (90, 100_090));
    assert!(result.log.max_lateness > Micros::from_secs(10_000));
    let steps = (0..50_000).chain(10_000..12_000).chain(50_000..100_000);
    let error = replay(log_text(steps).as_bytes(), POLICY).unwrap_err().to_string();
    assert!(error.contains("2000 of 102000 requests are out of order"), "{error}");
}

/// One line from the future does not advance the clock, wherever it is.
#[test]
fn line_from_the_future_is_an_outlier() {
    let count = 60_000;
    for place in [0, 1, 7_000, 14_000, 30_000, count - 2, count - 1, count] {
        let log = log_text(0..place) + FUTURE + &log_text(place..count);
        let result = replay(log.as_bytes(), POLICY).unwrap();
        assert_eq!((result.log.outliers, result.log.late, result.stats.denied), (1, 0, 0), "{place}");
        assert_eq!(result.log.requests, count + 1);
        let seconds = Micros::from_secs(1_706_745_600 + count - 1);
        assert!(result.log.end.unwrap() <= seconds, "{place}: {:?}", result.log.end);
        let most = result.log.most_displaced.clone().unwrap();
        assert_eq!((most.line, most.file.as_str()), (place + 1, "log0"));
        let text = to_text(&ReplayReport { result: &result, policy: "p", baseline: None });
        let expected =
            format!("1 outlier line with a time after that of the lines around (log0:{} by 273", place + 1);
        assert!(text.contains(&expected), "{text}");
    }
}

/// A line that is ahead of the whole window after it is an outlier, even if the log reaches its time later. The lines after it
/// are sorted as before. A line that is ahead by less is sorted.
#[test]
fn line_ahead_of_the_window_is_an_outlier() {
    let late = |second: u64| if second % 100 == 99 { second - 7 } else { second };
    for (ahead, outliers) in [(36_000, 1), (3_700, 0)] {
        let log =
            log_text((0..7_000).map(late)) + &line(7_000 + ahead) + &log_text((7_000..60_000).map(late));
        let result = replay(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 9/s }]").unwrap();
        assert_eq!((result.log.outliers, result.log.late, result.stats.denied), (outliers, 0, 0), "{ahead}");
        let most =
            result.log.most_displaced.map(|most| (most.line, most.distance < Micros::from_secs(ahead)));
        assert_eq!(most, (outliers == 1).then_some((7_001, true)), "{ahead}");
    }
}

/// The same in a small log, and for an hour instead of decades.
#[test]
fn outlier_of_a_small_log_is_found() {
    let future = FUTURE.to_owned();
    let cases = [
        [line(0), future.clone(), line(2), line(4)],
        [future.clone(), line(0), line(2), line(4)],
        [line(0), line(2), line(4), future],
        [line(0), line(9_000), line(2), line(4)],
    ];
    for lines in cases {
        let result = replay(lines.concat().as_bytes(), POLICY).unwrap();
        assert_eq!((result.log.outliers, result.log.requests), (1, 4), "{lines:?}");
        assert_eq!(result.log.end.unwrap(), Micros::from_secs(1_706_745_604), "{lines:?}");
    }
}

/// Requests after a pause, and logs that were concatenated in another order, have no outliers.
#[test]
fn pauses_and_concatenated_logs_have_no_outliers() {
    let day = 86_400;
    let pause = log_text((0..20).chain([3 * day, 3 * day + 1]));
    let newest_first = log_text((3 * day..3 * day + 20).chain(0..20));
    let days = [1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9];
    let glob_order = log_text(days.into_iter().flat_map(|number| number * day..number * day + 3));
    for log in [pause, newest_first, glob_order] {
        let result = replay(log.as_bytes(), POLICY).unwrap();
        assert_eq!((result.log.outliers, result.log.late, result.stats.denied), (0, 0, 0), "{log}");
    }
}

/// A server with a wrong clock is half of a log: neither time is right, so the log is rejected.
#[test]
fn two_interleaved_clocks_are_rejected() {
    let log: String = (0..60_000).map(|second| line(second) + FUTURE).collect();
    let error = replay(log.as_bytes(), POLICY).unwrap_err().to_string();
    assert!(
        error.contains("after that of the lines after it") || error.contains("before that of a line"),
        "{error}"
    );
}

/// An outlier in one file does not move the requests of another.
#[test]
fn outlier_of_one_file_leaves_the_other_sorted() {
    let even = log_text((0..30_000).step_by(2)) + FUTURE + &log_text((30_000..60_000).step_by(2));
    let odd = log_text((1..60_000).step_by(2));
    let policy = parse_policy(POLICY);
    let inputs = [even, odd].map(|text| LogInput::from_bytes("log", text.into_bytes()));
    let log = RequestLog::open(inputs.into(), builtin_formats(), None).unwrap();
    let result = replay_log(log, (&policy, Path::new("")), None, |_| {}).unwrap();
    assert_eq!((result.log.outliers, result.log.late, result.stats.denied), (1, 0, 0));
}
