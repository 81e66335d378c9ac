//! Errors of descriptor files: the messages of envoyproxy/ratelimit, and our own for extensions.

use super::{read, read_all};
use tidegate_policy::descriptors::{DescriptorSet, DomainMerge, RawDescriptor, RawDomain};

/// A valid file with this descriptor.
fn file_with_descriptor(descriptor: &str) -> String {
    format!("domain: shop\ndescriptors:\n  - {{ {descriptor} }}\n")
}

fn file_with_limit(limit: &str) -> String {
    file_with_descriptor(&format!("key: user, rate_limit: {{ {limit} }}"))
}

#[test]
fn known_errors_match_envoy_ratelimit_messages() {
    let table = [
        (String::new(), "config file cannot have empty domain"),
        ("descriptors: []".to_owned(), "config file cannot have empty domain"),
        ("domain: ''".to_owned(), "config file cannot have empty domain"),
        ("domain: a\n---\ndomain: a".to_owned(), "duplicate domain 'a' in config file"),
        (file_with_descriptor("value: x"), "descriptor has empty key"),
        (file_with_descriptor("key: a, descriptors: [{ key: '' }]"), "descriptor has empty key"),
        (
            file_with_descriptor("key: k, value: v }\n  - { key: k, value: v"),
            "duplicate descriptor composite key 'shop.k_v'",
        ),
        (
            file_with_descriptor("key: p, descriptors: [{ key: k }, { key: k }]"),
            "duplicate descriptor composite key 'shop.p.k'",
        ),
        (file_with_limit("unit: foo, requests_per_unit: 5"), "invalid rate limit unit 'foo'"),
        (file_with_limit("unit: unknown, requests_per_unit: 5"), "invalid rate limit unit 'unknown'"),
        (file_with_limit("requests_per_unit: 5"), "invalid rate limit unit ''"),
        (file_with_limit(""), "invalid rate limit unit ''"),
        (file_with_limit("unlimited: true, unit: day"), "should not specify rate limit unit when unlimited"),
        (
            file_with_limit("unit: day, name: a, replaces: [{ name: b }, { name: a }]"),
            "replaces should not contain name of same descriptor",
        ),
        (file_with_limit("unit: day, replaces: [{ name: '' }]"), "should not have an empty replaces entry"),
        (file_with_limit("unit: day, replaces: [{}]"), "should not have an empty replaces entry"),
        (file_with_descriptor("key: a, ratelimit: { unit: day }"), "config error, unknown key 'ratelimit'"),
        (file_with_limit("unit: day, requestsperunit: 5"), "config error, unknown key 'requestsperunit'"),
        (file_with_descriptor("key: a, quota: 5/min"), "config error, unknown key 'quota'"),
        ("domain: a\n0.25: b".to_owned(), "config error, key is not of type string: 0.25"),
        ("domain: a\ntrue: b".to_owned(), "config error, key is not of type string: true"),
        (
            "domain: a\ndescriptors: [a, b]".to_owned(),
            "config error, yaml file contains list of type other than map: a",
        ),
        (
            "domain: a\ndescriptors: [[1, [b, ~]]]".to_owned(),
            "config error, yaml file contains list of type other than map: [1 [b <nil>]]",
        ),
        (
            file_with_descriptor("key: a, value: b, share_threshold: true"),
            "share_threshold can only be used with wildcard values (containing '*'), but found key 'a_b'",
        ),
    ];
    for (text, problem) in table {
        let error = read(&text).unwrap_err();
        assert_eq!(error.to_string(), format!("a.yaml: {problem}"), "{text}");
        assert_eq!((error.file(), error.problem()), ("a.yaml", problem));
    }
}

