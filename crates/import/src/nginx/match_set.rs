//! Builds the `match` for a set of locations, and combines matches.
//!
//! nginx applies only the most specific location of a path, so the match of a location excludes the locations nested in
//! it:
//!
//! ```text
//!   /            limited                  path: all, not { /static/**, not { /static/big/** } }
//!   ├ /static/   not limited
//!   │ └ /static/big/   limited
//! ```

use super::location::LocationPattern;
use std::collections::HashSet;
use tidegate_policy::model::{ApiKeyMatch, ClientCertificateMatch, Glob, Match, PathPattern};

/// Returns levels of items that differ from the item that encloses them: the first level differs from `around`, the next
/// from the first, and so on.
///
/// In the order of `key`, an item precedes the items that it covers, and these follow without a gap.
pub(super) fn split_levels<T, K: Ord>(
    items: &[(T, bool)],
    around: bool,
    key: impl Fn(&T) -> K,
    covers: impl Fn(&T, &T) -> bool,
) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_cached_key(|place| key(&items[*place].0));
    let mut levels: Vec<Vec<usize>> = Vec::new();
    // The items that enclose the current one, outermost first, each with its level.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for place in order {
        while open.last().is_some_and(|(outer, _)| !covers(&items[*outer].0, &items[place].0)) {
            open.pop();
        }
        let (state, above) = open.last().map_or((around, 0), |(outer, level)| (items[*outer].1, *level));
        let differs = items[place].1 != state;
        if differs {
            if levels.len() == above {
                levels.push(Vec::new());
            }
            levels[above].push(place);
        }
        open.push((place, above + usize::from(differs)));
    }
    levels.iter_mut().for_each(|level| level.sort_unstable());
    levels
}

/// A location of a server, and whether it is selected.
pub(super) type LocationSelection<'a> = (&'a LocationPattern, bool);

