//! Tests of `tidegate simulate --closed-loop` with the binary.

#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject has failed")]

use serde_json::Value;
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

const OVERLOAD_SCENARIOS: [&str; 5] =
    ["surge-1.4", "surge-10", "slow-backend", "failing-backend", "retry-storm"];
const CONTROLLERS: [&str; 8] =
    ["none", "fixed", "breaker", "throttle", "aimd", "vegas", "gradient2", "anchored"];

#[test]
fn chart_shows_collapse_and_controllers() {
    let shown = simulate_stdout(&["surge-1.4"]);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[0], "surge-1.4: requests go from 0.7 to 1.4 × the backend's capacity from 1s to 3s");
    assert!(shown.contains(
        "\
                    ├─ the change ─┤                    recovered        settled
                                                    goodput      latency
"
    ));
    assert!(shown.contains(
        "            0s              2s              4s\n\n  goodput    requests answered in time"
    ));
    assert!(!shown.contains('\x1b'), "colors in a pipe");

    let row = |name: &str| {
        let start = format!("  {name:9} ");
        let at = lines.iter().position(|line| line.starts_with(&start) && line.contains('█')).unwrap();
        (lines[at - 1].chars().skip(12).collect::<Vec<_>>(), lines[at].chars().skip(12).collect::<Vec<_>>())
    };
    let (load, _) = row("load");
    assert!(
        load[..8].iter().all(|cell| *cell == ' ') && load[8..24].iter().all(|cell| *cell > '▅'),
        "{shown}"
    );
    // 70% of the height before the surge; then nothing without a controller, and full height with one.
    let (top, bottom) = row("none");
    assert!(
        bottom[..8].iter().all(|cell| *cell == '█') && top[..8].iter().all(|cell| *cell < '▆'),
        "{shown}"
    );
    assert!(top[9..40].iter().chain(&bottom[10..40]).all(|cell| *cell == '░'), "{shown}");
    let (top, bottom) = row("anchored");
    assert!(
        bottom[..40].iter().all(|cell| *cell == '█') && top[8..24].iter().all(|cell| *cell > '▄'),
        "{shown}"
    );
    for (controller, end) in [("none", "0%   27ms   never"), ("fixed", "99%  105%  1.2ms at once")] {
        assert!(
            lines.iter().any(|line| line.starts_with(&format!("  {controller}")) && line.ends_with(end)),
            "{shown}"
        );
    }
}

#[test]
fn charts_fit_the_width() {
    for (width, bars) in [("80", 40), ("100", 50), ("160", 100), ("20", 10)] {
        let shown = simulate_stdout(&["retry-storm", "--for", "1s", "--width", width]);
        let longest = shown.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= width.parse::<usize>().unwrap().max(32), "{width}: {longest}\n{shown}");
        let rule = shown.lines().find(|line| line.trim_start().starts_with('┴')).unwrap();
        let ticks = rule.trim().chars().count();
        assert!((bars..=bars + 1).contains(&ticks), "{width}: {ticks}\n{shown}");
        // Only a surge settles.
        assert!(!shown.contains("settled") && shown.contains("\n  latency "), "{shown}");
        for name in CONTROLLERS {
            assert!(shown.contains(&format!("\n  {name}")), "{width}: {name}\n{shown}");
        }
    }
}

#[test]
fn several_scenarios_end_in_a_table() {
    let shown = simulate_stdout(&["overload", "--for", "1"]);
    let table: Vec<_> =
        shown.lines().skip_while(|line| !line.starts_with("            surge-1.4 surge-10")).collect();
    assert_eq!(table[0], "            surge-1.4 surge-10 slow-backend failing-backend retry-storm");
    assert!(table.iter().all(|line| line.chars().count() <= 80), "{shown}");
    for (start, count) in OVERLOAD_SCENARIOS.map(|scenario| (format!("{scenario}: "), 1)) {
        assert_eq!(shown.lines().filter(|line| line.starts_with(&start)).count(), count, "{start}");
    }
    let head = |text: &str| table.iter().position(|line| *line == text).unwrap();
    let goodput = head("goodput during the change, % of capacity");
    let names = table[goodput + 1..].iter().map(|line| line.split_whitespace().next().unwrap());
    assert_eq!(names.take(CONTROLLERS.len()).collect::<Vec<_>>(), CONTROLLERS);
    let settled = head("settled after the surge began, ms");
    let none: Vec<_> = table[settled + 1].split_whitespace().collect();
    assert_eq!(none[3..], ["-", "-", "-"]);
}

