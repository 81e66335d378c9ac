//! A suite of cases as a program: `SUITE` runs all of them, `SUITE CASE` one, and `SUITE --write` puts a table of all into
//! `docs/benchmarks.md`. Each case ends with a line `ratio CASE VALUE`.

use crate::{BenchResult, docs_page, machine::CpuTimes};
use std::{env, fmt, process::ExitCode};

/// Cases that belong together.
pub struct Suite {
    /// What `scripts/bench` and the markers of the document call it.
    pub name: &'static str,
    /// Crates whose versions the document names.
    pub peers: &'static [&'static str],
    /// What other processes mean for what is measured.
    pub other_processes: OtherProcesses,
    /// The cases, in the order in which they run.
    pub cases: &'static [BenchCase],
}

/// One case.
pub struct BenchCase {
    /// What the last line calls it.
    pub name: &'static str,
    /// What over what.
    pub about: &'static str,
    /// What its value is held against.
    pub target: SuiteTarget,
    /// Measures it.
    pub measure: fn() -> BenchResult<Measurement>,
}

/// A value to hold against the bar, and the figures behind it.
pub struct Measurement {
    /// What the last line says.
    pub value: f64,
    /// In words.
    pub figures: String,
}

/// What a value is held against.
#[derive(Clone, Copy)]
pub enum SuiteTarget {
    /// Less is better.
    AtMost(f64),
    /// More is better.
    AtLeast(f64),
}

/// What other processes mean for what is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OtherProcesses {
    /// They take time from it, and a case says so.
    Disturb,
    /// They are part of it, such as a server.
    Participate,
}

impl Suite {
    /// Does what the arguments of this process say.
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
                None => Err(format!("unknown case `{case}`; there are {}", names()).into()),
            },
            _ => Err(format!("usage: scripts/bench {suite} [CASE | --write], with {}", names()).into()),
        }
    }

    /// Runs all cases, and writes their table.
    fn write(&self) -> BenchResult<()> {
        // Before the cases: some leave this program only one core.
        let circumstances = docs_page::describe_run(self.peers)?;
        let bars = if self.has_only_upper_targets() { "at most" } else { "bar" };
        let head = format!("| case | what | measured | value | {bars} | |\n|---|---|---|---|---|---|\n");
        docs_page::write(self.name, &format!("{circumstances}{head}{}", self.run_all()?.join("\n")))
    }

    /// The rows of a table.
    fn run_all(&self) -> BenchResult<Vec<String>> {
        self.cases.iter().map(|case| self.run(case)).collect()
    }

    /// A row of a table.
    fn run(&self, case: &BenchCase) -> BenchResult<String> {
        let BenchCase { name, about, target: bar, measure } = case;
        println!("{name}: {about}");
        let before = CpuTimes::now()?;
        let Measurement { value, figures } = measure()?;
        if self.other_processes == OtherProcesses::Disturb
            && let Some(disturbance) = CpuTimes::now()?.disturbance_since(before)
        {
            println!("  {disturbance}");
        }
        let judgement = bar.evaluate(value);
        println!("  {figures}\n  {bar}: {judgement}\nratio {name} {value:.3}\n");
        let bar = match bar {
            SuiteTarget::AtMost(most) if self.has_only_upper_targets() => most.to_string(),
            bar => bar.to_string(),
        };
        Ok(format!("| {name} | {about} | {figures} | {value:.3} | {bar} | {judgement} |"))
    }

    /// Whether all bars are of one kind, so that the head of the table says it for all.
    fn has_only_upper_targets(&self) -> bool {
        self.cases.iter().all(|case| matches!(case.target, SuiteTarget::AtMost(_)))
    }
}

/// How a program ends with this outcome, after it told what went wrong.
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
        measure: || measurement(0.6),
    };
    const WIDE: BenchCase = BenchCase {
        name: "wide",
        about: "theirs over ours",
        target: SuiteTarget::AtLeast(1.0),
        measure: || measurement(1.0),
    };

    fn measurement(value: f64) -> BenchResult<Measurement> {
        Ok(Measurement { value, figures: "1 ns".to_owned() })
    }

    fn suite(cases: &'static [BenchCase]) -> Suite {
        Suite { name: "some", peers: &[], other_processes: OtherProcesses::Participate, cases }
    }

    #[test]
    fn case_is_written_as_row() {
        assert_eq!(
            suite(&[FAST, WIDE]).run_all().unwrap(),
            [
                "| fast | ours over theirs | 1 ns | 0.600 | at most 0.5 | above target |",
                "| wide | theirs over ours | 1 ns | 1.000 | at least 1 | met |",
            ]
        );
        // Where the head of the table says so for all, a row does not.
        assert_eq!(
            suite(&[FAST]).run_all().unwrap(),
            ["| fast | ours over theirs | 1 ns | 0.600 | 0.5 | above target |"]
        );
        assert_eq!(SuiteTarget::AtLeast(1.0).evaluate(0.9), "below target");
        assert_eq!(SuiteTarget::AtMost(1.0).evaluate(f64::NAN), "above target");
    }

    #[test]
    fn arguments_select_suite_and_case() {
        let obey = |args: &[&str]| suite(&[FAST, WIDE]).run_args(args).map_err(|error| error.to_string());
        let usage = "usage: scripts/bench some [CASE | --write], with fast, wide";
        assert_eq!(obey(&["some", "wide"]), Ok(()));
        assert_eq!(obey(&["some"]), Ok(()));
        assert_eq!(obey(&["some", "slow"]), Err("unknown case `slow`; there are fast, wide".to_owned()));
        for wrong in [&[][..], &["other"], &["some", "fast", "wide"]] {
            assert_eq!(obey(wrong), Err(usage.to_owned()));
        }
    }
}
