//! Stories: what is asked when, and what the answer must be.
//!
//! ```text
//! # A comment runs to the end of its line.
//! quota 10/s burst 3
//! at 0ms    cost 2                   allow  remaining 1
//! at 0ms    cost 2                   deny   retry 100ms
//! at 100ms  peek 2                   allow
//! at 100ms  reserve 3 within 1s as a delay 100ms
//! at 100ms  cancel a
//! at 100ms  change as-is quota 20/s burst 1
//! ```
//!
//! `quota` starts a new story on a key that was never seen, so a file may tell several. A line says no more than
//! it wants to check; what it says must match exactly.
//!
//! | after `at <time>` | asks |
//! |---|---|
//! | `cost <n> [within <time>] [on credit]` | for `n` now, or within some time |
//! | `reserve <n> [within <time>] [on credit] [as <name>]` | for `n`, whatever the wait unless one is given |
//! | `force <n>` | to charge `n` whatever the state is |
//! | `peek [<n>]` | what `n` would get |
//! | `cancel <name> [<n>]` | to give back a reservation, or `n` of it |
//! | `change [additive, as-is, proportionally, reset] quota <quota>` | to go on under another quota |
//! | `create` | to start as a new limiter rather than as a new key |
//!
//! Answers: `allow`, `delay [<time>]`, `deny [retry <time>, never, until a release]`, and the numbers
//! `remaining <n>`, `reset <time>`, `limit <n>`.

mod parse;

use crate::subject::Subject;
use std::{collections::HashMap, error, fmt};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Outcome, Quota, Receipt, Retry};

/// One line of a story that does something.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceLine {
    /// Where it stands in its file, from one.
    pub number: usize,
    /// What it does.
    pub op: TraceOp,
}

/// What a line does.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceOp {
    /// Starts a new story.
    Start(Quota),
    /// Asks, and expects an answer.
    Check {
        /// When.
        at: Micros,
        /// What.
        demand: Demand,
        /// The name to remember the receipt by.
        name: Option<String>,
        /// What the line says of the answer.
        expected: TraceExpectation,
    },
    /// Gives back a reservation.
    Cancel {
        /// When.
        at: Micros,
        /// Which.
        name: String,
        /// How much of it; all when nothing is said.
        cost: Option<u64>,
    },
    /// Goes on under another quota.
    Change {
        /// When.
        at: Micros,
        /// The new quota.
        quota: Quota,
        /// How tokens carry over.
        carry_over: CarryOver,
    },
    /// Starts as a limiter that is created now.
    Create {
        /// When.
        at: Micros,
    },
}

/// What a line says of the answer; what it does not say may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceExpectation {
    /// The answer itself.
    pub outcome: Option<ExpectedOutcome>,
    /// How much could still be granted.
    pub remaining: Option<u64>,
    /// How long until the key is as if it had never been seen.
    pub reset: Option<Micros>,
    /// The most that is granted at once.
    pub limit: Option<u64>,
}

/// The answer that a line expects, as exactly as it says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutcome {
    /// Exactly this.
    Exact(Outcome),
    /// A grant with some delay.
    AnyDelay,
    /// A denial of any kind.
    AnyDenial,
}

/// Why a story failed: where, and what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line's number, from one.
    pub line: usize,
    /// The line itself.
    pub text: String,
    /// What is wrong with it, or what differs.
    pub problem: String,
}

/// Reads a file of stories.
pub fn parse(text: &str) -> Result<Vec<TraceLine>, TraceError> {
    parse::parse_lines(text)
}

/// Runs a file of stories, each on a subject that `open` makes for its quota.
pub fn run<S: Subject>(text: &str, mut open: impl FnMut(Quota) -> S) -> Result<(), TraceError> {
    let mut runner: Option<TraceRunner<S>> = None;
    for TraceLine { number, op } in parse(text)? {
        let blame = |problem: String| TraceError::new(text, number, problem);
        match (op, &mut runner) {
            (TraceOp::Start(quota), _) => {
                runner = Some(TraceRunner { subject: open(quota), receipts: HashMap::new() });
            }
            (_, None) => return Err(blame("a text starts with `quota`".into())),
            (op, Some(runner)) => runner.apply(op).map_err(blame)?,
        }
    }
    Ok(())
}

/// A story as far as it has been told.
struct TraceRunner<S> {
    subject: S,
    receipts: HashMap<String, Receipt>,
}

