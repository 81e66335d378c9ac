//! Variables: the parts of a zone key, and the requests for which it is empty.
//!
//! nginx does not count a request whose zone key is empty. Configurations use that for allow lists:
//!
//! ```nginx
//! geo $limit { default 1; 10.0.0.0/8 0; }
//! map $limit $key { 0 ""; 1 $binary_remote_addr; }
//! limit_req_zone $key zone=one:10m rate=10r/s;
//! ```

use super::{
    Importer,
    lexer::Directive,
    match_set::{exclude, split_levels},
};
use crate::LossKind;
use std::collections::BTreeMap;
use tidegate_access::Prefix;
use tidegate_policy::model::{AddressList, Expression, Glob, KeyPart, KeySpec, Match, Network, ValueGlobs};
use tidegate_rule::request::MissingKey;

/// `geo` and `map` blocks, by the names of their variables.
#[derive(Debug, Default)]
pub(super) struct NginxVariables {
    geos: BTreeMap<String, GeoBlock>,
    maps: BTreeMap<String, MapBlock>,
}

/// `geo $name { default a; 10.0.0.0/8 b; }`
#[derive(Debug, Default)]
struct GeoBlock {
    default: String,
    networks: Vec<(Prefix, String)>,
    /// The part that is not supported, if any.
    unsupported: Option<String>,
}

/// `map source $name { default a; x b; }`
#[derive(Debug, Default)]
struct MapBlock {
    source: String,
    default: String,
    values: Vec<(String, String)>,
    unsupported: Option<String>,
}

/// How a zone key is expressed in a policy: the key and the requests that it applies to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ZoneKey {
    pub(super) key: KeySpec,
    pub(super) missing: MissingKey,
    /// The zone counts only requests that match this.
    pub(super) condition: Option<Match>,
    /// The zone does not count requests from these networks; the list has this name.
    pub(super) allow: Option<(String, AddressList)>,
    /// Whether each server has its own counter.
    pub(super) scope: CountScope,
    /// Differences to report.
    pub(super) notes: Vec<KeyNote>,
}

/// A difference to nginx, and whether it reduces protection.
pub(super) type KeyNote = (LossKind, &'static str);

/// Whether each server has its own counter, which a key with `$server_name` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountScope {
    Shared,
    PerServer,
}

const CASE_NOTE: KeyNote =
    (LossKind::Cosmetic, "nginx compares `map` values case-insensitively; a policy is case-sensitive");
/// Used where values in another case would not be limited.
const CASE_PROTECTION_NOTE: KeyNote = (LossKind::Protection, CASE_NOTE.1);

impl NginxVariables {
    /// `geo [$address] $name { … }`
    pub(super) fn add_geo(&mut self, directive: &Directive) {
        let mut geo = GeoBlock::default();
        let name = match &directive.args[..] {
            [name] => &name.text,
            [address, name] => {
                if address.text != "$remote_addr" {
                    geo.unsupported = Some(format!("`geo` by `{}`", address.text));
                }
                &name.text
            }
            _ => return,
        };
        for entry in directive.block.iter().flatten() {
            let value = entry.arg(0).unwrap_or_default().to_owned();
            match entry.name.as_str() {
                "default" => geo.default = value,
                "ranges" | "proxy" | "proxy_recursive" | "delete" => {
                    geo.unsupported.get_or_insert_with(|| format!("`{}` in a `geo`", entry.name));
                }
                network => match network.parse() {
                    Ok(network) => geo.networks.push((network, value)),
                    Err(_) => _ = geo.unsupported.get_or_insert_with(|| format!("`{network}` in a `geo`")),
                },
            }
        }
        self.geos.insert(strip_dollar(name), geo);
    }

    /// `map source $name { … }`
    pub(super) fn add_map(&mut self, directive: &Directive) {
        let [source, name] = &directive.args[..] else { return };
        let mut map = MapBlock { source: source.text.clone(), ..MapBlock::default() };
        for entry in directive.block.iter().flatten() {
            let value = entry.arg(0).unwrap_or_default().to_owned();
            match entry.name.as_str() {
                "default" => map.default = value,
                "volatile" => {}
                "hostnames" => map.unsupported = Some("`hostnames` in a `map`".to_owned()),
                pattern if pattern.starts_with('~') => {
                    map.unsupported = Some("a regular expression in a `map`".to_owned());
                }
                // A backslash escapes the next character.
                value_of => {
                    let literal = value_of.strip_prefix('\\').unwrap_or(value_of);
                    map.values.push((literal.to_owned(), value));
                }
            }
        }
        self.maps.insert(strip_dollar(&name.text), map);
    }