#[test]
fn json_has_figures_and_bins() {
    let json = simulate_json(&["all", "--for", "1s"]);
    let scenarios = json["scenarios"].as_array().unwrap();
    let names: Vec<_> = scenarios.iter().map(|scenario| scenario["scenario"].as_str().unwrap()).collect();
    assert_eq!(names, [&OVERLOAD_SCENARIOS[..], &["healthy"]].concat());
    for scenario in scenarios {
        assert_eq!(scenario["length_us"], 1_000_000);
        assert_eq!(scenario["capacity_per_s"], 32_000);
        let controllers = scenario["controllers"].as_array().unwrap();
        let names: Vec<_> =
            controllers.iter().map(|controller| controller["controller"].as_str().unwrap()).collect();
        assert_eq!(names, CONTROLLERS);
        for controller in controllers {
            let bins = |name: &str| -> Vec<u64> {
                controller[name].as_array().unwrap().iter().map(|bin| bin.as_u64().unwrap()).collect()
            };
            let good = bins("succeeded_bins");
            assert_eq!(good.len(), 100);
            assert_eq!(scenario["bin_us"], 10_000);
            for (attempts, rejected) in bins("attempt_bins").iter().zip(bins("rejected_bins")) {
                assert!(rejected <= *attempts, "{controller}");
            }
            // The change lasts from 200ms to 600ms, except for the retry storm, which lasts 40ms.
            if scenario["change_end_us"] == 600_000 {
                let during: u64 = good[20..60].iter().sum();
                let share = during as f64 / (0.4 * 32_000.0);
                assert!(
                    (controller["median"]["goodput"].as_f64().unwrap() - share).abs() < 1e-9,
                    "{controller}"
                );
            }
            assert_eq!(controller["runs"].as_array().unwrap().len(), 1);
            assert_eq!(controller["limit_bins"].as_array().unwrap().len(), 100);
            let has_no_limit =
                ["none", "breaker", "throttle"].map(|name| controller["controller"] == name).contains(&true);
            assert_eq!(controller["limit_bins"][0].is_null(), has_no_limit);
        }
    }
    assert!(scenarios[4]["controllers"][1]["worst"]["settled_us"].is_null(), "a storm does not settle");
}

#[test]
fn same_seed_gives_same_result() {
    let run = |more: &[&str]| simulate_stdout(&[&["slow-backend", "--for", "1s", "--json"], more].concat());
    assert_eq!(run(&[]), run(&[]));
    assert_eq!(run(&[]), run(&["--seed", "7"]));
    assert_ne!(run(&[]), run(&["--seed", "8"]));
}