impl<S: Subject> TraceRunner<S> {
    fn apply(&mut self, op: TraceOp) -> Result<(), String> {
        match op {
            TraceOp::Start(_) => {}
            TraceOp::Check { at, demand, name, expected } => {
                let step = self.subject.decide(at, demand);
                if let Some(name) = name {
                    self.receipts.insert(name, step.receipt);
                }
                expected.check(&step.decision)?;
            }
            TraceOp::Cancel { at, name, cost } => {
                let receipt = self.receipts.get_mut(&name).ok_or(format!("nothing is called `{name}`"))?;
                let cost = cost.unwrap_or(receipt.cost);
                self.subject.refund(at, *receipt, cost);
                receipt.cost = receipt.cost.saturating_sub(cost);
            }
            TraceOp::Change { at, quota, carry_over: how } => self.subject.change(at, quota, how),
            TraceOp::Create { at } => self.subject.create(at),
        }
        Ok(())
    }
}

impl TraceExpectation {
    /// Says what differs, if anything.
    pub fn check(&self, decision: &Decision) -> Result<(), String> {
        let outcome = decision.outcome();
        let as_expected = match self.outcome {
            None => true,
            Some(ExpectedOutcome::Exact(expected)) => expected == outcome,
            Some(ExpectedOutcome::AnyDelay) => matches!(outcome, Outcome::Delay(_)),
            Some(ExpectedOutcome::AnyDenial) => matches!(outcome, Outcome::Deny(_)),
        };
        if let (false, Some(expected)) = (as_expected, self.outcome) {
            return Err(format!("expected {expected}, got {}", ExpectedOutcome::Exact(outcome)));
        }
        check_field("remaining", self.remaining, decision.remaining())?;
        check_field("reset", self.reset, decision.reset_after())?;
        check_field("limit", self.limit, decision.limit())
    }
}

fn check_field<T: Copy + PartialEq + fmt::Display>(
    what: &str,
    expected: Option<T>,
    got: T,
) -> Result<(), String> {
    match expected {
        Some(expected) if expected != got => Err(format!("expected {what} {expected}, got {what} {got}")),
        _ => Ok(()),
    }
}

impl fmt::Display for ExpectedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyDelay => f.write_str("delay"),
            Self::AnyDenial => f.write_str("deny"),
            Self::Exact(Outcome::Allow) => f.write_str("allow"),
            Self::Exact(Outcome::Delay(wait)) => write!(f, "delay {wait}"),
            Self::Exact(Outcome::Deny(Retry::After(wait))) => write!(f, "deny retry {wait}"),
            Self::Exact(Outcome::Deny(Retry::Never)) => f.write_str("deny never"),
            Self::Exact(Outcome::Deny(Retry::WhenReleased)) => f.write_str("deny until a release"),
        }
    }
}

impl TraceError {
    fn new(text: &str, number: usize, problem: String) -> Self {
        let line = text.lines().nth(number.saturating_sub(1)).unwrap_or_default();
        Self { line: number, text: line.trim().to_owned(), problem }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}\n  {}", self.line, self.problem, self.text)
    }
}

impl error::Error for TraceError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::CoreModel;

    #[test]
    fn matching_trace_passes() {
        let text = "
            quota 10/s burst 3                              # starts full
            at 0ms    cost 2                   allow  remaining 1  limit 3
            at 0ms    cost 2                   deny   retry 100ms  reset 200ms
            at 0ms    cost 4                   deny   never
            at 100ms  peek 2                   allow  remaining 2
            at 100ms  reserve 3 within 1s as a delay 100ms
            at 100ms  cost 1                   deny
            at 100ms  cancel a
            at 100ms  cost 2                   allow  remaining 0
            at 1.5s   change quota 20/s burst 1
            at 1.5s   cost 1                   allow
            quota 1 at once
            at 0s     cost 1                   allow
            at 1h     cost 1                   deny   until a release
            quota 3 at once
            at 0s     reserve 3 as a           allow
            at 0s     cancel a 1
            at 0s     peek                     remaining 1
        ";
        assert_eq!(run(text, CoreModel::new), Ok(()));
    }

    #[test]
    fn errors_name_the_line_and_what_differs() {
        for (text, error) in [
            ("at 0s cost 1", "line 1: a text starts with `quota`\n  at 0s cost 1"),
            ("quota 1/s\nat 0s cost 1 deny", "line 2: expected deny, got allow\n  at 0s cost 1 deny"),
            (
                "quota 1/s\nat 0s cost 1 allow remaining 3",
                "line 2: expected remaining 3, got remaining 0\n  at 0s cost 1 allow remaining 3",
            ),
            ("\n\nquota 0/s", "line 3: a rate of zero; give a number above zero\n  quota 0/s"),
            ("quota 1/s\nat 0s cancel a", "line 2: nothing is called `a`\n  at 0s cancel a"),
            ("quota 1/s\nat 0s cost 1 alow", "line 2: `alow` is no answer\n  at 0s cost 1 alow"),
            ("quota 1/s\nat 0x cost 1", "line 2: `0x` is no time\n  at 0x cost 1"),
            ("quota 1/s\nat 0s dance", "line 2: `dance` is no op\n  at 0s dance"),
        ] {
            assert_eq!(run(text, CoreModel::new).unwrap_err().to_string(), error);
        }
    }
}
