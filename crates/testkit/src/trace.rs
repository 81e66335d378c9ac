//! Traces: timed calls and their expected decisions.
//!
//! ```text
//! # A comment runs to the end of its line.
//! quota 10/s burst 3
//! at 0ms    cost 2                   allow  remaining 1
//! at 0ms    cost 2                   deny   retry 100ms
//! at 100ms  peek 2                   allow
//! at 100ms  reserve 3 within 1s as a delay 100ms
//! at 100ms  cancel a
//! at 100ms  change reset quota 20/s burst 1
//! ```
//!
//! `quota` starts a new trace on a new key, so a file may contain several traces. A line lists only the expectations that
//! it checks; these must match exactly.
//!
//! | after `at <time>` | operation |
//! |---|---|
//! | `cost <n> [within <time>] [on credit]` | charges `n`, with a wait of at most the time; without one by default |
//! | `reserve <n> [within <time>] [on credit] [as <name>]` | charges `n`, with any wait by default |
//! | `force <n>` | charges `n` regardless of the state |
//! | `peek [<n>]` | checks `n` without a charge |
//! | `cancel <name> [<n>]` | refunds a reservation, or `n` of it |
//! | `change [reset] quota <quota>` | replaces the quota |
//! | `create` | starts as a new limiter instead of a new key |
//!
//! Expectations: `allow`, `delay [<time>]`, `deny [retry <time>, never, until a release]`, and the numbers
//! `remaining <n>`, `reset <time>`, `limit <n>`.

mod parse;

use crate::subject::Subject;
use std::{collections::HashMap, error, fmt};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Outcome, Quota, Receipt, Retry};

/// One line of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceLine {
    /// The line number, from one.
    pub number: usize,
    /// The operation.
    pub op: TraceOp,
}

/// The operation of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceOp {
    /// Starts a new trace.
    Start(Quota),
    /// Decides a demand and compares the decision.
    Check {
        /// The time of the call.
        at: Micros,
        /// The demand.
        demand: Demand,
        /// The name of the receipt, for a later `Cancel`.
        name: Option<String>,
        /// The expected decision.
        expected: TraceExpectation,
    },
    /// Refunds a reservation.
    Cancel {
        /// The time of the refund.
        at: Micros,
        /// The name of the reservation.
        name: String,
        /// The amount; all of it by default.
        cost: Option<u64>,
    },
    /// Replaces the quota.
    Change {
        /// The time of the change.
        at: Micros,
        /// The new quota.
        quota: Quota,
        /// How tokens carry over.
        carry_over: CarryOver,
    },
    /// Starts as a limiter that is created at this time.
    Create {
        /// The time of the creation.
        at: Micros,
    },
}

/// The expected decision; `None` accepts any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceExpectation {
    /// The outcome.
    pub outcome: Option<ExpectedOutcome>,
    /// The remaining tokens.
    pub remaining: Option<u64>,
    /// The time until the key equals a new one.
    pub reset: Option<Micros>,
    /// The largest cost that is granted at once.
    pub limit: Option<u64>,
}

/// The outcome that a line expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutcome {
    /// Exactly this outcome.
    Exact(Outcome),
    /// A grant with any delay.
    AnyDelay,
    /// A denial of any kind.
    AnyDenial,
}

/// Why a trace failed, with the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line number, from one.
    pub line: usize,
    /// The text of the line.
    pub text: String,
    /// The syntax error or the difference.
    pub problem: String,
}

/// Parses a file of traces.
///
/// # Errors
///
/// Returns the first line with a syntax error.
pub fn parse(text: &str) -> Result<Vec<TraceLine>, TraceError> {
    parse::parse_lines(text)
}

/// Runs a file of traces, each on a subject that `open` creates for its quota.
///
/// # Errors
///
/// Returns the first line with a syntax error or an unexpected decision.
pub fn run<S: Subject>(text: &str, mut open: impl FnMut(Quota) -> S) -> Result<(), TraceError> {
    let mut runner: Option<TraceRunner<S>> = None;
    for TraceLine { number, op } in parse(text)? {
        let to_error = |problem: String| TraceError::new(text, number, problem);
        match (op, &mut runner) {
            (TraceOp::Start(quota), _) => {
                runner = Some(TraceRunner { subject: open(quota), receipts: HashMap::new() });
            }
            (_, None) => return Err(to_error("a trace must start with `quota`".into())),
            (op, Some(runner)) => runner.apply(op).map_err(to_error)?,
        }
    }
    Ok(())
}

/// A running trace.
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
                let receipt = self.receipts.get_mut(&name).ok_or(format!("unknown reservation `{name}`"))?;
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
    /// Compares a decision with the expectation.
    ///
    /// # Errors
    ///
    /// Returns a description of the first difference.
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
            ("at 0s cost 1", "line 1: a trace must start with `quota`\n  at 0s cost 1"),
            ("quota 1/s\nat 0s cost 1 deny", "line 2: expected deny, got allow\n  at 0s cost 1 deny"),
            (
                "quota 1/s\nat 0s cost 1 allow remaining 3",
                "line 2: expected remaining 3, got remaining 0\n  at 0s cost 1 allow remaining 3",
            ),
            ("\n\nquota 0/s", "line 3: a rate must not be zero; give a number above zero\n  quota 0/s"),
            ("quota 1/s\nat 0s cancel a", "line 2: unknown reservation `a`\n  at 0s cancel a"),
            ("quota 1/s\nat 0s cost 1 alow", "line 2: unknown expectation `alow`\n  at 0s cost 1 alow"),
            ("quota 1/s\nat 0x cost 1", "line 2: invalid time `0x`\n  at 0x cost 1"),
            ("quota 1/s\nat 0s dance", "line 2: unknown operation `dance`\n  at 0s dance"),
        ] {
            assert_eq!(run(text, CoreModel::new).unwrap_err().to_string(), error);
        }
    }
}
