//! What the index finds is what looking at every place in turn finds.

use proptest::prelude::*;
use std::collections::HashSet;
use tidegate_policy::descriptors::{
    Amount, DescriptorFlags, DescriptorSet, Entry, Merge, Metric, RawDescriptor, RawDomain, RawLimit,
};

/// A tree whose limits have numbers of their own.
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
        level = prop::collection::vec(node(level), 0..6).prop_map(without_twins).boxed();
    }
    level.prop_map(|mut tree| {
        number(&mut tree, &mut 0);
        tree
    })
}

fn without_twins(mut level: Vec<RawDescriptor>) -> Vec<RawDescriptor> {
    let mut seen = HashSet::new();
    level.retain(|node| seen.insert((node.key.clone(), node.value.clone())));
    level
}

fn number(tree: &mut [RawDescriptor], next: &mut u32) {
    for node in tree {
        *next += 1;
        if let Some(limit) = &mut node.rate_limit {
            limit.requests_per_unit = Some(*next);
        }
        number(&mut node.descriptors, next);
    }
}

fn requests() -> impl Strategy<Value = Vec<Entry>> {
    let entry = ("[ab*]{1,2}", "[ab*_]{0,3}").prop_map(|(key, value)| Entry { key, value });
    prop::collection::vec(entry, 0..5)
}

/// What a glob means, as slow as it is plain.
fn fits(glob: &str, text: &str) -> bool {
    match glob.chars().next() {
        None => text.is_empty(),
        Some('*') => (0..=text.len()).any(|end| fits(&glob[1..], &text[end..])),
        Some(sign) => text.starts_with(sign) && fits(&glob[1..], &text[1..]),
    }
}

/// What is found by looking at each place of a level in turn: the limit, as what it is counted, and what it is called.
fn scanned(tree: &[RawDescriptor], request: &[Entry]) -> Option<(u32, Vec<Entry>, String)> {
    let (mut level, mut counted) = (tree, Vec::new());
    let (mut place, mut called, mut detailed) = (String::from("d"), String::from("d"), String::from("d"));
    let mut last = None;
    for entry in request {
        let with_value = |node: &&RawDescriptor| {
            node.key == entry.key && node.value == entry.value && !node.value.is_empty()
        };
        let by_pattern = |node: &&RawDescriptor| {
            let is_pattern = node.key.contains('*') || node.value.contains('*');
            let any = node.value.is_empty();
            is_pattern && fits(&node.key, &entry.key) && (any || fits(&node.value, &entry.value))
        };
        let by_key = |node: &&RawDescriptor| node.key == entry.key && node.value.is_empty();
        let exactly = level.iter().find(with_value);
        let pattern = level.iter().find(by_pattern).filter(|_| exactly.is_none());
        let node = exactly.or(pattern).or_else(|| level.iter().find(by_key))?;
        let shares = pattern.is_some() && node.flags.share_threshold;
        let said = Entry { key: node.key.clone(), value: node.value.clone() };
        let push = |name: &mut String, entry: &Entry| {
            let sign = if entry.value.is_empty() { "" } else { "_" };
            *name += &format!(".{}{sign}{}", entry.key, entry.value);
        };
        push(&mut place, &said);
        push(&mut called, if node.flags.value_to_metric && !shares { entry } else { &said });
        match shares {
            true => push(&mut detailed, &said),
            false => detailed += &format!(".{}_{}", entry.key, entry.value),
        }
        counted.push(if shares { said } else { entry.clone() });
        (level, last) = (&node.descriptors, Some(node));
    }
    let node = last?;
    let limit = node.rate_limit.as_ref()?;
    Some((limit.requests_per_unit?, counted, if node.flags.detailed_metric { detailed } else { called }))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn the_index_finds_what_a_scan_finds(tree in trees(), requests in prop::collection::vec(requests(), 20)) {
        let raw = RawDomain { source: "a".to_owned(), domain: "d".to_owned(), descriptors: tree.clone() };
        let set = DescriptorSet::build([raw], Merge::Refuse).unwrap();
        let domain = set.domain("d").unwrap();
        for request in requests {
            let found = domain.find(&request).map(|found| {
                let Amount::PerUnit { requests, .. } = found.limit.amount else { unreachable!() };
                let called = match found.metric {
                    Metric::Place => found.limit.place.to_string(),
                    Metric::Detailed(name) => name,
                };
                (requests, found.counted.into_owned(), called)
            });
            prop_assert_eq!(found, scanned(&tree, &request), "{:?}", request);
        }
    }
}
