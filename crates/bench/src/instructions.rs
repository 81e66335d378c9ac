//! Instructions per call, counted by callgrind: they do not depend on the machine's mood. They say nothing about
//! what a call waits for: memory, other cores, the cycle counter.

use crate::{
    Result, cases,
    peers::Peer,
    report::{self, Report},
};
use std::{env, process::Command};

/// One of these cases: its name here, and the case of the other suite whose calls are counted.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    name: &'static str,
    timed: &'static str,
}

/// Calls that are counted.
const CALLS: usize = 10_000;

impl Case {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [
        Self { name: "direct-allow", timed: "direct-allow" },
        Self { name: "direct-deny", timed: "direct-deny" },
        Self { name: "keyed-u64", timed: "u64-10k" },
        Self { name: "keyed-string", timed: "string-10k" },
    ];

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The same in words.
    pub(crate) fn about(&self) -> Result<String> {
        Ok(self.timed()?.about())
    }

    /// Counts each competitor's instructions, one process each.
    pub(crate) fn run(&self) -> Result<Report> {
        let case = self.timed()?;
        let mut samples = Vec::new();
        for peer in case.competitors() {
            samples.push((peer, vec![self.count_apart(peer)?]));
        }
        let mut report = Report {
            name: format!("instructions-{}", self.name),
            about: case.about(),
            table: "Instructions".to_owned(),
            unit: "instr",
            rows: report::rows(&samples),
            value: f64::NAN,
            at_most: None,
            notes: vec![format!("callgrind, {CALLS} calls, the loop around them included")],
            disturbance: None,
        };
        report.value = report.own_ratio();
        Ok(report)
    }

    /// Makes the calls; the counter is around this process.
    pub(crate) fn count_here(&self, peer: &str) -> Result<()> {
        self.timed()?.count(peer, CALLS)
    }

    fn timed(&self) -> Result<cases::Case> {
        Ok(cases::Case::named(self.timed).ok_or_else(|| format!("no case is called {}", self.timed))?)
    }

    fn count_apart(&self, peer: &str) -> Result<f64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*watched_pass*"])
            .arg(env::current_exe()?)
            .args(["count", self.name, peer])
            .output()
            .map_err(|error| {
                format!("valgrind: {error}; install it, for example `apt-get install valgrind`")
            })?;
        let text = String::from_utf8_lossy(&output.stderr);
        let collected = text.lines().find_map(|line| line.split_once("Collected : "));
        match collected {
            Some((_, count)) if output.status.success() => Ok(count.trim().parse::<f64>()? / CALLS as f64),
            _ => Err(format!("valgrind did not count {peer}: {text}").into()),
        }
    }
}

/// The only function whose instructions are counted, with all that it calls.
#[inline(never)]
pub(crate) fn watched_pass<K>(peer: &dyn Peer<K>, keys: &[K], places: &[u32]) -> u64 {
    peer.pass(keys, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_counts_one_that_is_timed() {
        for case in Case::ALL {
            assert!(case.timed().is_ok(), "{}", case.name());
        }
    }
}
