//! Lists compared with a linear scan, and errors of invalid lists.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use tidegate_access::{AccessList, AccessListBuilder, AccessMatch, ListAction, Prefix};
use tidegate_testkit::strategy::runner_with_cases;

/// Scans every entry: the longest matching prefix decides.
fn linear_scan(entries: &[(Prefix, ListAction)], address: IpAddr) -> Option<(ListAction, Prefix)> {
    let differs_after = |first: IpAddr| match (first, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((u32::from(a) ^ u32::from(b)).leading_zeros()),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((u128::from(a) ^ u128::from(b)).leading_zeros()),
        _ => None,
    };
    let around = entries.iter().filter(|(prefix, _)| {
        differs_after(prefix.network_address()).is_some_and(|bits| bits >= u32::from(prefix.prefix_len()))
    });
    around.max_by_key(|(prefix, _)| prefix.prefix_len()).map(|(prefix, stance)| (*stance, *prefix))
}

fn to_mapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        IpAddr::V6(_) => address,
    }
}

fn build_list(entries: &[(Prefix, ListAction)]) -> AccessList {
    let add = |builder: AccessListBuilder, (prefix, stance): &(Prefix, ListAction)| match stance {
        ListAction::Allow => builder.allow(*prefix),
        ListAction::Deny => builder.deny(*prefix),
    };
    entries.iter().fold(AccessList::builder(), add).build().unwrap()
}

/// The first and the last address of a prefix, and the adjacent addresses outside.
fn edges(prefix: Prefix) -> Vec<IpAddr> {
    match prefix.network_address() {
        IpAddr::V4(first) => {
            let first = u32::from(first);
            let last = first | u32::MAX.checked_shr(prefix.prefix_len().into()).unwrap_or(0);
            let edges = [first.saturating_sub(1), first, last, last.saturating_add(1)];
            edges.map(|edge| Ipv4Addr::from(edge).into()).to_vec()
        }
        IpAddr::V6(first) => {
            let first = u128::from(first);
            let last = first | u128::MAX.checked_shr(prefix.prefix_len().into()).unwrap_or(0);
            let edges = [first.saturating_sub(1), first, last, last.saturating_add(1)];
            edges.map(|edge| IpAddr::from(Ipv6Addr::from(edge)).to_canonical()).to_vec()
        }
    }
}

/// Often the first or the last octet of a prefix.
fn last_octets() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), Just(255), any::<u8>()]
}

/// Addresses with few different bits, so that prefixes nest and touch, and some random ones.
fn addresses() -> impl Strategy<Value = IpAddr> {
    let v4 = prop_oneof![
        3 => (0_u32..4, 0_u32..8, 0_u32..8, last_octets()).prop_map(|(a, b, c, d)| a << 30 | b << 16 | c << 8 | u32::from(d)),
        1 => any::<u32>(),
        1 => prop_oneof![Just(0), Just(u32::MAX)],
    ];
    let v6 = prop_oneof![
        3 => (0_u128..4, 0_u128..8, 0_u128..8, last_octets())
            .prop_map(|(a, b, c, d)| a << 126 | b << 92 | c << 64 | u128::from(d)),
        1 => any::<u128>(),
        1 => prop_oneof![Just(0), Just(u128::MAX)],
    ];
    prop_oneof![
        v4.prop_map(|bits| Ipv4Addr::from(bits).into()),
        v6.prop_map(|bits| IpAddr::from(Ipv6Addr::from(bits)).to_canonical()),
    ]
}

