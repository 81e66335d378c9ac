//! Bans by operators and by rules.

use super::{
    AdminState, events,
    read::{ok_json, unknown_rule},
};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_access::{BannedKey, Prefix};
use tidegate_core::{Micros, Utc};
use tidegate_http_server::{ApiError, Operator, json_response};
use tidegate_observe::{BanLimitReached, BanNote, BanTarget, KeyLabel, effective_key_display};
use tidegate_policy::{compile::JsonValue, model::KeyDisplay};
use tidegate_rule::key_hash;
use tidegate_service::decisions::{Confirmation, JsonMembers};

/// The maximum number of listed bans of each kind.
const MAX_LISTED_BANS: usize = 1_000;
/// The longest ban, in seconds.
const MAX_BAN_SECONDS: u64 = 30 * 86_400;
/// The maximum length of a reason, in characters.
const MAX_REASON_LENGTH: usize = 200;
const FIELDS: [&str; 7] = ["ip", "network", "rule", "key", "seconds", "reason", "confirm"];
/// Networks with a shorter prefix are banned only with a confirmation.
const MIN_IPV4_PREFIX: u8 = 8;
const MIN_IPV6_PREFIX: u8 = 16;

impl AdminState {
    pub(super) fn bans(&self) -> Result<Response, ApiError> {
        let (config, now) = (self.config()?, self.observer.clock.now());
        let shown = config.policy.observe.keys;
        let mut bans = self.observer.bans.to_json(MAX_LISTED_BANS, shown, &config.gate);
        for rule in config.gate.views() {
            let active = rule.bans().map(|bans| bans.active(MAX_LISTED_BANS)).unwrap_or_default();
            let shown = effective_key_display(shown, rule.has_credential());
            bans.extend(active.iter().map(|ban| rule_ban_json(rule.name(), ban, now, shown)));
        }
        Ok(ok_json(&json!({ "bans": bans })))
    }

