//! The text of an explanation.

use super::{
    Applicability, AppliedRule, CounterLocation, ExhaustedOutcome, Explanation, ListMatch, PredictedOutcome,
    ResolvedKey, RuleExplanation,
};
use crate::compile::{RejectAction, RejectReason};
use std::fmt;
use tidegate_core::Micros;
use tidegate_limiter::FailureMode;
use tidegate_rule::{Mode, request::MissingKey};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        writeln!(f, "  {}", self.outcome)?;
        self.rules.iter().try_for_each(|rule| rule.fmt(f))
    }
}

impl fmt::Display for PredictedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forwarded { upstream, delay } if delay.is_zero() => write!(f, "forwarded to `{upstream}`"),
            Self::Forwarded { upstream, delay } => {
                write!(f, "forwarded to `{upstream}` after a wait of {}", Micros::from(*delay))
            }
            Self::Responded { response, delay } => {
                match response {
                    RejectAction::Response(answer) => {
                        let location = answer.header("location").map(|location| format!(" {location}"));
                        write!(
                            f,
                            "the gateway responds with {}{}",
                            answer.status(),
                            location.unwrap_or_default()
                        )?;
                    }
                    _ => f.write_str("the gateway closes the connection")?,
                }
                match delay.is_zero() {
                    true => Ok(()),
                    false => write!(f, " after a wait of {}", Micros::from(*delay)),
                }
            }
            Self::Allowed { delay } if delay.is_zero() => f.write_str("allowed"),
            Self::Allowed { delay } => write!(f, "allowed after a wait of {}", Micros::from(*delay)),
            Self::NoRoute => f.write_str("not forwarded: no route matches, 404"),
            Self::Malformed(error) => write!(f, "rejected with {} before any rule: {error}", error.status()),
            Self::Rejected { rule, reason, action } => {
                let reason = match reason {
                    RejectReason::Limited => "quota exceeded",
                    RejectReason::QueueFull => "queue full",
                    RejectReason::StoreUnavailable => "store unavailable",
                    RejectReason::NoKey => "missing key",
                    RejectReason::Unauthenticated => "no valid credential",
                    RejectReason::DenyListed => "client denied",
                    RejectReason::Banned => "client banned",
                    RejectReason::Overloaded => "overloaded",
                    RejectReason::FeatureOff => "feature off",
                };
                write!(
                    f,
                    "rejected by rule `{rule}` ({reason}): {}",
                    ExhaustedOutcome::Rejected(action.clone())
                )
            }
        }
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.applicability {
            Applicability::Mismatch(mismatch) => {
                writeln!(f, "rule `{}` does not apply: {mismatch}", self.rule)
            }
            Applicability::Off => writeln!(f, "rule `{}` is off", self.rule),
            Applicability::Applies(applied) => write!(f, "rule `{}` applies\n{applied}", self.rule),
        }
    }
}

impl fmt::Display for AppliedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            writeln!(f, "  path     {path}")?;
        }
        match &self.key {
            ResolvedKey::Key(key) if key.is_empty() => writeln!(f, "  key      all requests together")?,
            ResolvedKey::Key(key) => writeln!(f, "  key      {}", key.escape_debug())?,
            ResolvedKey::Address(key) => {
                let address = key.rsplit('?').next().unwrap_or(key);
                writeln!(f, "  key      missing: counted by the address {}", address.escape_debug())?;
            }
            ResolvedKey::Missing(MissingKey::Shared | MissingKey::Ip) => {
                writeln!(f, "  key      missing: counted together with all other requests without it")?;
            }
            ResolvedKey::Missing(MissingKey::Skip) => {
                writeln!(f, "  key      missing: the rule is skipped")?;
            }
            ResolvedKey::Missing(MissingKey::Reject) => {
                writeln!(f, "  key      missing: rejected with 400")?;
            }
        }
        writeln!(f, "  mode     {}", self.mode)?;
        if let Some(tier) = &self.tier {
            writeln!(f, "  tier     {tier}")?;
        }
        match &self.list_match {
            None => {}
            Some(ListMatch::Allowed) => {
                return writeln!(f, "  lists    allowed: no other limit of this rule applies");
            }
            Some(ListMatch::Denied) if self.mode == Mode::Enforce => return writeln!(f, "  lists    denied"),
            Some(ListMatch::Denied) => writeln!(f, "  lists    denied, only recorded")?,
            Some(ListMatch::Unlisted) => writeln!(f, "  lists    no match")?,
        }
        if !self.quotas.is_empty() {
            writeln!(f, "  cost     {}", self.cost)?;
            writeln!(f, "  counted  {}", self.counter_location)?;
        }
        for quota in &self.quotas {
            match quota.declared {
                Some(declared) => {
                    writeln!(f, "  quota    {} by the schedule, {declared} without it", quota.quota)?;
                }
                None => writeln!(f, "  quota    {}", quota.quota)?,
            }
            writeln!(f, "    bound  {}", quota.bound)?;
            writeln!(f, "    over   {}", quota.on_exhausted)?;
        }
        self.details.iter().try_for_each(|(key, text)| writeln!(f, "  {key:<8} {text}"))
    }
}

impl fmt::Display for CounterLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure_mode = match self {
            Self::Memory => return f.write_str("in memory: the bound holds for each process"),
            Self::DefaultStore(failure_mode) => {
                f.write_str("in the default store")?;
                failure_mode
            }
            Self::Store(name, failure_mode) => {
                write!(f, "in the store `{name}`")?;
                failure_mode
            }
        };
        f.write_str(": the bound holds for all processes together; while it is unavailable ")?;
        match failure_mode {
            FailureMode::Open => {
                f.write_str("all requests are admitted, and so are requests whose decision misses its deadline: no bound holds")
            }
            FailureMode::Closed => f.write_str("all requests are denied"),
            FailureMode::Local { nodes: 1 } => f.write_str(
                "each process counts its own requests: at worst the bound times the number of processes",
            ),
            FailureMode::Local { nodes } => write!(
                f,
                "each of {nodes} processes admits its share from zero, at least 1: at worst the bound plus all shares"
            ),
        }
    }
}

impl fmt::Display for ExhaustedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shadowed => f.write_str("admitted, and recorded"),
            Self::Delayed(wait) => write!(f, "waits {}", Micros::from(*wait)),
            Self::Rejected(RejectAction::Drop) => f.write_str("the connection is closed"),
            Self::Rejected(RejectAction::Upstream(name)) => write!(f, "handled by `{name}`"),
            Self::Rejected(RejectAction::Response(answer)) => {
                write!(f, "{}", answer.status())?;
                for name in ["location", "retry-after", "content-type"] {
                    if let Some(value) = answer.header(name) {
                        write!(f, ", {name}: {value}")?;
                    }
                }
                Ok(())
            }
        }
    }
}