    /// Resolves a zone key. The error is the part that a policy cannot express.
    pub(super) fn resolve_key(&self, text: &str) -> Result<ZoneKey, String> {
        let tokens = tokenize(text);
        if let [VariableToken::Variable(name)] = &tokens[..] {
            if let Some(geo) = self.geos.get(name) {
                return geo.resolve_key(name, str::to_owned);
            }
            if let Some(map) = self.maps.get(name) {
                return self.resolve_map_key(name, map);
            }
        }
        let known =
            |token: &&VariableToken| matches!(token, VariableToken::Variable(name) if self.is_known(name));
        match tokens.iter().find(known) {
            Some(_) => Err("a key that combines a `geo` or `map` with other parts".to_owned()),
            None => resolve_plain_key(&tokens),
        }
    }

    /// Matches requests for which a variable is neither empty nor `0`; `None` if a policy cannot express that.
    pub(super) fn match_true(&self, name: &str) -> Option<Match> {
        if self.is_known(name) {
            return self.match_value(name, &|value| !matches!(value, "" | "0"));
        }
        let mut matching = match_one_of(name, &["*"]).ok()?;
        exclude(&mut matching, match_one_of(name, &["0"]).ok()?);
        Some(matching)
    }

    /// Matches requests for which a variable has this value.
    pub(super) fn match_equals(&self, name: &str, value: &str) -> Option<Match> {
        if self.is_known(name) {
            return self.match_value(name, &|known| known == value);
        }
        match value {
            "" => {
                let mut matching = Match::default();
                exclude(&mut matching, match_one_of(name, &["*"]).ok()?);
                Some(matching)
            }
            value if value.contains('*') => None,
            value => match_one_of(name, &[value]).ok(),
        }
    }

    /// Whether a `geo` or a `map` defines the variable.
    fn is_known(&self, name: &str) -> bool {
        self.geos.contains_key(name) || self.maps.contains_key(name)
    }

    /// Matches requests for which a `geo` or a `map` returns a value that satisfies the predicate.
    fn match_value(&self, name: &str, is_match: &dyn Fn(&str) -> bool) -> Option<Match> {
        if let Some(geo) = self.geos.get(name) {
            return geo.match_value(is_match);
        }
        let map = self.maps.get(name).filter(|map| map.unsupported.is_none())?;
        let [VariableToken::Variable(source)] = &tokenize(&map.source)[..] else { return None };
        if let Some(geo) = self.geos.get(source) {
            return geo.match_value(&|value| is_match(map.lookup(value)));
        }
        // A policy compares values case-sensitively, so a match could miss values in another case.
        let is_safe = is_match(&map.default)
            || source == "request_method" && map.values.iter().any(|(_, value)| is_match(value));
        is_safe.then(|| match_by_value(source, map, is_match).ok()).flatten()
    }

    fn resolve_map_key(&self, name: &str, map: &MapBlock) -> Result<ZoneKey, String> {
        if let Some(unsupported) = &map.unsupported {
            return Err(unsupported.clone());
        }
        let [VariableToken::Variable(source)] = &tokenize(&map.source)[..] else {
            return Err(format!("a `map` by `{}`", map.source));
        };
        if let Some(geo) = self.geos.get(source) {
            return geo.resolve_key(source, |value| map.lookup(value).to_owned());
        }
        if self.maps.contains_key(source) {
            return Err(format!("`${name}` as a `map` of a `map`"));
        }
        resolve_key_by_value(source, map)
    }
}

impl MapBlock {
    fn lookup(&self, value: &str) -> &str {
        let found = self.values.iter().find(|(known, _)| known.eq_ignore_ascii_case(value));
        found.map_or(&self.default, |(_, outcome)| outcome)
    }
}

impl Importer<'_> {
    pub(super) fn read_variable(&mut self, directive: &Directive) {
        match directive.name.as_str() {
            "geo" => self.variables.add_geo(directive),
            _ => self.variables.add_map(directive),
        }
    }
}

impl GeoBlock {
    /// Resolves a key whose values `outcome` maps to the final keys.
    fn resolve_key(&self, name: &str, outcome: impl Fn(&str) -> String) -> Result<ZoneKey, String> {
        if let Some(unsupported) = &self.unsupported {
            return Err(unsupported.clone());
        }
        let outcomes: Vec<String> = self.networks.iter().map(|(_, value)| outcome(value)).collect();
        let default = outcome(&self.default);
        let mut zone_key = single_key(outcomes.iter().chain([&default]))?;
        let (levels, is_limited) = self.levels(&|value| !outcome(value).is_empty());
        match (&levels[..], is_limited) {
            ([], _) => {}
            ([allowed], true) => {
                let list = AddressList { networks: allowed.clone(), files: Vec::new() };
                zone_key.allow = Some((name.to_owned(), list));
            }
            (levels, is_limited) => zone_key.condition = nested_match(levels, is_limited),
        }
        Ok(zone_key)
    }