    pub(super) fn ban(&self, operator: &Operator, body: &[u8]) -> Result<Response, ApiError> {
        let members = JsonMembers::parse(body, &FIELDS)?;
        let seconds =
            members.whole_number("seconds")?.filter(|seconds| (1..=MAX_BAN_SECONDS).contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            ApiError::bad_request(format!("`seconds` must be a number from 1 to {MAX_BAN_SECONDS}"))
        })?;
        let reason = parse_reason(&members)?;
        let target = self.parse_target(&members)?;
        if let BanTarget::Network(network) = &target
            && is_wide_network(network)
            && members.confirmation()? == Confirmation::Missing
        {
            let problem = format!(
                "{network} contains very many clients, maybe your own; send `\"confirm\": true` to ban it anyway"
            );
            return Err(ApiError::new(StatusCode::CONFLICT, problem));
        }
        let author = operator.name.clone();
        match self.observer.bans.ban(target, Micros::from_secs(seconds), BanNote { author, reason }) {
            Ok(ban) => {
                let config = self.config()?;
                let created =
                    ban.to_json(self.observer.clock.now(), config.policy.observe.keys, &config.gate);
                events::BanCreated { ban: &created }.emit();
                Ok(json_response(StatusCode::CREATED, "application/json", &created))
            }
            Err(BanLimitReached) => {
                let problem = "ban limit reached; lift some bans, or ban a network";
                Err(ApiError::new(StatusCode::CONFLICT, problem))
            }
        }
    }

    fn parse_target(&self, members: &JsonMembers<'_>) -> Result<BanTarget, ApiError> {
        let of = |name: &str| members.optional_text(name);
        match (of("ip")?, of("network")?, members.get("key")) {
            (Some(ip), None, None) => match ip.parse() {
                Ok(ip) => Ok(BanTarget::client(ip)),
                Err(_) => Err(ApiError::bad_request("`ip` is not an address; use the form `192.0.2.7`")),
            },
            (None, Some(network), None) => match network.parse() {
                Ok(network) => Ok(BanTarget::Network(network)),
                Err(error) => Err(ApiError::bad_request(format!("`network`: {error}"))),
            },
            (None, None, Some(key)) => {
                self.reject_hashed_key(members)?;
                let (name, config) = (members.text("rule")?, self.config()?);
                let named = config.gate.rule_by_name(name).ok_or_else(|| unknown_rule(name, &config))?;
                let key =
                    named.parse_key(Some(key)).map_err(|error| ApiError::bad_request(error.to_string()))?;
                Ok(BanTarget::Key { rule: name.into(), key: key.to_string() })
            }
            _ => {
                Err(ApiError::bad_request("missing target; send one of `ip`, `network`, or `rule` and `key`"))
            }
        }
    }

    /// Rejects a displayed hash in place of a key, because it would match no client.
    pub(super) fn reject_hashed_key(&self, members: &JsonMembers<'_>) -> Result<(), ApiError> {
        let is_hash = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let config = self.config()?;
        let is_credential =
            members.optional_text("rule")?.is_some_and(|rule| config.gate.has_credential(rule));
        let are_hashed =
            effective_key_display(config.policy.observe.keys, is_credential) == KeyDisplay::Hashed;
        match members.get("key") {
            Some(JsonValue::Str(key)) if are_hashed && is_hash(key) => {
                Err(ApiError::bad_request("`key` is the hash of a key; send the key itself"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn lift_ban(&self, operator: &Operator, id: &str) -> Result<Response, ApiError> {
        let lifted = self.observer.bans.lift(id).or_else(|| self.lift_rule_ban(id));
        match lifted {
            Some(()) => {
                events::BanLifted { id, author: &operator.name }.emit();
                Ok(StatusCode::NO_CONTENT.into_response())
            }
            None => Err(ApiError::new(StatusCode::NOT_FOUND, "no such ban; it may have expired")),
        }
    }

    /// Lifts a ban that a rule made.
    fn lift_rule_ban(&self, id: &str) -> Option<()> {
        let config = self.observer.config()?;
        config.gate.views().find_map(|rule| {
            let bans = rule.bans()?;
            let found =
                bans.active(MAX_LISTED_BANS).into_iter().find(|ban| rule_ban_id(rule.name(), ban) == id)?;
            let address = found.key.parse::<std::net::IpAddr>().ok();
            address.and_then(|address| bans.lift(&address)).or_else(|| bans.lift(&*found.key)).map(drop)
        })
    }
}

/// The reason of a change by an operator.
pub(super) fn parse_reason(members: &JsonMembers<'_>) -> Result<Option<String>, ApiError> {
    match members.optional_text("reason")? {
        Some(reason) if reason.chars().count() > MAX_REASON_LENGTH => Err(ApiError::bad_request(format!(
            "`reason` is too long; use at most {MAX_REASON_LENGTH} characters"
        ))),
        reason => Ok(reason.map(str::to_owned)),
    }
}

fn is_wide_network(network: &Prefix) -> bool {
    network.prefix_len() < if network.network_address().is_ipv4() { MIN_IPV4_PREFIX } else { MIN_IPV6_PREFIX }
}

fn rule_ban_json(rule: &str, ban: &BannedKey, now: Micros, shown: KeyDisplay) -> Value {
    let is_address = ban.key.parse::<std::net::IpAddr>().is_ok();
    json!({
        "id": rule_ban_id(rule, ban),
        "by": "rule",
        "kind": if is_address { "ip" } else { "key" },
        "value": KeyLabel::new(shown, if is_address { "" } else { rule }, &ban.key).text(),
        "rule": rule,
        "remaining": ban.remaining.get() as f64 / 1e6,
        "until": Utc::from(now.saturating_add(ban.remaining)).to_string(),
        "ban-count": ban.ban_count,
        "author": null,
        "reason": null,
    })
}

fn rule_ban_id(rule: &str, ban: &BannedKey) -> String {
    format!("r-{:016x}", key_hash(rule, &ban.key))
}
