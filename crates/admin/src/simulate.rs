//! `/api/v1/simulate`: the decisions of a quota for a list of arrivals, without any effect.

use super::{AdminState, read::ok_json};
use axum::response::Response;
use serde_json::{Value, json};
use std::cmp::Reverse;
use tidegate_core::{Decision, Demand, Effect, Micros, Outcome, Quota, Retry};
use tidegate_http_server::ApiError;
use tidegate_observe::quota_json;
use tidegate_service::decisions::JsonMembers;
use tidegate_simulation::{SimulatedQuota, SimulatedRequest};

/// Limits of one simulation: arrivals, quotas, and words of state per quota.
const MAX_ARRIVALS: usize = 10_000;
const MAX_QUOTAS: usize = 8;
const MAX_STATE_LEN: usize = 1 << 16;
/// The latest arrival, in seconds: about 30 years.
const MAX_SECONDS: f64 = 1e9;
const FIELDS: [&str; 4] = ["quota", "arrivals", "wait", "hold"];

const OUTCOME_NAMES: [&str; 3] = ["admitted", "delayed", "denied"];

impl AdminState {
    /// Simulates the arrivals, and responds with a decision for each.
    pub(super) fn simulate(body: &[u8]) -> Result<Response, ApiError> {
        let members = JsonMembers::parse(body, &FIELDS)?;
        let member = |name: &str| members.get(name).map(Value::from);
        let quotas = parse_quotas(member("quota").as_ref())?;
        let arrivals = parse_arrivals(member("arrivals").as_ref())?;
        let length = |name: &str, default: f64| match member(name) {
            None | Some(Value::Null) => micros(default, name),
            Some(value) => {
                value.as_f64().ok_or_else(|| seconds_error(name)).and_then(|number| micros(number, name))
            }
        };
        let (wait, hold) = (length("wait", 0.0)?, length("hold", 1.0)?);
        Ok(ok_json(&run_simulation(&quotas, &arrivals, wait, hold)))
    }
}

fn parse_quotas(value: Option<&Value>) -> Result<Vec<Quota>, ApiError> {
    let texts = match value {
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if texts.is_empty() || texts.len() > MAX_QUOTAS {
        let problem =
            format!("`quota` must be a text, or a list of at most {MAX_QUOTAS}, as in `5/s burst 10`");
        return Err(ApiError::bad_request(problem));
    }
    let read = |text: &str| {
        let quota: Quota =
            text.parse().map_err(|error| ApiError::bad_request(format!("`quota`: {error}")))?;
        match quota.state_len() > MAX_STATE_LEN {
            true => {
                Err(ApiError::bad_request(format!("`{quota}` needs too much memory; use a smaller limit")))
            }
            false => Ok(quota),
        }
    };
    texts.into_iter().map(read).collect()
}

fn parse_arrivals(value: Option<&Value>) -> Result<Vec<SimulatedRequest>, ApiError> {
    let list = value.and_then(Value::as_array).ok_or_else(|| {
        ApiError::bad_request(
            "`arrivals` must be a list of seconds or objects, as in [0, 0.1, {\"at\": 0.2, \"cost\": 3}]",
        )
    })?;
    if list.len() > MAX_ARRIVALS {
        return Err(ApiError::bad_request(format!(
            "too many arrivals: {}; send at most {MAX_ARRIVALS}",
            list.len()
        )));
    }
    let read = |(index, value): (usize, &Value)| {
        let name = format!("arrivals[{index}]");
        let at = value.as_f64().or_else(|| value["at"].as_f64()).ok_or_else(|| seconds_error(&name))?;
        let cost = match &value["cost"] {
            Value::Null => 1,
            cost => cost.as_u64().filter(|cost| *cost < 1 << 32).ok_or_else(|| {
                ApiError::bad_request(format!("`{name}.cost` must be an integer from 0 to 2^32 - 1"))
            })?,
        };
        Ok(SimulatedRequest { at: micros(at, &name)?, cost })
    };
    let mut arrivals = list.iter().enumerate().map(read).collect::<Result<Vec<_>, ApiError>>()?;
    arrivals.sort_by_key(|arrival| arrival.at);
    Ok(arrivals)
}

fn seconds_error(name: &str) -> ApiError {
    ApiError::bad_request(format!("`{name}` must be a number of seconds, as in 0.25"))
}

fn micros(seconds: f64, name: &str) -> Result<Micros, ApiError> {
    match (0.0..=MAX_SECONDS).contains(&seconds) {
        true => Ok(Micros::new((seconds * 1e6).round() as u64)),
        false => {
            Err(ApiError::bad_request(format!("`{name}` is {seconds}; use seconds from 0 to {MAX_SECONDS}")))
        }
    }
}

fn run_simulation(quotas: &[Quota], arrivals: &[SimulatedRequest], wait: Micros, hold: Micros) -> Value {
    let mut all: Vec<_> = quotas.iter().map(|quota| SimulatedQuota::new(*quota, hold)).collect();
    let mut counts = [0_u64; 3];
    let mut decisions = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        let (index, decision) = decide(&mut all, *arrival, wait);
        let (outcome, waits, retry) = match decision.outcome() {
            Outcome::Allow => (0, Micros::ZERO, None),
            Outcome::Delay(wait) => (1, wait, None),
            Outcome::Deny(Retry::After(wait)) => (2, Micros::ZERO, Some(wait)),
            Outcome::Deny(Retry::Never | Retry::WhenReleased) => (2, Micros::ZERO, None),
        };
        counts[outcome] += 1;
        decisions.push(json!({
            "at": seconds(arrival.at),
            "cost": arrival.cost,
            "outcome": OUTCOME_NAMES[outcome],
            "wait": seconds(waits),
            "retry-after": retry.map(seconds),
            "limit": decision.limit(),
            "remaining": decision.remaining(),
            "quota": index,
        }));
    }
    json!({
        "quotas": quotas.iter().map(quota_json).collect::<Vec<_>>(),
        "admitted": counts[0],
        "delayed": counts[1],
        "denied": counts[2],
        "decisions": decisions,
    })
}