    /// Matches requests from networks whose value satisfies the predicate; `None` if there are none.
    fn match_value(&self, is_match: &dyn Fn(&str) -> bool) -> Option<Match> {
        if self.unsupported.is_some() {
            return None;
        }
        let (levels, around) = self.levels(is_match);
        match levels.is_empty() {
            true => around.then(Match::default),
            false => nested_match(&levels, around),
        }
    }

    /// Returns the networks that differ from the enclosing network, level by level, and the default.
    fn levels(&self, is_match: &dyn Fn(&str) -> bool) -> (Vec<Vec<Prefix>>, bool) {
        // nginx uses the last of two entries for the same network.
        let networks: BTreeMap<_, _> = self
            .networks
            .iter()
            .map(|(net, value)| ((net.network_address(), net.prefix_len()), (*net, value)))
            .collect();
        let items: Vec<(Prefix, bool)> =
            networks.into_values().map(|(network, value)| (network, is_match(value))).collect();
        let around = is_match(&self.default);
        let levels =
            split_levels(&items, around, |network| (network.network_address(), network.prefix_len()), covers);
        let networks = |indexes: &Vec<usize>| indexes.iter().map(|index| items[*index].0).collect();
        (levels.iter().map(networks).collect(), around)
    }
}

/// Builds nested matches from the innermost level outwards: these networks, except those, except …
fn nested_match(levels: &[Vec<Prefix>], around: bool) -> Option<Match> {
    let nested = levels.iter().rev().fold(None, |not: Option<Match>, level| {
        let clients = level.iter().copied().map(Network::Prefix).collect();
        Some(Match { clients, not: not.map(Box::new), ..Match::default() })
    });
    match around {
        false => nested,
        true => nested.map(|not| Match { not: Some(Box::new(not)), ..Match::default() }),
    }
}

fn covers(outer: &Prefix, inner: &Prefix) -> bool {
    outer.network_address().is_ipv4() == inner.network_address().is_ipv4()
        && outer.prefix_len() < inner.prefix_len()
        && outer.contains(inner.network_address())
}

/// Returns the only key that is not empty.
fn single_key<'o>(outcomes: impl Iterator<Item = &'o String>) -> Result<ZoneKey, String> {
    let mut keys: Vec<&String> = outcomes.filter(|outcome| !outcome.is_empty()).collect();
    keys.sort();
    keys.dedup();
    match keys[..] {
        [] => Err("a key that is empty for all requests".to_owned()),
        [key] => resolve_plain_key(&tokenize(key)),
        _ => Err("a `map` to several keys".to_owned()),
    }
}

/// Resolves a key of a `map` whose source is a value of the request.
fn resolve_key_by_value(source: &str, map: &MapBlock) -> Result<ZoneKey, String> {
    let outcomes = map.values.iter().map(|(_, outcome)| outcome);
    let mut zone_key = single_key(outcomes.chain([&map.default]))?;
    let only = match_by_value(source, map, &|outcome| !outcome.is_empty())?;
    let is_plain = |(value, outcome): &&(String, String)| {
        !value.is_empty() && outcome.is_empty() != map.default.is_empty()
    };
    if map.values.iter().any(|entry| is_plain(&entry)) && source != "request_method" {
        zone_key.notes.push(if map.default.is_empty() { CASE_PROTECTION_NOTE } else { CASE_NOTE });
    }
    zone_key.condition = Some(only).filter(|only| *only != Match::default());
    Ok(zone_key)
}

/// Matches requests whose value the map turns into an outcome that satisfies the predicate.
fn match_by_value(source: &str, map: &MapBlock, is_match: &dyn Fn(&str) -> bool) -> Result<Match, String> {
    let default_matches = is_match(&map.default);
    let empty =
        map.values.iter().find(|(value, _)| value.is_empty()).map_or(default_matches, |(_, it)| is_match(it));
    let others = map
        .values
        .iter()
        .filter(|(value, outcome)| !value.is_empty() && is_match(outcome) != default_matches);
    let others: Vec<&str> = others.map(|(value, _)| value.as_str()).collect();
    if others.iter().any(|value| value.contains('*')) {
        return Err("a `map` value that contains `*`".to_owned());
    }
    let is = |values: &[&str]| match_one_of(source, values);
    let mut only = Match::default();
    match (default_matches, others.is_empty()) {
        (_, true) => {}
        (true, false) => exclude(&mut only, is(&others)?),
        (false, false) => only = is(&others)?,
    }
    // Requests without the value, for example without the header.
    match (default_matches, empty) {
        (true, false) => only = Match { not: only.not, ..is(&["*"])? },
        (false, true) => {
            let mut none = Match::default();
            exclude(&mut none, is(&["*"])?);
            only = match only == Match::default() {
                true => none,
                false => Match { any: vec![only, none], ..Match::default() },
            };
        }
        _ => {}
    }
    Ok(only)
}

