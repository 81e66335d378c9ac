//! Groups requests by common path prefixes.

use crate::{
    log::RequestLog,
    run::{ReplayError, ReplayProgress},
};
use foldhash::HashMap;
use tidegate_rule::request::RequestHead as _;

/// A group of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathGroup {
    /// The name of the rule.
    pub name: String,
    /// The path prefix, for example `/blog/**`; `None` for requests in no other group.
    pub path: Option<String>,
    /// Path prefixes within it that belong to other groups.
    pub except: Vec<String>,
}

/// The number of path segments that are considered.
const MAX_SEGMENTS: usize = 3;
/// The number of different segments that are tracked after the same prefix; all others are merged.
const MAX_CHILDREN: usize = 64;
/// The total number of prefixes that are tracked.
const MAX_NODES: usize = 4_096;
/// A group has at least one in this many of all requests.
const MIN_SHARE_DIVISOR: u64 = 20;
/// The minimum number of requests of a group, for a meaningful sample.
const MIN_GROUP_REQUESTS: u64 = 100;
/// The maximum number of groups, without the group of all other requests.
const MAX_GROUPS: usize = 5;

/// A segment that matches many.
const WILDCARD: &str = "*";

#[derive(Debug, Default)]
struct PathNode {
    count: u64,
    children: HashMap<Box<str>, usize>,
}

/// Finds the groups of a log.
pub(super) fn find_groups(
    mut log: RequestLog,
    on_progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Vec<PathGroup>, ReplayError> {
    log.start_time()?;
    let mut tree = vec![PathNode::default()];
    let mut requests = 0;
    while let Some((line, _)) = log.next_request()? {
        add_path(&mut tree, line.path());
        requests += 1;
        if requests % (1 << 14) == 0 {
            let (read, size) = log.progress();
            on_progress(ReplayProgress { requests, bytes_read: read, total_bytes: size });
        }
    }
    let least = (requests / MIN_SHARE_DIVISOR).max(MIN_GROUP_REQUESTS);
    let mut found = Vec::new();
    pick_prefixes(&tree, 0, "", least, &mut found);
    found.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    found.truncate(MAX_GROUPS);
    let paths: Vec<String> = found.into_iter().map(|(path, _)| path).collect();
    Ok(name_groups(&paths))
}

fn add_path(tree: &mut Vec<PathNode>, path: &str) {
    let mut at = 0;
    tree[0].count += 1;
    for segment in path.split('/').filter(|segment| !segment.is_empty()).take(MAX_SEGMENTS) {
        let folded = fold_segment(segment);
        let known = tree[at].children.get(folded).copied();
        let next = match known {
            Some(next) => next,
            None => {
                let is_full = tree[at].children.len() >= MAX_CHILDREN || tree.len() >= MAX_NODES;
                let name = if is_full { WILDCARD } else { folded };
                match tree[at].children.get(name) {
                    Some(next) => *next,
                    None if tree.len() >= MAX_NODES => return,
                    None => {
                        let next = tree.len();
                        tree.push(PathNode::default());
                        tree[at].children.insert(name.into(), next);
                        next
                    }
                }
            }
        };
        tree[next].count += 1;
        at = next;
    }
}

/// Returns the segment, or the wildcard if it looks like a number, a hash or user input.
fn fold_segment(segment: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'~');
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = segment.len() >= 8 && segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_id = digits == segment.len() || (is_hex && digits > 0) || digits * 2 > segment.len();
    match is_id || segment.len() > 40 || !segment.bytes().all(is_plain) || segment.starts_with('.') {
        true => WILDCARD,
        false => segment,
    }
}

/// Picks the longest prefixes with at least `least` requests. A shorter prefix is picked, too, if enough requests remain.
fn pick_prefixes(
    tree: &[PathNode],
    at: usize,
    path: &str,
    least: u64,
    found: &mut Vec<(String, u64)>,
) -> u64 {
    let mut taken = 0;
    let mut next: Vec<(&str, usize)> =
        tree[at].children.iter().map(|(name, next)| (&**name, *next)).collect();
    next.sort_unstable();
    for (name, child) in next {
        if tree[child].count >= least {
            taken += pick_prefixes(tree, child, &format!("{path}/{name}"), least, found);
        }
    }
    let left = tree[at].count - taken;
    if at == 0 || left < least {
        return taken;
    }
    found.push((format!("{path}/**"), left));
    tree[at].count
}