#[test]
fn syntax_errors_have_line() {
    let table = [
        ("domain: \"a\ndescriptors:\n", "line 1: "),
        (
            "domain: a\n\tdescriptors:",
            "line 1: while scanning a plain scalar, found a tab; indent with spaces",
        ),
        (
            "domain: a\ndomain: b",
            "line 2: duplicate key `domain`; remove one of them; the first is on line 1",
        ),
        ("[a]", "line 1: cannot unmarshal !!seq into a descriptor file, which must be a map"),
        (
            "domain: a\ndescriptors: 5",
            "line 2: cannot unmarshal !!int `5` into descriptors, which must be a list",
        ),
        ("domain: [{}]", "line 1: cannot unmarshal !!seq into string"),
        (
            "domain: a\ndescriptors:\n  - key: b\n    rate_limit: day",
            "line 4: cannot unmarshal !!str `day` into a rate_limit, which must be a map",
        ),
        (
            "domain: a\ndescriptors: [{ <<: b }]",
            "line 2: cannot unmarshal !!map into a descriptor file, which must be a map",
        ),
    ];
    for (text, problem) in table {
        let error = read(text).unwrap_err().to_string();
        let expected = format!("a.yaml: error loading config file: yaml: {problem}");
        assert!(error.starts_with(&expected), "{error}\n{expected}");
    }
    let table = [
        ("requests_per_unit: '5', unit: day", "!!str `5` into uint32"),
        ("requests_per_unit: -1, unit: day", "!!int `-1` into uint32"),
        ("requests_per_unit: 4294967296, unit: day", "!!int `4294967296` into uint32"),
        ("requests_per_unit: many, unit: day", "!!str `many` into uint32"),
        ("unlimited: 1", "!!int `1` into bool"),
        ("unlimited: maybe", "!!str `maybe` into bool"),
        ("unit: { name: day }", "!!map into string"),
        ("unit: day, replaces: true", "!!bool `true` into replaces, which must be a list"),
    ];
    for (text, problem) in table {
        let error = read(&file_with_limit(text)).unwrap_err().to_string();
        let expected = format!("a.yaml: error loading config file: yaml: line 3: cannot unmarshal {problem}");
        assert_eq!(error, expected);
    }
    assert_eq!(
        read(&file_with_descriptor("key: a, metadata: b")).unwrap_err().problem(),
        "error loading config file: yaml: line 3: cannot unmarshal !!str `b` into metadata, which must be a map"
    );
    for (number, shown) in [("1.5", "1.5"), ("1e3", "1e3"), ("9223372036854775808", "9223372036854775808")] {
        assert_eq!(
            read(&file_with_descriptor(&format!("key: a, value: {number}"))).unwrap_err().problem(),
            format!("error checking config: {shown} is not an integer; put it into quotes"),
        );
    }
}

#[test]
fn quota_errors_have_fix() {
    let table = [
        ("quota: 5/mni", "invalid quota '5/mni': unknown period `mni`; use one of us, ms, s, min, h, d, w"),
        (
            "quota: 3 at once",
            "invalid quota '3 at once': descriptors support rates only; use one such as '100/min'",
        ),
        ("quota: 5/min, quotas: [5/min]", "should not specify both quota and quotas; use quotas"),
        (
            "lease: 200ms, unit: second",
            "should not specify lease without quotas; use quotas such as [100/min]",
        ),
        (
            "quota: 5/min, lease: soon",
            "invalid lease 'soon'; use a duration from 2ms to 1min, such as '200ms'",
        ),
        (
            "quota: 5/min, lease: 5s burst 3",
            "invalid lease '5s burst 3'; use a duration from 2ms to 1min, such as '200ms'",
        ),
        ("quota: 5/min, lease: 2h", "invalid lease '2h'; use a duration from 2ms to 1min, such as '200ms'"),
        ("quotas: []", "quotas should be a list such as [100/min burst 20, 1000/h]"),
        ("quotas: 5/min", "quotas should be a list such as [100/min burst 20, 1000/h]"),
        ("quota: 5/min, unlimited: true", "should not specify quotas when unlimited"),
        (
            "quota: 5/min, unit: day",
            "should not specify quotas besides unit and requests_per_unit; remove either",
        ),
        (
            "quotas: [5/min], requests_per_unit: 0",
            "should not specify quotas besides unit and requests_per_unit; remove either",
        ),
    ];
    for (text, problem) in table {
        assert_eq!(read(&file_with_limit(text)).unwrap_err().problem(), problem, "{text}");
    }
}

