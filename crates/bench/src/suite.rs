//! A suite of cases as a program: `SUITE` runs all cases, `SUITE CASE` one, and `SUITE --write` writes a table of all to
//! `docs/benchmarks.md`. Each case ends with a line `ratio CASE VALUE`.

use crate::{BenchResult, docs_page, interleaved::quartiles, machine::CpuTimes};
use std::{env, fmt, process::ExitCode};

/// A suite of related cases.
pub struct Suite {
    /// The name in `scripts/bench` and in the markers of the document.
    pub name: &'static str,
    /// The crates whose versions the document lists.
    pub peers: &'static [&'static str],
    /// The role of other processes in the measurement.
    pub other_processes: OtherProcesses,
    /// The cases, in the order in which they run.
    pub cases: &'static [BenchCase],
}

/// One case.
pub struct BenchCase {
    /// The name in the last line of its output.
    pub name: &'static str,
    /// The two quantities whose ratio is measured.
    pub about: &'static str,
    /// The target of its value.
    pub target: SuiteTarget,
    /// Measures the case.
    pub measure: fn() -> BenchResult<Measurement>,
}

/// A value to compare with the target, and the figures behind it.
pub struct Measurement {
    /// The value in the last line of the output.
    pub value: f64,
    /// The spread of the values of the rounds.
    pub spread: RoundSpread,
    /// The figures as text.
    pub figures: String,
}

/// The spread of the values of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundSpread {
    /// The number of rounds.
    pub rounds: usize,
    /// The 25th percentile.
    pub low: f64,
    /// The 75th percentile.
    pub high: f64,
}

/// The target of a value.
#[derive(Clone, Copy)]
pub enum SuiteTarget {
    /// Less is better.
    AtMost(f64),
    /// More is better.
    AtLeast(f64),
}

/// The role of other processes in a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OtherProcesses {
    /// They disturb the measurement; the output reports it.
    Disturb,
    /// They are part of the measurement, such as a server.
    Participate,
}

impl Measurement {
    /// Creates a measurement whose value is the median of the values of the rounds.
    pub fn from_rounds(values: &[f64], figures: String) -> Self {
        let [low, value, high] = quartiles(values);
        Self { value, spread: RoundSpread { rounds: values.len(), low, high }, figures }
    }
}

impl fmt::Display for RoundSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, low, high } = self;
        write!(f, "{low:.3}–{high:.3}, {rounds} rounds")
    }
}

impl Suite {
    /// Runs the suite with the arguments of this process.
    pub fn main(&self) -> ExitCode {
        let args: Vec<_> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        exit_code(self.run_args(&args))
    }

    fn run_args(&self, args: &[&str]) -> BenchResult<()> {
        let Self { name: suite, cases, .. } = self;
        let names = || cases.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
        match args {
            [name] if name == suite => self.run_all().map(|_| ()),
            [name, "--write"] if name == suite => self.write(),
            [name, case] if name == suite => match cases.iter().find(|known| known.name == *case) {
                Some(case) => self.run(case).map(|_| ()),
                None => Err(format!("unknown case `{case}`; available: {}", names()).into()),
            },
            _ => Err(format!("usage: scripts/bench {suite} [CASE | --write]; cases: {}", names()).into()),
        }
    }

    /// Runs all cases and writes their table.
    fn write(&self) -> BenchResult<()> {
        // Before the cases, because some pin this program to one core.
        let description = docs_page::describe_run(self.peers)?;
        let target = if self.has_only_upper_targets() { "at most" } else { "target" };
        let head =
            format!("| case | what | measured | value (p25–p75) | {target} | |\n|---|---|---|---|---|---|\n");
        docs_page::write(self.name, &format!("{description}{head}{}", self.run_all()?.join("\n")))
    }

    /// Runs all cases and returns the rows of the table.
    fn run_all(&self) -> BenchResult<Vec<String>> {
        self.cases.iter().map(|case| self.run(case)).collect()
    }

