//! The index finds the same limits as a scan.

use proptest::prelude::*;
use std::collections::HashSet;
use tidegate_policy::descriptors::{
    DescriptorAmount, DescriptorEntry, DescriptorFlags, DescriptorSet, DomainMerge, MetricName,
    RawDescriptor, RawDomain, RawLimit,
};

/// Random trees whose limits have unique numbers.
fn trees() -> impl Strategy<Value = Vec<RawDescriptor>> {
    let node = |below: BoxedStrategy<Vec<RawDescriptor>>| {
        let flags = prop::array::uniform3(prop::bool::weighted(0.2));
        let limit = prop::bool::weighted(0.7);
        ("[ab*]{1,2}", "[ab*_]{0,3}", flags, limit, below).prop_map(
            |(key, value, [detailed_metric, value_to_metric, share], limit, descriptors)| RawDescriptor {
                flags: DescriptorFlags {
                    detailed_metric,
                    value_to_metric,
                    share_threshold: share && (key.contains('*') || value.contains('*')),
                    ..DescriptorFlags::default()
                },
                rate_limit: limit.then(|| RawLimit {
                    unit: "day".to_owned(),
                    name: "x".to_owned(),
                    ..RawLimit::default()
                }),
                key,
                value,
                metadata: None,
                descriptors,
            },
        )
    };
    let mut level = Just(Vec::new()).boxed();
    for _ in 0..3 {
        level = prop::collection::vec(node(level), 0..6).prop_map(remove_duplicates).boxed();
    }
    level.prop_map(|mut tree| {
        number_limits(&mut tree, &mut 0);
        tree
    })
}

fn remove_duplicates(mut level: Vec<RawDescriptor>) -> Vec<RawDescriptor> {
    let mut known = HashSet::new();
    level.retain(|node| known.insert((node.key.clone(), node.value.clone())));
    level
}

fn number_limits(tree: &mut [RawDescriptor], next: &mut u32) {
    for node in tree {
        *next += 1;
        if let Some(limit) = &mut node.rate_limit {
            limit.requests_per_unit = Some(*next);
        }
        number_limits(&mut node.descriptors, next);
    }
}

fn requests() -> impl Strategy<Value = Vec<DescriptorEntry>> {
    let entry = ("[ab*]{1,2}", "[ab*_]{0,3}").prop_map(|(key, value)| DescriptorEntry { key, value });
    prop::collection::vec(entry, 0..5)
}

/// A slow reference implementation of globs.
fn glob_matches(glob: &str, text: &str) -> bool {
    match glob.chars().next() {
        None => text.is_empty(),
        Some('*') => (0..=text.len()).any(|end| glob_matches(&glob[1..], &text[end..])),
        Some(sign) => text.starts_with(sign) && glob_matches(&glob[1..], &text[1..]),
    }
}

/// Scans each level of the tree: returns the limit, the entries of its counter, and its metric name.
fn scan(tree: &[RawDescriptor], request: &[DescriptorEntry]) -> Option<(u32, Vec<DescriptorEntry>, String)> {
    let (mut level, mut counted) = (tree, Vec::new());
    let (mut path, mut called, mut detailed) = (String::from("d"), String::from("d"), String::from("d"));
    let mut last = None;
    for entry in request {
        let with_value = |node: &&RawDescriptor| {
            node.key == entry.key && node.value == entry.value && !node.value.is_empty()
        };
        let by_pattern = |node: &&RawDescriptor| {
            let is_pattern = node.key.contains('*') || node.value.contains('*');
            let any = node.value.is_empty();
            is_pattern
                && glob_matches(&node.key, &entry.key)
                && (any || glob_matches(&node.value, &entry.value))
        };
        let by_key = |node: &&RawDescriptor| node.key == entry.key && node.value.is_empty();
        let exactly = level.iter().find(with_value);
        let pattern = level.iter().find(by_pattern).filter(|_| exactly.is_none());
        let node = exactly.or(pattern).or_else(|| level.iter().find(by_key))?;
        let shares = pattern.is_some() && node.flags.share_threshold;
        let node_entry = DescriptorEntry { key: node.key.clone(), value: node.value.clone() };
        let push = |name: &mut String, entry: &DescriptorEntry| {
            let sign = if entry.value.is_empty() { "" } else { "_" };
            *name += &format!(".{}{sign}{}", entry.key, entry.value);
        };
        push(&mut path, &node_entry);
        push(&mut called, if node.flags.value_to_metric && !shares { entry } else { &node_entry });
        match shares {
            true => push(&mut detailed, &node_entry),
            false => detailed += &format!(".{}_{}", entry.key, entry.value),
        }
        counted.push(if shares { node_entry } else { entry.clone() });
        (level, last) = (&node.descriptors, Some(node));
    }
    let node = last?;
    let limit = node.rate_limit.as_ref()?;
    Some((limit.requests_per_unit?, counted, if node.flags.detailed_metric { detailed } else { called }))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn descriptor_tree_agrees_with_scan(tree in trees(), requests in prop::collection::vec(requests(), 20)) {
        let raw = RawDomain { source: "a".to_owned(), domain: "d".to_owned(), descriptors: tree.clone() };
        let set = DescriptorSet::build([raw], DomainMerge::Reject).unwrap();
        let domain = set.domain("d").unwrap();
        for request in requests {
            let found = domain.find(&request).map(|found| {
                let DescriptorAmount::PerUnit { requests, .. } = found.limit.amount else { unreachable!() };
                let called = match found.metric {
                    MetricName::Path => found.limit.path.to_string(),
                    MetricName::Detailed(name) => name,
                };
                (requests, found.counter_entries.into_owned(), called)
            });
            prop_assert_eq!(found, scan(&tree, &request), "{:?}", request);
        }
    }
}
