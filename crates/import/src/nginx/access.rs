//! `allow` and `deny`: nginx applies the first entry that contains the address, and admits addresses in no entry.

use super::{Importer, lexer::Directive, match_set::exclude};
use tidegate_access::Prefix;
use tidegate_policy::{
    model::{AccessSpec, Match, Network},
    source::SourceSpan,
};

/// One `allow` or `deny`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AccessEntry {
    pub(super) action: AccessAction,
    /// `None` is `all`.
    pub(super) network: Option<Prefix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AccessAction {
    Allow,
    Deny,
}

/// The list of a level.
#[derive(Clone, Debug, Default)]
pub(super) struct NginxAccessList {
    pub(super) entries: Vec<AccessEntry>,
    pub(super) span: Option<SourceSpan>,
}

/// `limit_except METHODS { allow …; deny …; }`
#[derive(Clone, Debug)]
pub(super) struct LimitExcept {
    pub(super) methods: Vec<String>,
    pub(super) access: NginxAccessList,
}

impl Importer<'_> {
    /// `allow NETWORK;` or `deny NETWORK;`
    pub(super) fn read_access(&mut self, directive: &Directive, list: &mut NginxAccessList) {
        let verb = if directive.name == "allow" { AccessAction::Allow } else { AccessAction::Deny };
        let network = match directive.arg(0) {
            Some("all") => None,
            Some("unix:") => {
                return self.record_loss(directive, "listeners on Unix sockets are not supported");
            }
            text => match text.and_then(|text| text.parse().ok()) {
                Some(network) => Some(network),
                None => {
                    return self.record_protection_loss(
                        directive,
                        "not an address, a network or `all`; write a rule with `deny` and `allow`",
                    );
                }
            },
        };
        if list.entries.len() >= MAX_ACCESS_ENTRIES {
            return self.report_error(
                directive.span,
                "too many `allow` and `deny` entries",
                "move the networks into a list of the policy",
            );
        }
        list.span.get_or_insert(directive.span);
        list.entries.push(AccessEntry { action: verb, network });
    }

    /// Reads `limit_except GET POST { … }`, the access list for all other methods.
    pub(super) fn read_limit_except(&mut self, directive: &Directive) -> LimitExcept {
        let mut methods: Vec<String> =
            directive.args.iter().map(|word| word.text.to_ascii_uppercase()).collect();
        if methods.iter().any(|method| method == "GET") {
            methods.push("HEAD".to_owned());
        }
        let mut access = NginxAccessList::default();
        for entry in directive.block.iter().flatten() {
            match entry.name.as_str() {
                "allow" | "deny" => self.read_access(entry, &mut access),
                _ => self.record_unsupported(entry),
            }
        }
        LimitExcept { methods, access }
    }
}

const MAX_ACCESS_ENTRIES: usize = 10_000;

/// Converts an access list to the lists of a rule, or else to a match of the denied requests; `None` if all are admitted.
pub(super) fn access_rule(entries: &[AccessEntry]) -> Option<(AccessSpec, Match)> {
    // Entries after `all` have no effect.
    let end = entries.iter().position(|entry| entry.network.is_none()).map_or(entries.len(), |at| at + 1);
    let entries = &entries[..end];
    let networks = |entries: &[AccessEntry]| -> Vec<Network> {
        entries.iter().filter_map(|entry| entry.network).map(Network::Prefix).collect()
    };
    let all = || vec![Network::List("all".to_owned())];
    let ends_in_denial =
        entries.last().is_some_and(|entry| entry.action == AccessAction::Deny && entry.network.is_none());
    let is_all =
        |verb: AccessAction, entries: &[AccessEntry]| entries.iter().all(|entry| entry.action == verb);
    if is_all(AccessAction::Allow, entries) {
        return None;
    }
    if ends_in_denial && is_all(AccessAction::Allow, &entries[..entries.len() - 1]) {
        let allow = networks(&entries[..entries.len() - 1]);
        return Some((AccessSpec { deny: all(), allow, ban: None }, Match::default()));
    }
    let denies = match entries.last() {
        Some(AccessEntry { action: AccessAction::Allow, network: None }) => &entries[..entries.len() - 1],
        _ => entries,
    };
    if !ends_in_denial && is_all(AccessAction::Deny, denies) {
        return Some((AccessSpec { deny: networks(denies), ..AccessSpec::default() }, Match::default()));
    }
    // From the last entry to the first: each adds its network to the denied ones or removes it.
    let mut denied: Option<Match> = None;
    for entry in entries.iter().rev() {
        let these = match entry.network {
            Some(network) => Match { clients: vec![Network::Prefix(network)], ..Match::default() },
            None => Match { clients: all(), ..Match::default() },
        };
        denied = match (entry.action, denied) {
            (AccessAction::Deny, None) => Some(these),
            (AccessAction::Deny, Some(denied)) if denied.any.is_empty() && denied.not.is_none() => {
                Some(Match { clients: [these.clients, denied.clients].concat(), ..Match::default() })
            }
            (AccessAction::Deny, Some(denied)) => {
                Some(Match { any: vec![these, denied], ..Match::default() })
            }
            (AccessAction::Allow, None) => None,
            (AccessAction::Allow, Some(mut denied)) => {
                exclude(&mut denied, these);
                Some(denied)
            }
        };
    }
    denied.map(|denied| (AccessSpec { deny: all(), ..AccessSpec::default() }, denied))
}