    /// Runs one case and returns its row of the table.
    fn run(&self, case: &BenchCase) -> BenchResult<String> {
        let BenchCase { name, about, target, measure } = case;
        println!("{name}: {about}");
        let before = CpuTimes::now()?;
        let Measurement { value, spread, figures } = measure()?;
        if self.other_processes == OtherProcesses::Disturb
            && let Some(disturbance) = CpuTimes::now()?.disturbance_since(before)
        {
            println!("  {disturbance}");
        }
        let result = target.evaluate(value);
        println!("  {figures}\n  p25–p75 {spread}\n  {target}: {result}\nratio {name} {value:.3}\n");
        let target = match target {
            SuiteTarget::AtMost(most) if self.has_only_upper_targets() => most.to_string(),
            target => target.to_string(),
        };
        Ok(format!("| {name} | {about} | {figures} | {value:.3} ({spread}) | {target} | {result} |"))
    }

    /// Whether all targets are upper bounds, so that the table header can contain "at most".
    fn has_only_upper_targets(&self) -> bool {
        self.cases.iter().all(|case| matches!(case.target, SuiteTarget::AtMost(_)))
    }
}

/// Prints the error, if any, and returns the exit code.
pub fn exit_code(outcome: BenchResult<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

impl SuiteTarget {
    fn evaluate(self, value: f64) -> &'static str {
        match self {
            Self::AtMost(most) if value <= most => "met",
            Self::AtMost(_) => "above target",
            Self::AtLeast(least) if value >= least => "met",
            Self::AtLeast(_) => "below target",
        }
    }
}

impl fmt::Display for SuiteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: BenchCase = BenchCase {
        name: "fast",
        about: "ours over theirs",
        target: SuiteTarget::AtMost(0.5),
        measure: || measurement(&[0.7, 0.6, 0.5]),
    };
    const WIDE: BenchCase = BenchCase {
        name: "wide",
        about: "theirs over ours",
        target: SuiteTarget::AtLeast(1.0),
        measure: || measurement(&[1.0, 1.0]),
    };

    fn measurement(rounds: &[f64]) -> BenchResult<Measurement> {
        Ok(Measurement::from_rounds(rounds, "1 ns".to_owned()))
    }

    fn suite(cases: &'static [BenchCase]) -> Suite {
        Suite { name: "some", peers: &[], other_processes: OtherProcesses::Participate, cases }
    }

    #[test]
    fn case_is_written_as_row() {
        assert_eq!(
            suite(&[FAST, WIDE]).run_all().unwrap(),
            [
                "| fast | ours over theirs | 1 ns | 0.600 (0.550–0.650, 3 rounds) | at most 0.5 | above target |",
                "| wide | theirs over ours | 1 ns | 1.000 (1.000–1.000, 2 rounds) | at least 1 | met |",
            ]
        );
        // The rows omit "at most" if the header contains it.
        assert_eq!(
            suite(&[FAST]).run_all().unwrap(),
            ["| fast | ours over theirs | 1 ns | 0.600 (0.550–0.650, 3 rounds) | 0.5 | above target |"]
        );
        assert_eq!(SuiteTarget::AtLeast(1.0).evaluate(0.9), "below target");
        assert_eq!(SuiteTarget::AtMost(1.0).evaluate(f64::NAN), "above target");
    }

    #[test]
    fn arguments_select_suite_and_case() {
        let run = |args: &[&str]| suite(&[FAST, WIDE]).run_args(args).map_err(|error| error.to_string());
        let usage = "usage: scripts/bench some [CASE | --write]; cases: fast, wide";
        assert_eq!(run(&["some", "wide"]), Ok(()));
        assert_eq!(run(&["some"]), Ok(()));
        assert_eq!(run(&["some", "slow"]), Err("unknown case `slow`; available: fast, wide".to_owned()));
        for wrong in [&[][..], &["other"], &["some", "fast", "wide"]] {
            assert_eq!(run(wrong), Err(usage.to_owned()));
        }
    }
}