#[test]
fn error_names_the_file() {
    let (shop, twice) =
        ("domain: shop\ndescriptors: [{ key: a }]", "domain: shop\ndescriptors: [{ key: b }]");
    let error = |files: &[(&str, &str)], merge| read_all(files, merge).unwrap_err().to_string();
    assert_eq!(
        error(&[("a.yaml", shop), ("b.yaml", twice)], DomainMerge::Reject),
        "b.yaml: duplicate domain 'shop' in config file"
    );
    assert_eq!(
        error(&[("a.yaml", shop), ("b.yaml", shop)], DomainMerge::Combine),
        "b.yaml: duplicate descriptor composite key 'shop.a'"
    );
    // Syntax errors of all files are reported before conflicts between files.
    assert_eq!(
        error(&[("a.yaml", "domain: ''"), ("b.yaml", "domian: shop")], DomainMerge::Combine),
        "b.yaml: config error, unknown key 'domian'"
    );
    let joined = read_all(&[("a.yaml", shop), ("b.yaml", twice)], DomainMerge::Combine).unwrap();
    assert_eq!(joined.domains().count(), 1);
}

#[test]
fn raw_descriptors_are_validated() {
    let descriptor = |key: &str| RawDescriptor { key: key.to_owned(), ..RawDescriptor::default() };
    let build = |domain: &str, descriptors| {
        let raw = RawDomain { source: "snapshot".to_owned(), domain: domain.to_owned(), descriptors };
        DescriptorSet::build([raw], DomainMerge::Reject).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(build("shop", vec![descriptor("a")]), Ok(()));
    let table = [
        (build("", vec![]), "snapshot: config file cannot have empty domain"),
        (build("shop", vec![descriptor("")]), "snapshot: descriptor has empty key"),
        (
            build("shop", vec![descriptor("a"), descriptor("a")]),
            "snapshot: duplicate descriptor composite key 'shop.a'",
        ),
    ];
    for (result, expected) in table {
        assert_eq!(result.unwrap_err(), expected);
    }
    let deep = (0..33).fold(Vec::new(), |descriptors, _| {
        vec![RawDescriptor { key: "a".to_owned(), descriptors, ..RawDescriptor::default() }]
    });
    assert_eq!(
        build("shop", deep).unwrap_err(),
        "snapshot: descriptors are more than 32 levels deep; use fewer"
    );
}

/// A small file must not expand to a huge set, or overflow the stack.
#[test]
fn oversized_descriptors_are_rejected() {
    let problem = |text: &str| read(text).unwrap_err().problem().to_owned();
    let large = format!("domain: a #{}", "x".repeat(8 * 1024 * 1024));
    assert_eq!(
        problem(&large),
        format!("error loading config file: yaml: {} bytes are more than 8 MiB; split the file", large.len())
    );

    let nested = format!("domain: a\ndescriptors: {}", "[".repeat(100_000));
    assert!(read(&nested).is_err());
    let nested =
        format!("domain: a\ndescriptors: {}", "[{ key: a, descriptors: ".repeat(40) + &"}]".repeat(40));
    assert!(problem(&nested).contains("more than 64 levels deep"));

    // A long key with many children.
    let long = "x".repeat(1024 * 1024);
    let many: String = (0..100).map(|i| format!("{{ key: k{i} }}, ")).collect();
    assert_eq!(
        problem(&file_with_descriptor(&format!("key: {long}, descriptors: [{many}]"))),
        "the paths of all descriptors take more than 64 MiB; use shorter keys and values"
    );

    // Each alias is deeper than the previous one.
    let deep = |inner: &str| "{ descriptors: [".repeat(28) + inner + &"] }".repeat(28);
    let mut chain = format!("domain: a\nmetadata:\n  z0: &z0 {}\n", deep("{ key: a }"));
    for i in 1..20 {
        chain += &format!("  z{i}: &z{i} {}\n", deep(&format!("*z{}", i - 1)));
    }
    assert_eq!(
        problem(&(chain.clone() + "descriptors: [*z19]")),
        "config error, maps and lists are more than 128 levels deep"
    );
    assert_eq!(
        problem(&(chain + "descriptors: [{ key: a, metadata: *z19 }]")),
        "metadata is more than 128 levels deep; use fewer"
    );
}