/// Matches requests in which a variable has one of these values.
fn match_one_of(source: &str, values: &[&str]) -> Result<Match, String> {
    let globs = || values.iter().map(|value| Glob((*value).to_owned())).collect();
    let named = |name: String| BTreeMap::from([(name, ValueGlobs(globs()))]);
    let mut matching = Match::default();
    match key_part(source) {
        Some(KeyPart::Header(name)) => matching.headers = named(name),
        Some(KeyPart::Cookie(name)) => matching.cookies = named(name),
        Some(KeyPart::Query(name)) => matching.queries = named(name),
        Some(KeyPart::Method) if values.iter().all(|value| is_token(value) && *value != "*") => {
            matching.methods = values.iter().map(|value| value.to_ascii_uppercase()).collect();
        }
        _ => return Err(format!("a `map` by `${source}`")),
    }
    Ok(matching)
}

/// Resolves a key of literal text and request variables.
fn resolve_plain_key(words: &[VariableToken]) -> Result<ZoneKey, String> {
    let (mut parts, mut per) = (Vec::new(), CountScope::Shared);
    for piece in words {
        match piece {
            // Literal text is the same for all requests.
            VariableToken::Text(_) => {}
            VariableToken::Variable(name) if name == "server_name" => per = CountScope::PerServer,
            VariableToken::Variable(name) => {
                parts.push(key_part(name).ok_or_else(|| format!("a key by `${name}`"))?);
            }
        }
    }
    let is_sure = |part: &KeyPart| matches!(part, KeyPart::Ip { .. } | KeyPart::Method | KeyPart::Cel(_));
    let mut missing = MissingKey::default();
    let key = match &parts[..] {
        [] => KeySpec::All,
        [part] => {
            if !is_sure(part) {
                missing = MissingKey::Skip;
            }
            KeySpec::Part(part.clone())
        }
        // In a key of several parts, a missing part is empty; the request is still counted.
        parts => KeySpec::Composite(
            parts
                .iter()
                .map(|part| match is_sure(part) {
                    true => KeySpec::Part(part.clone()),
                    false => KeySpec::First(vec![KeySpec::Part(part.clone()), KeySpec::All]),
                })
                .collect(),
        ),
    };
    Ok(ZoneKey { key, missing, condition: None, allow: None, scope: per, notes: Vec::new() })
}

/// Returns the key part of a policy for an nginx variable.
fn key_part(name: &str) -> Option<KeyPart> {
    Some(match name {
        "binary_remote_addr" | "remote_addr" => KeyPart::Ip { prefix_len: 128 },
        "host" | "http_host" => KeyPart::Host,
        "request_method" => KeyPart::Method,
        "uri" | "document_uri" => KeyPart::Cel(Expression("request.path".into())),
        name => {
            let after = |prefix: &str| name.strip_prefix(prefix).filter(|rest| is_token(rest));
            match (after("http_"), after("cookie_"), after("arg_")) {
                (Some(header), ..) => KeyPart::Header(header.replace('_', "-").to_ascii_lowercase()),
                (_, Some(cookie), _) => KeyPart::Cookie(cookie.to_owned()),
                (.., Some(query)) => KeyPart::Query(query.to_owned()),
                _ => return None,
            }
        }
    })
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// A token of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum VariableToken {
    Text(String),
    Variable(String),
}

/// Splits `a$b${c}d` into text and variables.
fn tokenize(text: &str) -> Vec<VariableToken> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some((before, behind)) = rest.split_once('$') {
        if !before.is_empty() {
            pieces.push(VariableToken::Text(before.to_owned()));
        }
        let (name, behind) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, behind)) => (name, behind),
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                behind.split_at(behind.find(|c| !is_name(c)).unwrap_or(behind.len()))
            }
        };
        pieces.push(VariableToken::Variable(name.to_owned()));
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(VariableToken::Text(rest.to_owned()));
    }
    pieces
}

/// Returns the name of a variable without the `$`.
fn strip_dollar(name: &str) -> String {
    name.strip_prefix('$').unwrap_or(name).to_owned()
}