/// Matches the requests to the selected locations of a server; `None` if there are none. An empty match is all requests.
pub(super) fn selected_match(all: &[LocationSelection<'_>]) -> Option<Match> {
    if all.iter().all(|(_, is_in)| *is_in) {
        return Some(Match::default());
    }
    let expressions: Vec<(&Match, bool)> = all
        .iter()
        .filter_map(|(place, is_in)| match place {
            LocationPattern::Regex(matching) => Some((&**matching, *is_in)),
            _ => None,
        })
        .collect();
    let tree: Vec<LocationSelection<'_>> =
        all.iter().copied().filter(|(place, _)| place.text().is_some()).collect();
    if expressions.is_empty() {
        return prefix_tree_match(&tree);
    }
    let part = |keep: &dyn Fn(&LocationPattern) -> bool| -> Vec<(&LocationPattern, bool)> {
        tree.iter().map(|(place, is_in)| (*place, *is_in && keep(place))).collect()
    };
    let strong_in = prefix_tree_match(&part(&|place| place.is_before_regex()));
    let weak_in = prefix_tree_match(&part(&|place| !place.is_before_regex()));
    let strong: Vec<LocationSelection<'_>> =
        tree.iter().map(|(place, _)| (*place, place.is_before_regex())).collect();
    let strong = prefix_tree_match(&strong);
    let mut parts = Vec::from_iter(strong_in);
    if let Some(mut weak) = weak_in {
        expressions.iter().for_each(|(matching, _)| exclude(&mut weak, (*matching).clone()));
        parts.push(weak);
    }
    for (place, (matching, is_in)) in expressions.iter().enumerate() {
        if *is_in {
            let mut its = (*matching).clone();
            // nginx applies the first regular expression that matches.
            expressions[..place].iter().for_each(|(before, _)| exclude(&mut its, (*before).clone()));
            if let Some(strong) = &strong {
                exclude(&mut its, strong.clone());
            }
            parts.push(its);
        }
    }
    union(parts)
}

/// Matches the selected locations of a tree of prefixes and exact paths.
fn prefix_tree_match(all: &[LocationSelection<'_>]) -> Option<Match> {
    let prefixes: HashSet<&str> = all
        .iter()
        .filter_map(|(place, _)| match place {
            LocationPattern::Prefix(text, _) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let key = |place: &&LocationPattern| {
        let (text, is_exact) = (place.text().unwrap_or_default(), matches!(place, LocationPattern::Exact(_)));
        let slashed = format!("{text}/");
        match is_exact && prefixes.contains(slashed.as_str()) {
            true => (slashed, is_exact),
            false => (text.to_owned(), is_exact),
        }
    };
    let items: Vec<(&LocationPattern, bool)> = all.to_vec();
    let levels = split_levels(&items, false, key, |outer, inner| outer.covers(inner));
    levels.iter().rev().fold(None, |not: Option<Match>, level| {
        let paths: Vec<PathPattern> = level.iter().filter_map(|place| items[*place].0.pattern()).collect();
        let is_everything = |path: &PathPattern| path.segments.is_empty() && path.tail.is_some();
        let paths = if paths.iter().any(is_everything) { Vec::new() } else { paths };
        Some(Match { paths, not: not.map(Box::new), ..Match::default() })
    })
}

/// Matches requests of any of these; `None` if the list is empty.
pub(super) fn union(mut parts: Vec<Match>) -> Option<Match> {
    if parts.iter().any(|part| *part == Match::default()) {
        return Some(Match::default());
    }
    let mut merged: Vec<Match> = Vec::new();
    for part in parts.drain(..) {
        // Merge parts that differ only in their hosts or only in their listeners.
        let differs_in_hosts = |known: &Match| {
            let merged = Match { hosts: part.hosts.clone(), ..known.clone() };
            merged == part && !known.hosts.is_empty() && !part.hosts.is_empty()
        };
        let differs_in_listeners = |known: &Match| {
            let merged = Match { listeners: part.listeners.clone(), ..known.clone() };
            merged == part && !known.listeners.is_empty() && !part.listeners.is_empty()
        };
        match merged.iter().position(differs_in_hosts) {
            Some(known) => merged[known].hosts.extend(part.hosts),
            None => match merged.iter().position(differs_in_listeners) {
                Some(known) => merged[known].listeners.extend(part.listeners),
                None => merged.push(part),
            },
        }
    }
    match merged.len() {
        0 => None,
        1 => merged.pop(),
        _ => Some(Match { any: merged, ..Match::default() }),
    }
}

/// Excludes these requests from a match.
pub(super) fn exclude(matching: &mut Match, these: Match) {
    matching.not = Some(Box::new(match matching.not.take().map(|not| *not) {
        None => these,
        // Matches of only paths or only hosts are joined into one list.
        Some(mut not)
            if match_subject(&not) == MatchSubject::Paths && match_subject(&these) == MatchSubject::Paths =>
        {
            not.paths.extend(these.paths);
            not
        }
        Some(mut not)
            if match_subject(&not) == MatchSubject::Hosts && match_subject(&these) == MatchSubject::Hosts =>
        {
            not.hosts.extend(these.hosts);
            not
        }
        Some(mut not) if match_subject(&not) == MatchSubject::Any => {
            match match_subject(&these) {
                MatchSubject::Any => not.any.extend(these.any),
                _ => not.any.push(these),
            }
            not
        }
        Some(not) if match_subject(&these) == MatchSubject::Any => {
            Match { any: [vec![not], these.any].concat(), ..Match::default() }
        }
        Some(not) => Match { any: vec![not, these], ..Match::default() },
    }));
}

/// The only criterion of a match, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchSubject {
    Paths,
    Hosts,
    Any,
    Mixed,
}

fn match_subject(it: &Match) -> MatchSubject {
    let has_more = !it.methods.is_empty()
        || !it.headers.is_empty()
        || !it.queries.is_empty()
        || !it.cookies.is_empty()
        || !it.descriptor.is_empty()
        || !it.claims.is_empty()
        || it.api_key != ApiKeyMatch::default()
        || it.client_certificate != ClientCertificateMatch::default()
        || !it.clients.is_empty()
        || !it.listeners.is_empty()
        || it.not.is_some()
        || it.when.is_some();
    match (it.paths.is_empty(), it.hosts.is_empty(), it.any.is_empty()) {
        _ if has_more => MatchSubject::Mixed,
        (false, true, true) => MatchSubject::Paths,
        (true, false, true) => MatchSubject::Hosts,
        (true, true, false) => MatchSubject::Any,
        _ => MatchSubject::Mixed,
    }
}

/// Matches requests that satisfy both, if no criterion is in both matches.
pub(super) fn merge(mut one: Match, other: Match) -> Match {
    if one == Match::default() {
        return other;
    }
    let Match {
        methods,
        paths,
        hosts,
        headers,
        queries,
        cookies,
        descriptor,
        claims,
        api_key,
        client_certificate,
        clients,
        listeners,
        not,
        any,
        when,
    } = other;
    // At most one of the two has each criterion, so the lists can be joined.
    one.methods.extend(methods);
    one.paths.extend(paths);
    one.hosts.extend(hosts);
    one.headers.extend(headers);
    one.queries.extend(queries);
    one.cookies.extend(cookies);
    one.descriptor.extend(descriptor);
    one.claims.extend(claims);
    one.api_key.names.extend(api_key.names);
    one.api_key.tiers.extend(api_key.tiers);
    one.client_certificate.subjects.extend(client_certificate.subjects);
    one.client_certificate.sans.extend(client_certificate.sans);
    one.clients.extend(clients);
    one.listeners.extend(listeners);
    if let Some(not) = not {
        exclude(&mut one, *not);
    }
    if one.when.is_none() {
        one.when = when;
    }
    match (one.any.is_empty(), any.is_empty()) {
        (true, _) => one.any = any,
        (false, true) => {}
        // Both have alternatives: exclude requests that satisfy none of the second ones.
        (false, false) => {
            let neither =
                Match { not: Some(Box::new(Match { any, ..Match::default() })), ..Match::default() };
            exclude(&mut one, neither);
        }
    }
    one
}

/// Matches requests that satisfy both, also if both have the same criterion.
pub(super) fn intersect(mut one: Match, other: Match) -> Match {
    let is_name = |host: &Glob| !host.0.contains('*') && one.hosts.contains(host);
    if !one.hosts.is_empty() && !other.hosts.is_empty() && other.hosts.iter().all(is_name) {
        one.hosts.clear();
    }
    let both_set = |one: bool, other: bool| !one && !other;
    let overlap = both_set(one.methods.is_empty(), other.methods.is_empty())
        || both_set(one.paths.is_empty(), other.paths.is_empty())
        || both_set(one.hosts.is_empty(), other.hosts.is_empty())
        || both_set(one.clients.is_empty(), other.clients.is_empty())
        || both_set(one.listeners.is_empty(), other.listeners.is_empty())
        || one.headers.keys().any(|name| other.headers.contains_key(name))
        || one.queries.keys().any(|name| other.queries.contains_key(name))
        || one.cookies.keys().any(|name| other.cookies.contains_key(name))
        || one.descriptor.keys().any(|name| other.descriptor.contains_key(name))
        || one.claims.keys().any(|name| other.claims.contains_key(name))
        || both_set(one.api_key.names.is_empty(), other.api_key.names.is_empty())
        || both_set(one.api_key.tiers.is_empty(), other.api_key.tiers.is_empty())
        || both_set(one.client_certificate.subjects.is_empty(), other.client_certificate.subjects.is_empty())
        || both_set(one.client_certificate.sans.is_empty(), other.client_certificate.sans.is_empty())
        || one.when.is_some() && other.when.is_some();
    match (overlap, one.any.is_empty()) {
        (false, _) => merge(one, other),
        (true, true) => {
            one.any = vec![other];
            one
        }
        (true, false) => {
            exclude(&mut one, Match { not: Some(Box::new(other)), ..Match::default() });
            one
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_levels_nests_differences() {
        let covers = |outer: &&str, inner: &&str| outer.len() < inner.len() && inner.starts_with(outer);
        type LevelCase<'a> = (&'a [(&'a str, bool)], bool, &'a [&'a [usize]]);
        let cases: [LevelCase<'_>; 5] = [
            (&[], true, &[]),
            (&[("a", true)], true, &[]),
            (&[("a", true), ("ab", false), ("abc", true), ("b", true)], false, &[&[0, 3], &[1], &[2]]),
            (&[("ab", true), ("a", false)], true, &[&[1], &[0]]),
            (&[("a", false), ("abc", true), ("ab", false)], false, &[&[1]]),
        ];
        for (items, around, levels) in cases {
            assert_eq!(split_levels(items, around, ToString::to_string, covers), levels, "{items:?}");
        }
    }
}
