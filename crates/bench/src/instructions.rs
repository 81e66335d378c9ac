//! Instructions per call, counted by callgrind. They do not vary with the load of the machine, and do not include waits
//! for memory, other cores or the cycle counter.

use crate::{
    BenchResult, cases,
    peers::Peer,
    report::{self, CaseReport},
};
use std::{env, process::Command};

/// A case: its name, and the timed case whose calls are counted.
#[derive(Clone, Copy)]
pub(crate) struct InstructionCase {
    name: &'static str,
    timed_case: &'static str,
}

/// The number of counted calls.
const COUNTED_CALLS: usize = 10_000;

impl InstructionCase {
    /// All cases.
    pub(crate) const ALL: [Self; 4] = [
        Self { name: "direct-allow", timed_case: "direct-allow" },
        Self { name: "direct-deny", timed_case: "direct-deny" },
        Self { name: "keyed-u64", timed_case: "u64-10k" },
        Self { name: "keyed-string", timed_case: "string-10k" },
    ];

    /// The name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The description.
    pub(crate) fn about(&self) -> BenchResult<String> {
        Ok(self.timed_case()?.about())
    }

    /// Counts the instructions of each competitor, in one process each.
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
            notes: vec![format!("callgrind, {COUNTED_CALLS} calls, including the loop")],
            disturbance: None,
        };
        report.value = report.own_ratio();
        Ok(report)
    }

    /// Makes the calls; callgrind runs this process.
    pub(crate) fn count_in_process(&self, peer: &str) -> BenchResult<()> {
        self.timed_case()?.count(peer, COUNTED_CALLS)
    }

    fn timed_case(&self) -> BenchResult<cases::TimedCase> {
        Ok(cases::TimedCase::find(self.timed_case)
            .ok_or_else(|| format!("unknown case `{}`", self.timed_case))?)
    }

    fn count_in_child(&self, peer: &str) -> BenchResult<f64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_pass*"])
            .arg(env::current_exe()?)
            .args(["count", self.name, peer])
            .output()
            .map_err(|error| {
                format!(
                    "cannot run valgrind: {error}; install it, for example with `apt-get install valgrind`"
                )
            })?;
        let text = String::from_utf8_lossy(&output.stderr);
        let collected = text.lines().find_map(|line| line.split_once("Collected : "));
        match collected {
            Some((_, count)) if output.status.success() => {
                Ok(count.trim().parse::<f64>()? / COUNTED_CALLS as f64)
            }
            _ => Err(format!("valgrind failed for {peer}: {text}").into()),
        }
    }
}

/// The function whose instructions callgrind counts, including its callees.
#[inline(never)]
pub(crate) fn counted_pass<K>(peer: &dyn Peer<K>, keys: &[K], indexes: &[u32]) -> u64 {
    peer.decide_all(keys, indexes)
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
