//! The data of the view: the last two snapshots, and the order of rules.

use clap::ValueEnum;
use serde_json::Value;
use std::cmp::Reverse;

/// The order of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortOrder {
    /// In the order of the policy
    #[default]
    Policy,
    /// By denials per second
    Denied,
    /// By requests per second
    Requests,
    /// By name
    Name,
}

impl SortOrder {
    /// The next order.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Policy => Self::Denied,
            Self::Denied => Self::Requests,
            Self::Requests => Self::Name,
            Self::Name => Self::Policy,
        }
    }

    /// A short description.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Policy => "policy order",
            Self::Denied => "by denials",
            Self::Requests => "by requests",
            Self::Name => "by name",
        }
    }
}

/// The data of the view.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) current: Value,
    previous: Value,
    pub(crate) keys: Value,
    pub(crate) order: SortOrder,
}

/// One rule with its counts and rates: admitted, delayed, denied, denied in shadow mode.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleRow<'a> {
    pub(crate) rule: &'a Value,
    pub(crate) name: &'a str,
    pub(crate) counts: [u64; 4],
    /// `None` until there are two snapshots.
    pub(crate) rates: Option<[f64; 4]>,
    pub(crate) degraded: f64,
}

const COUNT_NAMES: [&str; 4] = ["admitted", "delayed", "denied", "shadow-denied"];

impl View {
    /// Creates an empty view with this order.
    pub(crate) fn new(order: SortOrder) -> Self {
        Self { order, ..Self::default() }
    }

    /// Adds a snapshot.
    pub(crate) fn add(&mut self, snapshot: Value, keys: Option<Value>) {
        self.previous = std::mem::replace(&mut self.current, snapshot);
        if let Some(keys) = keys {
            self.keys = keys;
        }
    }

    /// Whether rates are available: they need two snapshots of the same process.
    pub(crate) fn has_rates(&self) -> bool {
        self.seconds().is_some()
    }

    /// The rate per second of a counter, which `find` selects in a snapshot.
    pub(crate) fn rate(&self, find: impl Fn(&Value) -> &Value) -> Option<f64> {
        Some(difference(find(&self.current), find(&self.previous)) / self.seconds()?)
    }

    /// The rules, in order.
    pub(crate) fn rows(&self) -> Vec<RuleRow<'_>> {
        let mut rows: Vec<RuleRow<'_>> =
            array_items(&self.current["rules"]).map(|rule| self.row(rule)).collect();
        let sort_key = |row: &RuleRow<'_>, indexes: &[usize]| {
            let rates = row.rates.unwrap_or_default();
            // In thousandths, as integers, which have a total order.
            let rate: f64 = indexes.iter().map(|index| rates[*index]).sum();
            let count: u64 = indexes.iter().map(|index| row.counts[*index]).sum();
            (Reverse((rate * 1e3) as u64), Reverse(count))
        };
        match self.order {
            SortOrder::Policy => {}
            SortOrder::Denied => rows.sort_by_key(|row| sort_key(row, &[2, 3])),
            SortOrder::Requests => rows.sort_by_key(|row| sort_key(row, &[0, 1, 2, 3])),
            SortOrder::Name => rows.sort_by_key(|row| row.name),
        }
        rows
    }

    fn row<'a>(&self, rule: &'a Value) -> RuleRow<'a> {
        let name = rule["name"].as_str().unwrap_or_default();
        let before =
            array_items(&self.previous["rules"]).find(|rule| rule["name"] == name).unwrap_or(&Value::Null);
        let difference = |member: &str| difference(&rule["counts"][member], &before["counts"][member]);
        let seconds = self.seconds();
        RuleRow {
            rule,
            name,
            counts: COUNT_NAMES.map(|member| rule["counts"][member].as_u64().unwrap_or(0)),
            rates: seconds.map(|seconds| COUNT_NAMES.map(|member| difference(member) / seconds)),
            degraded: seconds.map_or(0.0, |seconds| difference("degraded") / seconds),
        }
    }

    /// The time between both snapshots; `None` if there is only one, or if the gateway restarted.
    fn seconds(&self) -> Option<f64> {
        let (now, before) = (self.current["uptime"].as_f64()?, self.previous["uptime"].as_f64()?);
        Some(now - before).filter(|seconds| *seconds > 0.0)
    }
}

/// The items of a list; none if it is not a list.
pub(super) fn array_items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The difference of a counter; zero if it was reset.
fn difference(now: &Value, before: &Value) -> f64 {
    now.as_u64().unwrap_or(0).saturating_sub(before.as_u64().unwrap_or(0)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(uptime: f64, denied: [u64; 2]) -> Value {
        let rule =
            |name: &str, denied: u64| json!({ "name": name, "counts": { "admitted": 10, "denied": denied } });
        json!({ "uptime": uptime, "rules": [rule("b", denied[0]), rule("a", denied[1])] })
    }

    #[test]
    fn rates_are_differences_of_one_process() {
        let mut view = View::default();
        view.add(snapshot(1.0, [0, 100]), None);
        assert_eq!(view.rows()[0].rates, None);
        view.add(snapshot(3.0, [10, 100]), None);
        assert_eq!(view.rows()[0].rates, Some([0.0, 0.0, 5.0, 0.0]));
        view.add(snapshot(0.5, [0, 0]), None);
        assert!(!view.has_rates());
    }

    #[test]
    fn rules_are_sorted_by_order() {
        let mut view = View::default();
        view.add(snapshot(1.0, [0, 100]), None);
        view.add(snapshot(2.0, [1, 100]), None);
        let mut names = Vec::new();
        for _ in 0..4 {
            names.push(view.rows().iter().map(|row| row.name).collect::<String>());
            view.order = view.order.next();
        }
        assert_eq!(names, ["ba", "ba", "ba", "ab"]);
        assert_eq!(view.order, SortOrder::Policy);
    }
}