/// Checks all quotas, and charges all or none. Returns the first that denied, or the most restrictive one.
fn decide(all: &mut [SimulatedQuota], arrival: SimulatedRequest, wait: Micros) -> (usize, Decision) {
    let probe = Demand { effect: Effect::Peek, ..Demand::with_max_wait(arrival.cost, wait) };
    let mut denied = None;
    for (index, one) in all.iter_mut().enumerate() {
        let decision = one.decide(arrival.at, probe);
        if !decision.is_granted() && denied.is_none() {
            denied = Some((index, decision));
        }
    }
    if let Some(denied) = denied {
        return denied;
    }
    let demand = Demand::with_max_wait(arrival.cost, wait);
    let granted = all.iter_mut().map(|one| one.decide(arrival.at, demand)).enumerate();
    let longest = |decision: &Decision| match decision.outcome() {
        Outcome::Delay(wait) => wait,
        _ => Micros::ZERO,
    };
    let binds = |(_, decision): &(usize, Decision)| (Reverse(longest(decision)), decision.remaining());
    granted.min_by_key(binds).unwrap_or((0, Decision::unlimited()))
}

fn seconds(time: Micros) -> f64 {
    time.get() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(quota: &[&str], arrivals: &Value, wait: f64) -> String {
        let quotas = parse_quotas(Some(&json!(quota))).unwrap();
        let arrivals = super::parse_arrivals(Some(arrivals)).unwrap();
        let result = run_simulation(&quotas, &arrivals, micros(wait, "wait").unwrap(), Micros::from_secs(1));
        let each = result["decisions"].as_array().unwrap().iter();
        each.map(|decision| decision["outcome"].as_str().unwrap()[..3].to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn simulation_matches_quota_decisions() {
        assert_eq!(outcomes(&["1/s burst 2"], &json!([0, 0, 0, 1, 1]), 0.0), "adm adm den adm den");
        assert_eq!(outcomes(&["1/s leaky-bucket queue 2"], &json!([0, 0, 0]), 9.0), "adm del del");
        assert_eq!(outcomes(&["5/s burst 5", "1/min fixed-window"], &json!([0, 1, 61]), 0.0), "adm den adm");
        assert_eq!(outcomes(&["1 at once"], &json!([0, 0.5, 1]), 0.0), "adm den adm");
        assert_eq!(outcomes(&["3/s burst 3"], &json!([{"at": 1, "cost": 3}, 0.9]), 0.0), "adm den");
    }

    #[test]
    fn invalid_simulation_is_rejected() {
        for (quota, arrivals, part) in [
            (json!("5/mni"), json!([0]), "`quota`"),
            (json!([]), json!([0]), "`quota` must be"),
            (json!("5/s"), json!(0), "`arrivals` must be"),
            (json!("5/s"), json!([-1]), "`arrivals[0]` is -1"),
            (json!("5/s"), json!([{ "at": 0, "cost": -1 }]), "`arrivals[0].cost`"),
            (json!("100000/s sliding-log"), json!([0]), "too much memory"),
        ] {
            let body = json!({ "quota": quota, "arrivals": arrivals }).to_string();
            let problem = AdminState::simulate(body.as_bytes()).unwrap_err();
            assert!(problem.detail.contains(part), "{}", problem.detail);
        }
    }
}