/// Entries without contradictions.
fn entries(max: usize) -> impl Strategy<Value = Vec<(Prefix, ListAction)>> {
    let bits = prop_oneof![Just(0_u8), 0_u8..=128, 96_u8..=128];
    let stance = prop_oneof![Just(ListAction::Allow), Just(ListAction::Deny)];
    let entry = (addresses(), bits, stance).prop_map(|(address, bits, stance)| {
        let bits = if address.is_ipv4() { bits % 33 } else { bits };
        let text = match address {
            IpAddr::V4(it) => {
                Ipv4Addr::from(u32::from(it) & !u32::MAX.checked_shr(bits.into()).unwrap_or(0)).into()
            }
            IpAddr::V6(it) => IpAddr::from(Ipv6Addr::from(
                u128::from(it) & !u128::MAX.checked_shr(bits.into()).unwrap_or(0),
            )),
        };
        (Prefix::new(text, bits).unwrap(), stance)
    });
    proptest::collection::vec(entry, 0..=max)
        .prop_map(|entries| entries.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
}

#[test]
fn longest_prefix_wins_like_linear_scan() {
    for (most, cases) in [(3, 600), (40, 400), (400, 40)] {
        let inputs = (entries(most), proptest::collection::vec(addresses(), 20));
        let property = |(entries, others): (Vec<(Prefix, ListAction)>, Vec<IpAddr>)| {
            let list = build_list(&entries);
            prop_assert_eq!(list.len(), entries.len());
            let edges = entries.iter().flat_map(|(prefix, _)| edges(*prefix));
            for address in edges.chain(others) {
                let found = linear_scan(&entries, address);
                let access = match found {
                    Some((ListAction::Allow, _)) => AccessMatch::Allowed,
                    Some((ListAction::Deny, _)) => AccessMatch::Denied,
                    None => AccessMatch::Unlisted,
                };
                prop_assert_eq!(list.check(address), access, "{}", address);
                prop_assert_eq!(list.check(to_mapped(address)), access, "mapped {}", address);
                prop_assert_eq!(list.find(address), found, "{}", address);
                prop_assert_eq!(list.find(to_mapped(address)), found);
            }
            Ok(())
        };
        if let Err(broken) = runner_with_cases(cases).run(&inputs, property) {
            panic!("up to {most} entries: {broken}");
        }
    }
}

/// All entries in a small part of the address space and one far away, so that the index cannot distribute them.
#[test]
fn dense_ranges_are_found() {
    let near = |i: u32| Prefix::from(Ipv4Addr::from((10 << 24) + 2 * i));
    let near_v6 = |i: u32| Prefix::from(Ipv6Addr::from((0x2001_0db8 << 96) + 2 * u128::from(i)));
    let far = ["223.255.255.255", "ffff::1"].map(|far| far.parse::<Prefix>().unwrap());
    let builder = (0..20_000).fold(AccessList::builder(), |list, i| list.deny(near(i)).deny(near_v6(i)));
    let list = far.into_iter().fold(builder, AccessListBuilder::allow).build().unwrap();
    for i in 0..20_000 {
        for prefix in [near(i), near_v6(i)] {
            assert_eq!(list.find(prefix.network_address()), Some((ListAction::Deny, prefix)));
            assert_eq!(
                edges(prefix).into_iter().filter(|it| list.check(*it) == AccessMatch::Denied).count(),
                2
            );
        }
    }
    for far in far {
        assert_eq!(edges(far).into_iter().filter(|it| list.check(*it) == AccessMatch::Allowed).count(), 2);
    }
}

#[test]
fn nested_prefix_at_the_edge_wins() {
    let list: AccessList =
        "deny 10.0.0.0/24\nallow 10.0.0.255\nallow 10.0.0.0\ndeny 0.0.0.0/5".parse().unwrap();
    for (address, access) in [
        ([9, 255, 255, 255], AccessMatch::Unlisted),
        ([10, 0, 0, 0], AccessMatch::Allowed),
        ([10, 0, 0, 1], AccessMatch::Denied),
        ([10, 0, 0, 254], AccessMatch::Denied),
        ([10, 0, 0, 255], AccessMatch::Allowed),
        ([10, 0, 1, 0], AccessMatch::Unlisted),
        ([7, 255, 255, 255], AccessMatch::Denied),
        ([8, 0, 0, 0], AccessMatch::Unlisted),
    ] {
        assert_eq!(list.check(address), access, "{address:?}");
    }
}

#[test]
fn whole_address_space_can_be_listed() {
    let list: AccessList = "deny 0.0.0.0/0\ndeny ::/0\nallow 255.255.255.255\nallow ::".parse().unwrap();
    assert_eq!(list.check(Ipv4Addr::UNSPECIFIED), AccessMatch::Denied);
    assert_eq!(list.check(Ipv4Addr::BROADCAST), AccessMatch::Allowed);
    assert_eq!(list.check(Ipv6Addr::UNSPECIFIED), AccessMatch::Allowed);
    assert_eq!(list.check(Ipv6Addr::from(u128::MAX)), AccessMatch::Denied);
    let only_v6: AccessList = "::/0".parse().unwrap();
    assert_eq!(only_v6.check("::ffff:192.0.2.7".parse::<IpAddr>().unwrap()), AccessMatch::Unlisted);
}

#[test]
fn keys_match_exactly() {
    let text = "deny key mallory\nallow key alice  # a friend\nkey Bob Smith\nkey a#b\nkey 10.0.0.1\nkey key";
    let list: AccessList = text.parse().unwrap();
    for (key, access) in [
        ("mallory", AccessMatch::Denied),
        ("alice", AccessMatch::Allowed),
        ("Bob Smith", AccessMatch::Denied),
        ("a#b", AccessMatch::Denied),
        ("10.0.0.1", AccessMatch::Denied),
        ("key", AccessMatch::Denied),
        ("Mallory", AccessMatch::Unlisted),
        ("mallory ", AccessMatch::Unlisted),
        ("", AccessMatch::Unlisted),
        ("alicemallory", AccessMatch::Unlisted),
    ] {
        assert_eq!(list.check_key(key), access, "{key}");
    }
    assert_eq!(list.check([10, 0, 0, 1]), AccessMatch::Unlisted);

    let many = (0..50_000).fold(AccessList::builder(), |list, i| list.deny_key(format!("user-{i}")));
    let many = many.build().unwrap();
    assert!((0..50_000).all(|i| many.check_key(&format!("user-{i}")) == AccessMatch::Denied));
    assert!((50_000..100_000).all(|i| many.check_key(&format!("user-{i}")) == AccessMatch::Unlisted));
    assert_eq!(many.len(), 50_000);
}

#[test]
fn list_text_parses_line_by_line() {
    let text = "\u{feff}# a comment\r\n\r\n  192.0.2.7 # another\r\n\tallow\t10.0.0.0/8\r\ndeny 10.1.0.0/16\r\n#deny ::/0";
    let read = |default_action| AccessList::builder().text(text, default_action).build().unwrap();
    for (default_action, access) in
        [(ListAction::Deny, AccessMatch::Denied), (ListAction::Allow, AccessMatch::Allowed)]
    {
        let list = read(default_action);
        assert_eq!((list.len(), list.check([192, 0, 2, 7])), (3, access));
        assert_eq!(list.check([10, 0, 0, 1]), AccessMatch::Allowed);
        assert_eq!(list.check([10, 1, 0, 1]), AccessMatch::Denied);
        assert_eq!(list.check(Ipv6Addr::LOCALHOST), AccessMatch::Unlisted);
    }
}

#[test]
fn list_errors_have_line_and_fix() {
    let text = "\
deny 10.0.0.1/8
allow 192.0.2.7
deny
key
mallory
192.0.2.1 192.0.2.2
10.0.0.0/33
deny ::ffff:192.0.2.7
allow key alice
deny 300.1.1.1
deny key alice
block 192.0.2.9
allow 192.0.2.7";
    let error = text.parse::<AccessList>().unwrap_err();
    let printed = "\
line 1: `10.0.0.1/8` has bits set after the first 8; write `10.0.0.0/8`, or `10.0.0.1` for a single address
line 3: missing address after `deny`; write `deny 192.0.2.7`, or `deny key alice`
line 4: missing key after `key`; write `key alice`
line 5: `mallory` is not an address; write `key mallory` for a key
line 6: unexpected `192.0.2.2` after the address; write one entry per line, and `#` before a comment
line 7: `10.0.0.0/33`: an IPv4 address has 32 bits; write `10.0.0.0` for a single address
line 8: `192.0.2.7` is allowed on line 2 and denied on line 8; remove one of the two
line 10: `300.1.1.1` is not an address; write an address as `192.0.2.7`, or a prefix as `10.0.0.0/8` or `2001:db8::/32`
line 11: `key alice` is allowed on line 9 and denied on line 11; remove one of the two
line 12: `block 192.0.2.9` is not an address; write an address as `192.0.2.7`, or a prefix as `10.0.0.0/8` or `2001:db8::/32`";
    assert_eq!(error.to_string(), printed);
    assert_eq!(error.problems().len(), 10);
    assert_eq!(error.problems()[1].line, Some(3));
}

#[test]
fn many_list_errors_are_truncated() {
    let error = "x\n".repeat(1_000).parse::<AccessList>().unwrap_err();
    assert_eq!(error.problems().len(), 1_000);
    assert!(error.to_string().ends_with("`key x` for a key\nand 980 more"));
    let error = format!("{}:", "ä".repeat(10_000)).parse::<AccessList>().unwrap_err();
    assert!(error.to_string().chars().count() < 200);
}

#[test]
fn contradicting_entries_are_rejected() {
    let prefix: Prefix = "10.0.0.0/8".parse().unwrap();
    let error = AccessList::builder().deny(prefix).allow(prefix).deny(prefix).build().unwrap_err();
    assert!(error.to_string().starts_with("`10.0.0.0/8` is allowed and denied; remove one of the two"));
    assert_eq!(AccessList::builder().deny(prefix).deny(prefix).build().unwrap().len(), 1);
    assert!(AccessList::builder().build().unwrap().is_empty());
}