/// Builds groups for these prefixes. A request that matches two belongs to the more specific one.
fn name_groups(paths: &[String]) -> Vec<PathGroup> {
    let mut groups: Vec<PathGroup> = Vec::new();
    for (place, path) in paths.iter().enumerate() {
        let goes_first = |(other_place, other): &(usize, &String)| {
            let (ours, theirs) = (specificity(path), specificity(other));
            *other_place != place && overlaps(path, other) && (theirs, *other_place) > (ours, place)
        };
        let except = paths.iter().enumerate().filter(goes_first).map(|(_, other)| other.clone()).collect();
        groups.push(PathGroup { name: group_name(path, &groups), path: Some(path.clone()), except });
    }
    // A prefix within another one need not be excluded separately.
    let is_within = |path: &String| paths.iter().any(|other| other != path && covers(other, path));
    let outer = paths.iter().filter(|path| !is_within(path)).cloned().collect();
    let name = if groups.is_empty() { "everything" } else { "everything-else" };
    groups.push(PathGroup { name: name.to_owned(), path: None, except: outer });
    groups
}

/// Returns the segments of a prefix.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty() && *segment != "**")
}

/// Returns the number of literal segments and of all segments.
fn specificity(path: &str) -> (usize, usize) {
    (segments(path).filter(|segment| *segment != WILDCARD).count(), segments(path).count())
}

/// Whether a request can match both prefixes.
fn overlaps(one: &str, other: &str) -> bool {
    segments(one)
        .zip(segments(other))
        .all(|(one, other)| one == other || one == WILDCARD || other == WILDCARD)
}

/// Whether all requests of `inner` match `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    let mut inner = segments(inner);
    segments(outer).all(|outer| inner.next().is_some_and(|inner| outer == WILDCARD || outer == inner))
}

fn group_name(path: &str, known: &[PathGroup]) -> String {
    let words = path.split('/').filter(|word| !word.is_empty() && !word.contains('*'));
    let name = words.collect::<Vec<_>>().join("-").to_ascii_lowercase().replace(['.', '~', '_'], "-");
    let name = if name.is_empty() { "any".to_owned() } else { name };
    let is_taken = |name: &String| known.iter().any(|group| group.name == *name);
    let mut names = std::iter::once(name.clone()).chain((2..).map(|count| format!("{name}-{count}")));
    names.find(|name| !is_taken(name)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_segments_are_folded() {
        for id in ["42", "a1b2c3d4e5", "6f9619ff-8b86-d011-b42d-00c04fc964ff", "x%20y", "..", "2015-05-17"] {
            assert_eq!(fold_segment(id), WILDCARD, "{id}");
        }
        for name in ["users", "v1", "index.html", "style2.css", "deadbeef"] {
            assert_eq!(fold_segment(name), name);
        }
    }

    #[test]
    fn groups_follow_common_path_prefixes() {
        let mut tree = vec![PathNode::default()];
        (0..400).for_each(|id| add_path(&mut tree, &format!("/api/users/{id}/photos")));
        (0..300).for_each(|id| add_path(&mut tree, &format!("/api/orders/{id}")));
        (0..200).for_each(|id| add_path(&mut tree, &format!("/api/thing{id}x/a")));
        (0..100_000).for_each(|id| add_path(&mut tree, &format!("/odd{id}odd/{id}a")));
        assert!(tree.len() <= MAX_NODES);
        let mut found = Vec::new();
        pick_prefixes(&tree, 0, "", 150, &mut found);
        let paths: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert!(
            paths.contains(&"/api/users/*/**")
                || paths.contains(&"/api/users/*/photos/**")
                || paths.contains(&"/api/users/**"),
            "{paths:?}"
        );
        assert!(paths.iter().any(|path| path.starts_with("/api/orders/")), "{paths:?}");
    }

    #[test]
    fn groups_do_not_overlap() {
        let groups = name_groups(&["/api/**".to_owned(), "/api/users/**".to_owned(), "/blog/**".to_owned()]);
        let names: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["api", "api-users", "blog", "everything-else"]);
        assert_eq!(groups[0].except, ["/api/users/**"]);
        assert_eq!(groups[3].except, ["/api/**", "/blog/**"]);

        let groups =
            name_groups(&["/shop/*/**".to_owned(), "/shop/list/**".to_owned(), "/*/list/new/**".to_owned()]);
        assert_eq!(groups[0].except, ["/shop/list/**", "/*/list/new/**"]);
        assert_eq!(groups[1].except, ["/*/list/new/**"]);
        assert!(groups[2].except.is_empty());
        assert_eq!(groups[3].except, ["/shop/*/**", "/*/list/new/**"]);
    }
}
