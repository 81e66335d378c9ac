//! Instructions per call, counted by callgrind: they do not depend on the machine's mood. They say nothing about
//! what a call waits for: memory, other cores, the cycle counter.

use crate::{
    BenchResult, cases,
    peers::Peer,
    report::{self, CaseReport},
};
use std::{env, process::Command};

/// One of these cases: its name here, and the case of the other suite whose calls are counted.
#[derive(Clone, Copy)]
pub(crate) struct InstructionCase {
    name: &'static str,
    timed_case: &'static str,
}

/// Calls that are counted.
const COUNTED_CALLS: usize = 10_000;

impl InstructionCase {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [
        Self { name: "direct-allow", timed_case: "direct-allow" },
        Self { name: "direct-deny", timed_case: "direct-deny" },
        Self { name: "keyed-u64", timed_case: "u64-10k" },
        Self { name: "keyed-string", timed_case: "string-10k" },
    ];

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The same in words.
    pub(crate) fn about(&self) -> BenchResult<String> {
        Ok(self.timed_case()?.about())
    }

    /// Counts each competitor's instructions, one process each.
    pub(crate) fn run(&self) -> BenchResult<CaseReport> {
        let case = self.timed_case()?;
        let mut samples = Vec::new();
        for peer in case.competitors() {
            samples.push((peer, vec![self.count_in_child(peer)?]));
        }
        let mut report = CaseReport {
            name: format!("instructions-{}", self.name),
            about: case.about(),
            table: "Instructions".to_owned(),
            unit: "instr",
            rows: report::rows(&samples),
            value: f64::NAN,
            at_most: None,
            notes: vec![format!("callgrind, {COUNTED_CALLS} calls, the loop around them included")],
            disturbance: None,
        };
        report.value = report.own_ratio();
        Ok(report)
    }

    /// Makes the calls; the counter is around this process.
    pub(crate) fn count_in_process(&self, peer: &str) -> BenchResult<()> {
        self.timed_case()?.count(peer, COUNTED_CALLS)
    }

    fn timed_case(&self) -> BenchResult<cases::TimedCase> {
        Ok(cases::TimedCase::find(self.timed_case)
            .ok_or_else(|| format!("no case is called {}", self.timed_case))?)
    }

    fn count_in_child(&self, peer: &str) -> BenchResult<f64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_pass*"])
            .arg(env::current_exe()?)
            .args(["count", self.name, peer])
            .output()
            .map_err(|error| {
                format!("valgrind: {error}; install it, for example `apt-get install valgrind`")
            })?;
        let text = String::from_utf8_lossy(&output.stderr);
        let collected = text.lines().find_map(|line| line.split_once("Collected : "));
        match collected {
            Some((_, count)) if output.status.success() => {
                Ok(count.trim().parse::<f64>()? / COUNTED_CALLS as f64)
            }
            _ => Err(format!("valgrind did not count {peer}: {text}").into()),
        }
    }
}

/// The only function whose instructions are counted, with all that it calls.
#[inline(never)]
pub(crate) fn counted_pass<K>(peer: &dyn Peer<K>, keys: &[K], places: &[u32]) -> u64 {
    peer.decide_all(keys, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_timed_case() {
        for case in InstructionCase::ALL {
            assert!(case.timed_case().is_ok(), "{}", case.name());
        }
    }
}
