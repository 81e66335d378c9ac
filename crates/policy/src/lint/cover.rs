//! Compares the requests of two matches: whether one covers the other, and whether they are disjoint.
//!
//! Both checks are conservative: `true` is certain, `false` may be wrong.

use crate::{
    matching::GlobMatcher,
    model::{Glob, Match, Network, PathPattern, Segment, ValueGlobs},
};
use std::collections::BTreeMap;

/// Whether `outer` matches every request that `inner` matches.
pub(super) fn covers(outer: &Match, inner: &Match) -> bool {
    let is_method = outer.methods.is_empty()
        || !inner.methods.is_empty() && inner.methods.iter().all(|method| outer.methods.contains(method));
    is_method
        && all_covered(&outer.paths, &inner.paths, path_covers)
        && all_covered(&outer.hosts, &inner.hosts, glob_covers)
        && values_cover(&outer.headers, &inner.headers)
        && values_cover(&outer.queries, &inner.queries)
        && values_cover(&outer.cookies, &inner.cookies)
        && values_cover(&outer.descriptor, &inner.descriptor)
        && values_cover(&outer.claims, &inner.claims)
        && all_covered(&outer.api_key.names, &inner.api_key.names, glob_covers)
        && all_covered(&outer.api_key.tiers, &inner.api_key.tiers, glob_covers)
        && all_covered(&outer.client_certificate.subjects, &inner.client_certificate.subjects, glob_covers)
        && all_covered(&outer.client_certificate.sans, &inner.client_certificate.sans, glob_covers)
        && all_covered(&outer.clients, &inner.clients, network_covers)
        && all_covered(&outer.listeners, &inner.listeners, |outer, inner| outer == inner)
        && (outer.not.is_none() || outer.not == inner.not || excludes_none_of(outer.not.as_deref(), inner))
        && (outer.any.is_empty()
            || outer.any == inner.any
            || outer.any.iter().any(|outer| covers(outer, inner)))
        && (outer.when.is_none() || outer.when == inner.when)
}

/// Whether no request matches both.
pub(super) fn are_disjoint(one: &Match, other: &Match) -> bool {
    let are_apart = |one: &[String], other: &[String]| {
        !one.is_empty() && !other.is_empty() && !one.iter().any(|method| other.contains(method))
    };
    are_apart(&one.methods, &other.methods)
        || all_disjoint(&one.paths, &other.paths, paths_are_disjoint)
        || all_disjoint(&one.hosts, &other.hosts, globs_are_disjoint)
        || all_disjoint(&one.listeners, &other.listeners, |one, other| one != other)
        || all_disjoint(&one.api_key.names, &other.api_key.names, globs_are_disjoint)
        || all_disjoint(&one.api_key.tiers, &other.api_key.tiers, globs_are_disjoint)
        || all_disjoint(
            &one.client_certificate.subjects,
            &other.client_certificate.subjects,
            globs_are_disjoint,
        )
        || is_http_and_descriptor(one, other)
        || is_http_and_descriptor(other, one)
        || one.not.as_ref().is_some_and(|not| covers(not, other))
        || other.not.as_ref().is_some_and(|not| covers(not, one))
        || !one.any.is_empty() && one.any.iter().all(|one| are_disjoint(one, other))
        || !other.any.is_empty() && other.any.iter().all(|other| are_disjoint(one, other))
}

/// Whether one matches only HTTP requests, and the other only descriptors.
fn is_http_and_descriptor(http: &Match, descriptor: &Match) -> bool {
    http.http_condition().is_some() && !descriptor.descriptor.is_empty()
}

/// Whether a `not` excludes no request of these.
fn excludes_none_of(not: Option<&Match>, these: &Match) -> bool {
    not.is_some_and(|not| are_disjoint(not, these))
}

/// Whether each item of `inner` is covered by one of `outer`. An empty list matches everything.
fn all_covered<T>(outer: &[T], inner: &[T], covers: fn(&T, &T) -> bool) -> bool {
    let is_covered = |inner: &T| outer.iter().any(|outer| covers(outer, inner));
    outer.is_empty() || !inner.is_empty() && inner.iter().all(is_covered)
}