#[test]
fn several_seeds_report_median_and_worst() {
    let args = ["slow-backend", "--for", "1s", "--seed", "20", "--seeds", "3"];
    let report = simulate_json(&args);
    for controller in report["scenarios"][0]["controllers"].as_array().unwrap() {
        let runs = controller["runs"].as_array().unwrap();
        assert_eq!(runs.iter().map(|run| run["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [20, 21, 22]);
        let mut goodputs: Vec<_> = runs.iter().map(|run| run["goodput"].as_f64().unwrap()).collect();
        goodputs.sort_by(f64::total_cmp);
        assert_eq!(controller["worst"]["goodput"], goodputs[0]);
        assert_eq!(controller["median"]["goodput"], goodputs[1]);
    }
    // A run does not depend on the other seeds.
    let alone = simulate_json(&["slow-backend", "--for", "1s", "--seed", "21"]);
    assert_eq!(
        alone["scenarios"][0]["controllers"][5]["runs"][0],
        report["scenarios"][0]["controllers"][5]["runs"][1],
        "same seed, same run"
    );

    let shown = simulate_stdout(&args);
    assert!(
        shown.contains("goodput during the change, % of capacity: median (worst) of 3 seeds\n  none"),
        "{shown}"
    );
    assert!(!shown.contains('█'), "no chart with several seeds");
}

#[test]
fn invalid_arguments_are_rejected_with_a_fix() {
    for (args, line) in [
        (&["surge"][..], "error: invalid value 'surge' for '--closed-loop [<SCENARIO>]'"),
        (&["retry-strom"], "  tip: a similar value exists: 'retry-storm'"),
        (
            &["retry-strom"],
            "  [possible values: surge-1.4, surge-10, slow-backend, failing-backend, retry-storm, healthy, overload, all]",
        ),
        (
            &["all", "100/min"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '[QUOTA]...'",
        ),
        (
            &["--load", "ramp"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '--load <SHAPE>'",
        ),
        (
            &["--rate", "1/s"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '--rate <RATE>'",
        ),
        (
            &["--cost", "1"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '--cost <N>'",
        ),
        (
            &["--trace", "-"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '--trace <FILE>'",
        ),
        (
            &["--window", "1s"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '--window <TIME>'",
        ),
        (
            &["--wait", "1s"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '--wait <TIME>'",
        ),
        (
            &["--hold", "1s"],
            "error: the argument '--closed-loop [<SCENARIO>]' cannot be used with '--hold <TIME>'",
        ),
        (&["--for", "1500ms"], "error: --for: a closed loop cannot last 1500ms"),
        (&["--for", "21s"], "give whole seconds from 1 to 20, as in `--for 10s`"),
        (&["--for", "500us"], "error: --for: a closed loop cannot last 500us"),
        (&["--seeds", "0"], "error: invalid value '0' for '--seeds <N>': 0 is not in 1..=99"),
        (&["--seed", "-1"], "error: unexpected argument '-1' found"),
        (&["--svg", "picture.svg"], "error: an image shows one scenario"),
        (&["--svg", "picture.svg"], "name it, as in `--closed-loop surge-10 --svg picture.svg`"),
        (
            &["surge-10", "--seeds", "3", "--svg", "picture.svg"],
            "error: the argument '--seeds <N>' cannot be used with '--svg <FILE>'",
        ),
    ] {
        let output = run_simulate(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.lines().any(|found| found == line), "{args:?}: {stderr}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    for alone in [&["--seed", "3"], &["--seeds", "3"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("simulate").args(alone).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("--closed-loop"), "{output:?}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn svg_is_well_formed() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("closed-loop.svg");
    simulate_stdout(&["surge-1.4", "--for", "1s", "--svg", file.to_str().unwrap()]);
    let picture = fs::read_to_string(file).unwrap();
    assert!(
        picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && picture.ends_with("</svg>\n")
    );
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
    for controller in CONTROLLERS {
        assert!(picture.contains(&format!(">{controller}</text>")), "{controller}");
    }
    assert_eq!(
        picture.matches("class=\"worst\" x=").count(),
        CONTROLLERS.len() + 1,
        "the change, in every panel"
    );
}

/// Compares the first column of the table, which is fast to compute; `images.rs` compares the whole table.
#[test]
fn document_matches_command_output() {
    let document = overload_document();
    let table = document_table(&document);
    // Columns have minimal width, so each line of the table starts with the first column alone.
    let column = simulate_stdout(&["surge-1.4", "--seeds", "9"]);
    assert_eq!(column.lines().count(), table.len());
    for (documented, printed) in table.iter().zip(column.lines()) {
        assert!(
            documented.starts_with(printed),
            "docs/overload.md contains\n{documented}\nbut the command prints\n{printed}"
        );
    }
}

/// Checks that the numbers in the text match the table.
#[test]
fn document_text_matches_its_table() {
    let document = overload_document();
    let table = document_table(&document);
    let cells = |figure: &str, controller: &str, column: usize| -> (String, String) {
        let head = table.iter().position(|line| line.starts_with(figure)).unwrap();
        let row = table[head..].iter().find(|line| line.starts_with(&format!("  {controller}"))).unwrap();
        // A median and, in brackets, the worst.
        let columns: Vec<_> = row.split_whitespace().skip(1).collect();
        let mut cells: Vec<(String, String)> = Vec::new();
        for word in columns {
            match word.strip_prefix('(') {
                Some(worst) => cells.last_mut().unwrap().1 = worst.trim_end_matches(')').to_string(),
                None => cells.push((word.to_string(), word.to_string())),
            }
        }
        cells[column].clone()
    };
    let goodput = |controller: &str| cells("goodput", controller, 1).0;
    let ratio = |controller: &str| {
        let number = |controller: &str| goodput(controller).parse::<f64>().unwrap();
        format!("{:.1} ×", number("anchored") / number(controller))
    };
    let (settled, latest) = cells("settled", "anchored", 0);
    for row in [
        format!("| Tidegate `anchored`, simulated | {settled} ms, {latest} ms at worst |"),
        format!("| `anchored` | {} % |", goodput("anchored")),
        format!("| `gradient2` | {} % |", goodput("gradient2")),
        format!("| `aimd` | {} % |", goodput("aimd")),
        format!("| `vegas` | {} % |", goodput("vegas")),
        format!("| nothing | {} % |", goodput("none")),
        format!("| `anchored` beside `aimd`, simulated | {} |", ratio("aimd")),
        format!("| `anchored` beside `vegas`, simulated | {} |", ratio("vegas")),
    ] {
        assert!(document.lines().any(|line| line.starts_with(&row)), "docs/overload.md lacks: {row}");
    }
}

fn overload_document() -> String {
    fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/overload.md")).unwrap()
}

/// The lines between the markers, without the fences.
fn document_table(document: &str) -> Vec<&str> {
    let (_, rest) = document.split_once("<!-- figures -->\n```text\n").unwrap();
    rest.split_once("```\n<!-- end -->").unwrap().0.lines().collect()
}

fn run_simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["simulate", "--closed-loop"]).args(args).env_remove("COLUMNS").output().unwrap()
}

fn simulate_stdout(args: &[&str]) -> String {
    let output = run_simulate(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn simulate_json(args: &[&str]) -> Value {
    serde_json::from_str(&simulate_stdout(&[args, &["--json"]].concat())).unwrap()
}
