//! Who is banned: by operators, and by rules.

use super::{
    Office,
    read::{json_answer, missing_rule},
};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_access::{BannedKey, Prefix};
use tidegate_core::{Micros, Utc};
use tidegate_http_server::{ApiError, json_response};
use tidegate_observe::{Banned, NoRoom, Who, shown_keys};
use tidegate_policy::{compile::JsonValue, model::KeyDisplay};
use tidegate_rule::key_hash;
use tidegate_service::decisions::{Confirmation, JsonMembers};

/// Bans of each kind that are told.
const TOLD: usize = 1_000;
/// The longest ban, in seconds.
const LONGEST: u64 = 30 * 86_400;
/// Signs of a reason.
const REASON: usize = 200;
const MEMBERS: [&str; 7] = ["ip", "network", "rule", "key", "seconds", "reason", "confirm"];
/// Networks with fewer bits than these are banned only with a confirmation.
const WIDE_IPV4: u8 = 8;
const WIDE_IPV6: u8 = 16;

impl Office {
    pub(super) fn bans(&self) -> Result<Response, ApiError> {
        let (scene, now) = (self.scene()?, self.observer.clock.now());
        let shown = scene.policy.observe.keys;
        let mut bans = self.observer.bans.json(TOLD, shown, &scene.gate);
        for rule in scene.gate.views() {
            let active = rule.bans().map(|bans| bans.active(TOLD)).unwrap_or_default();
            let shown = shown_keys(shown, rule.has_credential());
            bans.extend(active.iter().map(|ban| of_rule(rule.name(), ban, now, shown)));
        }
        Ok(json_answer(&json!({ "bans": bans })))
    }

    pub(super) fn ban(&self, body: &[u8]) -> Result<Response, ApiError> {
        let members = JsonMembers::parse(body, &MEMBERS)?;
        let seconds = members.whole_number("seconds")?.filter(|seconds| (1..=LONGEST).contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            ApiError::bad(format!("`seconds` says how long; give a number from 1 to {LONGEST}"))
        })?;
        let reason = members.optional_text("reason")?.map(str::to_owned);
        if reason.as_ref().is_some_and(|reason| reason.chars().count() > REASON) {
            return Err(ApiError::bad(format!("the reason is too long; give {REASON} signs at most")));
        }
        let whom = self.whom(&members)?;
        if let Banned::Network(network) = &whom
            && is_wide(network)
            && members.confirmation()? == Confirmation::Missing
        {
            let problem = format!(
                "{network} holds very many clients, you among them perhaps; send `\"confirm\": true` if that is meant"
            );
            return Err(ApiError::new(StatusCode::CONFLICT, problem));
        }
        match self.observer.bans.ban(whom, Micros::from_secs(seconds), reason) {
            Ok(ban) => {
                let scene = self.scene()?;
                let told = ban.json(self.observer.clock.now(), scene.policy.observe.keys, &scene.gate);
                Ok(json_response(StatusCode::CREATED, "application/json", &told))
            }
            Err(NoRoom) => {
                let problem = "there is no room for another ban; lift some, or ban a network";
                Err(ApiError::new(StatusCode::CONFLICT, problem))
            }
        }
    }

    fn whom(&self, members: &JsonMembers<'_>) -> Result<Banned, ApiError> {
        let of = |name: &str| members.optional_text(name);
        match (of("ip")?, of("network")?, members.get("key")) {
            (Some(ip), None, None) => match ip.parse() {
                Ok(ip) => Ok(Banned::client(ip)),
                Err(_) => Err(ApiError::bad("`ip` is not an address; write one, as in `192.0.2.7`")),
            },
            (None, Some(network), None) => match network.parse() {
                Ok(network) => Ok(Banned::Network(network)),
                Err(error) => Err(ApiError::bad(format!("`network`: {error}"))),
            },
            (None, None, Some(key)) => {
                self.refuse_hash(members)?;
                let (name, scene) = (members.text("rule")?, self.scene()?);
                let named = scene.gate.rule_by_name(name).ok_or_else(|| missing_rule(name, &scene))?;
                let key = named.parse_key(Some(key)).map_err(|error| ApiError::bad(error.to_string()))?;
                Ok(Banned::Key { rule: name.into(), key: key.to_string() })
            }
            _ => Err(ApiError::bad("say who: one of `ip`, `network`, or `rule` and `key`")),
        }
    }

    /// Where keys are shown hashed, what was shown is not to be taken for a key: nobody would be found by it.
    pub(super) fn refuse_hash(&self, members: &JsonMembers<'_>) -> Result<(), ApiError> {
        let is_hash = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let scene = self.scene()?;
        let is_credential =
            members.optional_text("rule")?.is_some_and(|rule| scene.gate.has_credential(rule));
        let are_hashed = shown_keys(scene.policy.observe.keys, is_credential) == KeyDisplay::Hashed;
        match members.get("key") {
            Some(JsonValue::Str(key)) if are_hashed && is_hash(key) => Err(ApiError::bad(
                "this is what is shown in place of a key, by which it cannot be found; give the key itself",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn lift(&self, id: &str) -> Result<Response, ApiError> {
        let lifted = self.observer.bans.lift(id).or_else(|| self.lift_of_rule(id));
        match lifted {
            Some(()) => Ok(StatusCode::NO_CONTENT.into_response()),
            None => Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such ban; it may have ended")),
        }
    }

    /// A ban that a rule has made by itself.
    fn lift_of_rule(&self, id: &str) -> Option<()> {
        let scene = self.observer.scene()?;
        scene.gate.views().find_map(|rule| {
            let bans = rule.bans()?;
            let meant = bans.active(TOLD).into_iter().find(|ban| id_of(rule.name(), ban) == id)?;
            let address = meant.key.parse::<std::net::IpAddr>().ok();
            address.and_then(|address| bans.lift(&address)).or_else(|| bans.lift(&*meant.key)).map(drop)
        })
    }
}

fn is_wide(network: &Prefix) -> bool {
    network.bits() < if network.first().is_ipv4() { WIDE_IPV4 } else { WIDE_IPV6 }
}

fn of_rule(rule: &str, ban: &BannedKey, now: Micros, shown: KeyDisplay) -> Value {
    let is_address = ban.key.parse::<std::net::IpAddr>().is_ok();
    json!({
        "id": id_of(rule, ban),
        "by": "rule",
        "kind": if is_address { "ip" } else { "key" },
        "value": Who::of(shown, if is_address { "" } else { rule }, &ban.key).shown(),
        "rule": rule,
        "remaining": ban.remaining.get() as f64 / 1e6,
        "until": Utc::from(now.plus(ban.remaining)).to_string(),
        "times": ban.ban_count,
        "reason": null,
    })
}

fn id_of(rule: &str, ban: &BannedKey) -> String {
    format!("r-{:016x}", key_hash(rule, &ban.key))
}