fn all_disjoint<T>(one: &[T], other: &[T], are_disjoint: fn(&T, &T) -> bool) -> bool {
    let is_apart = |one: &T| other.iter().all(|other| are_disjoint(one, other));
    !one.is_empty() && !other.is_empty() && one.iter().all(is_apart)
}

fn values_cover<N: Ord>(outer: &BTreeMap<N, ValueGlobs>, inner: &BTreeMap<N, ValueGlobs>) -> bool {
    outer.iter().all(|(name, outer)| {
        inner.get(name).is_some_and(|inner| {
            !inner.0.is_empty()
                && inner.0.iter().all(|inner| outer.0.iter().any(|outer| glob_covers(outer, inner)))
        })
    })
}

fn glob_covers(outer: &Glob, inner: &Glob) -> bool {
    // A star of the inner glob is compared as a literal, which only a star of the outer glob matches.
    outer == inner || outer.0 == "*" || GlobMatcher::new(outer).matches(inner.0.as_bytes())
}

/// Whether two literals differ, or a literal does not match a glob.
fn globs_are_disjoint(one: &Glob, other: &Glob) -> bool {
    let (first, second) = (GlobMatcher::new(one), GlobMatcher::new(other));
    match (first.literal(), second.literal()) {
        (Some(text), _) => !second.matches(text),
        (_, Some(text)) => !first.matches(text),
        (None, None) => false,
    }
}

fn network_covers(outer: &Network, inner: &Network) -> bool {
    match (outer, inner) {
        (Network::Prefix(outer), Network::Prefix(inner)) => {
            let same_family = outer.network_address().is_ipv4() == inner.network_address().is_ipv4();
            same_family && outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.network_address())
        }
        (Network::List(outer), inner) => outer == "all" || *inner == Network::List(outer.clone()),
        (Network::Prefix(_), Network::List(_)) => false,
    }
}

fn segments(path: &PathPattern) -> Vec<&Segment> {
    path.segments
        .iter()
        .filter(|segment| !matches!(segment, Segment::Text(text) if text.is_empty()))
        .collect()
}

fn path_covers(outer: &PathPattern, inner: &PathPattern) -> bool {
    let (outer_steps, inner_steps) = (segments(outer), segments(inner));
    let has_length = match (&outer.tail, &inner.tail) {
        (Some(_), _) => inner_steps.len() >= outer_steps.len(),
        (None, Some(_)) => false,
        (None, None) => inner_steps.len() == outer_steps.len(),
    };
    has_length && outer_steps.iter().zip(inner_steps).all(|(outer, inner)| segment_covers(outer, inner))
}

fn segment_covers(outer: &Segment, inner: &Segment) -> bool {
    match (outer, inner) {
        (Segment::Capture(_), _) => true,
        (Segment::Glob(outer), _) if outer.0 == "*" => true,
        (Segment::Text(outer), Segment::Text(inner)) => outer == inner,
        (Segment::Glob(outer), Segment::Text(inner)) => GlobMatcher::new(outer).matches(inner.as_bytes()),
        (Segment::Glob(outer), Segment::Glob(inner)) => glob_covers(outer, inner),
        _ => false,
    }
}

fn paths_are_disjoint(one: &PathPattern, other: &PathPattern) -> bool {
    let (first, second) = (segments(one), segments(other));
    let is_too_short = match (&one.tail, &other.tail) {
        (None, None) => first.len() != second.len(),
        (Some(_), None) => second.len() < first.len(),
        (None, Some(_)) => first.len() < second.len(),
        (Some(_), Some(_)) => false,
    };
    is_too_short || first.iter().zip(second).any(|(one, other)| segments_are_disjoint(one, other))
}

fn segments_are_disjoint(one: &Segment, other: &Segment) -> bool {
    let glob = |segment: &Segment| match segment {
        Segment::Text(text) => Glob(text.clone()),
        Segment::Glob(glob) => glob.clone(),
        Segment::Capture(_) => Glob("*".to_owned()),
    };
    match (one, other) {
        // A star in a literal is not a wildcard.
        (Segment::Text(one), Segment::Text(other)) => one != other,
        (one, other) => globs_are_disjoint(&glob(one), &glob(other)),
    }
}
