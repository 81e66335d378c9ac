//! Expressions that fail for requests, in the log.

use std::collections::HashMap;
use tidegate_core::Micros;
use tidegate_policy::compile::PolicyGate;

/// Logs failures of expressions, at most once a minute for each rule or route.
#[derive(Default)]
pub(super) struct ExpressionFailures {
    /// By rule or route: how many were logged, and when.
    logged: HashMap<String, (u64, Micros)>,
}

/// How often one rule or route is logged.
const LOG_INTERVAL: Micros = Micros::from_secs(60);

impl ExpressionFailures {
    pub(super) fn log(&mut self, gate: &PolicyGate, now: Micros) {
        for (part, failures) in gate.expression_failures() {
            let part = part.to_string();
            let (logged, at) = self.logged.get(&part).copied().unwrap_or((0, Micros::ZERO));
            // A new policy counts from zero.
            let logged = if logged > failures { 0 } else { logged };
            let is_due = at == Micros::ZERO || now >= at.plus(LOG_INTERVAL);
            if failures > logged && is_due {
                tracing::warn!(
                    in = part,
                    failures = failures - logged,
                    "expression failed; a rule applies then, a route does not",
                );
                self.logged.insert(part, (failures, now));
            }
        }
    }
}
