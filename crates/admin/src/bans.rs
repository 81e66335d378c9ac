//! Who is banned: by operators, and by rules.

use super::{
    AdminState,
    read::{ok_json, unknown_rule},
};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_access::{BannedKey, Prefix};
use tidegate_core::{Micros, Utc};
use tidegate_http_server::{ApiError, json_response};
use tidegate_observe::{BanLimitReached, BanTarget, KeyLabel, effective_key_display};
use tidegate_policy::{compile::JsonValue, model::KeyDisplay};
use tidegate_rule::key_hash;
use tidegate_service::decisions::{Confirmation, JsonMembers};

/// Bans of each kind that are told.
const MAX_LISTED_BANS: usize = 1_000;
/// The longest ban, in seconds.
const MAX_BAN_SECONDS: u64 = 30 * 86_400;
/// Signs of a reason.
const MAX_REASON_LENGTH: usize = 200;
const FIELDS: [&str; 7] = ["ip", "network", "rule", "key", "seconds", "reason", "confirm"];
/// Networks with fewer bits than these are banned only with a confirmation.
const MIN_IPV4_PREFIX: u8 = 8;
const MIN_IPV6_PREFIX: u8 = 16;

impl AdminState {
    pub(super) fn bans(&self) -> Result<Response, ApiError> {
        let (scene, now) = (self.config()?, self.observer.clock.now());
        let shown = scene.policy.observe.keys;
        let mut bans = self.observer.bans.to_json(MAX_LISTED_BANS, shown, &scene.gate);
        for rule in scene.gate.views() {
            let active = rule.bans().map(|bans| bans.active(MAX_LISTED_BANS)).unwrap_or_default();
            let shown = effective_key_display(shown, rule.has_credential());
            bans.extend(active.iter().map(|ban| rule_ban_json(rule.name(), ban, now, shown)));
        }
        Ok(ok_json(&json!({ "bans": bans })))
    }

    pub(super) fn ban(&self, body: &[u8]) -> Result<Response, ApiError> {
        let members = JsonMembers::parse(body, &FIELDS)?;
        let seconds =
            members.whole_number("seconds")?.filter(|seconds| (1..=MAX_BAN_SECONDS).contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            ApiError::bad_request(format!(
                "`seconds` says how long; give a number from 1 to {MAX_BAN_SECONDS}"
            ))
        })?;
        let reason = members.optional_text("reason")?.map(str::to_owned);
        if reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_REASON_LENGTH) {
            return Err(ApiError::bad_request(format!(
                "the reason is too long; give {MAX_REASON_LENGTH} signs at most"
            )));
        }
        let target = self.parse_target(&members)?;
        if let BanTarget::Network(network) = &target
            && is_wide_network(network)
            && members.confirmation()? == Confirmation::Missing
        {
            let problem = format!(
                "{network} holds very many clients, you among them perhaps; send `\"confirm\": true` if that is meant"
            );
            return Err(ApiError::new(StatusCode::CONFLICT, problem));
        }
        match self.observer.bans.ban(target, Micros::from_secs(seconds), reason) {
            Ok(ban) => {
                let scene = self.config()?;
                let told = ban.to_json(self.observer.clock.now(), scene.policy.observe.keys, &scene.gate);
                Ok(json_response(StatusCode::CREATED, "application/json", &told))
            }
            Err(BanLimitReached) => {
                let problem = "there is no room for another ban; lift some, or ban a network";
                Err(ApiError::new(StatusCode::CONFLICT, problem))
            }
        }
    }

    fn parse_target(&self, members: &JsonMembers<'_>) -> Result<BanTarget, ApiError> {
        let of = |name: &str| members.optional_text(name);
        match (of("ip")?, of("network")?, members.get("key")) {
            (Some(ip), None, None) => match ip.parse() {
                Ok(ip) => Ok(BanTarget::client(ip)),
                Err(_) => Err(ApiError::bad_request("`ip` is not an address; write one, as in `192.0.2.7`")),
            },
            (None, Some(network), None) => match network.parse() {
                Ok(network) => Ok(BanTarget::Network(network)),
                Err(error) => Err(ApiError::bad_request(format!("`network`: {error}"))),
            },
            (None, None, Some(key)) => {
                self.reject_hashed_key(members)?;
                let (name, scene) = (members.text("rule")?, self.config()?);
                let named = scene.gate.rule_by_name(name).ok_or_else(|| unknown_rule(name, &scene))?;
                let key =
                    named.parse_key(Some(key)).map_err(|error| ApiError::bad_request(error.to_string()))?;
                Ok(BanTarget::Key { rule: name.into(), key: key.to_string() })
            }
            _ => Err(ApiError::bad_request("say who: one of `ip`, `network`, or `rule` and `key`")),
        }
    }

    /// Where keys are shown hashed, what was shown is not to be taken for a key: nobody would be found by it.
    pub(super) fn reject_hashed_key(&self, members: &JsonMembers<'_>) -> Result<(), ApiError> {
        let is_hash = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let scene = self.config()?;
        let is_credential =
            members.optional_text("rule")?.is_some_and(|rule| scene.gate.has_credential(rule));
        let are_hashed =
            effective_key_display(scene.policy.observe.keys, is_credential) == KeyDisplay::Hashed;
        match members.get("key") {
            Some(JsonValue::Str(key)) if are_hashed && is_hash(key) => Err(ApiError::bad_request(
                "this is what is shown in place of a key, by which it cannot be found; give the key itself",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn lift_ban(&self, id: &str) -> Result<Response, ApiError> {
        let lifted = self.observer.bans.lift(id).or_else(|| self.lift_rule_ban(id));
        match lifted {
            Some(()) => Ok(StatusCode::NO_CONTENT.into_response()),
            None => Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such ban; it may have ended")),
        }
    }

    /// A ban that a rule has made by itself.
    fn lift_rule_ban(&self, id: &str) -> Option<()> {
        let scene = self.observer.config()?;
        scene.gate.views().find_map(|rule| {
            let bans = rule.bans()?;
            let meant =
                bans.active(MAX_LISTED_BANS).into_iter().find(|ban| rule_ban_id(rule.name(), ban) == id)?;
            let address = meant.key.parse::<std::net::IpAddr>().ok();
            address.and_then(|address| bans.lift(&address)).or_else(|| bans.lift(&*meant.key)).map(drop)
        })
    }
}

fn is_wide_network(network: &Prefix) -> bool {
    network.bits() < if network.first().is_ipv4() { MIN_IPV4_PREFIX } else { MIN_IPV6_PREFIX }
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
        "until": Utc::from(now.plus(ban.remaining)).to_string(),
        "times": ban.ban_count,
        "reason": null,
    })
}

fn rule_ban_id(rule: &str, ban: &BannedKey) -> String {
    format!("r-{:016x}", key_hash(rule, &ban.key))
}
