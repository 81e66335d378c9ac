//! Logs expressions that fail for requests.

use crate::events;
use std::collections::HashMap;
use tidegate_core::Micros;
use tidegate_policy::compile::PolicyGate;

/// Logs failures of expressions, at most once per minute for each rule or route.
#[derive(Default)]
pub(super) struct ExpressionFailures {
    /// The number of logged failures and the time of the last log event, by rule or route.
    logged: HashMap<String, (u64, Micros)>,
}

/// The minimum interval between two log events of one rule or route.
const LOG_INTERVAL: Micros = Micros::from_secs(60);

impl ExpressionFailures {
    pub(super) fn log(&mut self, gate: &PolicyGate, now: Micros) {
        for (part, failures) in gate.expression_failures() {
            let part = part.to_string();
            let (logged, at) = self.logged.get(&part).copied().unwrap_or((0, Micros::ZERO));
            // A new policy counts from zero.
            let logged = if logged > failures { 0 } else { logged };
            let is_due = at == Micros::ZERO || now >= at.saturating_add(LOG_INTERVAL);
            if failures > logged && is_due {
                events::ExpressionFailed { part: &part, failures: failures - logged }.emit();
                self.logged.insert(part, (failures, now));
            }
        }
    }
}
