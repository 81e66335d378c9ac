//! Benchmarks of in-memory limiters: Tidegate and its peers. `scripts/bench` lists the suites and their cases.

mod cases;
mod document;
mod instructions;
mod keys;
mod measure;
mod memory;
mod peers;
mod report;

use report::CaseReport;
use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};
use tidegate_bench::BenchResult;

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => list_suites(),
        // Child processes of this program.
        ["measure", case, peer] => measure_in_process(case, peer),
        ["count", case, peer] => count_in_process(case, peer),
        _ => match RunArgs::parse(&args) {
            Ok(request) => request.run(),
            Err(error) => {
                eprintln!("bench: {error}");
                return ExitCode::from(2);
            }
        },
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The parsed arguments.
struct RunArgs {
    suite: &'static str,
    cases: Vec<AnyCase>,
    output: ReportOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportOutput {
    Terminal,
    Document,
}

/// A case of any suite.
enum AnyCase {
    Timed(cases::TimedCase),
    Memory(memory::MemoryCase),
    Instructions(instructions::InstructionCase),
}

/// The suites and their descriptions.
const SUITES: [(&str, &str); 2] = [
    ("memory", "limiters in memory, interleaved with their peers: ns per decision, bytes per key"),
    ("instructions", "instructions per decision, by callgrind"),
];

impl RunArgs {
    fn parse(args: &[&str]) -> std::result::Result<Self, String> {
        let (flags, words): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| arg.starts_with('-'));
        if let Some(flag) = flags.iter().find(|flag| **flag != "--write") {
            return Err(format!("unknown flag `{flag}`; the only flag is --write"));
        }
        let suites = SUITES.map(|(name, _)| name);
        let suite_name = words.first().ok_or("missing suite; run without arguments to list all")?;
        let suite = suites
            .into_iter()
            .find(|suite| suite == suite_name)
            .ok_or_else(|| format!("unknown suite `{suite_name}`; available: {}", suites.join(", ")))?;
        let output = if flags.is_empty() { ReportOutput::Terminal } else { ReportOutput::Document };
        let mut cases = suite_cases(suite);
        match words[1..] {
            [] => {}
            [_] if output == ReportOutput::Document => {
                return Err("--write requires a whole suite; remove the case".to_owned());
            }
            [name] => cases.retain(|case| case.name() == name),
            [_, extra, ..] => return Err(format!("unexpected argument `{extra}`; give at most one case")),
        }
        if cases.is_empty() {
            return Err(format!("unknown case `{}` of {suite}; run without arguments to list all", words[1]));
        }
        Ok(Self { suite, cases, output })
    }

    fn run(&self) -> BenchResult<ExitCode> {
        let mut reports = Vec::new();
        for case in &self.cases {
            let report = case.run()?;
            writeln!(io::stdout(), "{report}\n")?;
            reports.push(report);
        }
        if self.output == ReportOutput::Document {
            document::write(self.suite, &reports)?;
        }
        // A missed target may be the machine's fault; a key without its own state is a bug and gives an infinite value.
        let is_valid = reports.iter().all(|report| report.value.is_finite());
        Ok(if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl AnyCase {
    fn name(&self) -> String {
        match self {
            Self::Timed(case) => case.name(),
            Self::Memory(case) => case.name().to_owned(),
            Self::Instructions(case) => case.name().to_owned(),
        }
    }

    fn about(&self) -> BenchResult<String> {
        let (about, most) = match self {
            Self::Timed(case) => (case.about(), case.at_most()),
            Self::Memory(case) => (case.about().to_owned(), Some(case.at_most())),
            Self::Instructions(case) => (case.about()?, None),
        };
        Ok(match most {
            Some(most) => format!("{about}; at most {most:.2}"),
            None => about,
        })
    }

    fn run(&self) -> BenchResult<CaseReport> {
        match self {
            Self::Timed(case) => case.run(),
            Self::Memory(case) => case.run(),
            Self::Instructions(case) => case.run(),
        }
    }
}

fn suite_cases(suite: &str) -> Vec<AnyCase> {
    match suite {
        "memory" => {
            let timed = cases::all_cases().into_iter().map(AnyCase::Timed);
            timed.chain(memory::MemoryCase::ALL.map(AnyCase::Memory)).collect()
        }
        _ => instructions::InstructionCase::ALL.map(AnyCase::Instructions).into(),
    }
}

fn list_suites() -> BenchResult<ExitCode> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "usage: scripts/bench SUITE [CASE], or scripts/bench SUITE --write for docs/benchmarks.md"
    )?;
    for (suite, about) in SUITES {
        writeln!(out, "\n{suite}: {about}")?;
        for case in suite_cases(suite) {
            writeln!(out, "  {:<20} {}", case.name(), case.about()?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn measure_in_process(case: &str, peer: &str) -> BenchResult<ExitCode> {
    let case = memory::MemoryCase::ALL.into_iter().find(|known| known.name() == case);
    case.ok_or("unknown case")?.measure_in_process(peer)?;
    Ok(ExitCode::SUCCESS)
}

fn count_in_process(case: &str, peer: &str) -> BenchResult<ExitCode> {
    let case = instructions::InstructionCase::ALL.into_iter().find(|known| known.name() == case);
    case.ok_or("unknown case")?.count_in_process(peer)?;
    Ok(ExitCode::SUCCESS)
}
