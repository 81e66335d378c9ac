//! The content of descriptor files.

use super::{entries, read, read_all};
use serde_json::json;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorAmount, DescriptorFlags, Domain, DomainMerge};

const FULL_FILE: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 100, name: each, replaces: [{ name: all }, { name: other }] }
    shadow_mode: true
    metadata: { owner: cart, tags: [1, -2, 2.5, true, ~], deep: { er: 18446744073709551615 } }
    descriptors:
      - key: path
        value: /pay
        quota_mode: true
        rate_limit: { unit: SECOND, requests_per_unit: 0 }
      - { key: path, value: /free, rate_limit: { unlimited: true } }
  - key: free
  - key: tokens
    rate_limit: { quotas: [100/min burst 20, 1000/h sliding-window] }
  - { key: bytes, rate_limit: { quota: 5MB/s } }
";

#[test]
fn file_defines_limits() {
    let set = read(FULL_FILE).unwrap();
    let lines: Vec<_> = set.config_lines().collect();
    assert_eq!(
        lines,
        [
            "shop.user: unit=MINUTE requests_per_unit=100, shadow_mode: true, quota_mode: false",
            "shop.user.path_/pay: unit=SECOND requests_per_unit=0, shadow_mode: false, quota_mode: true",
            "shop.user.path_/free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false",
            "shop.tokens: quotas=[100/min burst 20; 1000/h sliding-window], shadow_mode: false, quota_mode: false",
            "shop.bytes: quotas=[5MB/s], shadow_mode: false, quota_mode: false",
        ]
    );
    let limits: Vec<_> = set.limits().collect();
    assert_eq!(limits.len(), lines.len());
    let user = limits[0];
    assert_eq!(user.amount, DescriptorAmount::PerUnit { requests: 100, unit: CalendarUnit::Minute });
    assert_eq!(user.name.as_deref(), Some("each"));
    assert_eq!(user.replaces, ["all", "other"]);
    assert_eq!(user.flags, DescriptorFlags { shadow_mode: true, ..DescriptorFlags::default() });
    let metadata = json!({
        "owner": "cart",
        "tags": [1, -2, 2.5, true, null],
        "deep": { "er": u64::MAX },
    });
    assert_eq!(user.metadata.as_deref(), Some(&metadata));
    assert_eq!(limits[2].amount, DescriptorAmount::Unlimited);
    assert_eq!((limits[1].metadata.as_ref(), limits[1].name.as_ref()), (None, None));
    assert_eq!(
        limits[3].amount,
        DescriptorAmount::Quotas(vec![
            "100/min burst 20".parse().unwrap(),
            "1000/h sliding-window".parse().unwrap()
        ])
    );
}

/// Envoy Gateway writes such files: several documents, empty limits, units in upper case, names.
#[test]
fn yaml_variants_are_accepted() {
    let text = "\u{feff}\
name: gateway/one
domain: gateway/one
descriptors:
- key: route-1
  value: route-1
  rate_limit: null
  shadow_mode: false
  descriptors:
  - key: rule-0
    value: rule-0
    rate_limit:
      name: ''
      replaces: []
      requests_per_unit: 5
      unit: HOUR
      unlimited: false
    descriptors: []
    metadata: null
---
domain: gateway/two
descriptors: null
---
";
    let set = read(text).unwrap();
    assert_eq!(set.domains().map(Domain::name).collect::<Vec<_>>(), ["gateway/one", "gateway/two"]);
    let found = set.domain("gateway/one").unwrap();
    let descriptor = entries("route-1=route-1 rule-0=rule-0");
    let found = found.find(&descriptor).unwrap();
    assert_eq!(found.limit.amount, DescriptorAmount::PerUnit { requests: 5, unit: CalendarUnit::Hour });
    assert_eq!(found.limit.name, None);
    assert!(set.domain("gateway/three").is_none() && set.domain("").is_none());
}

/// A scalar may be a string, a number, a boolean or null. Its notation is preserved.
#[test]
fn scalars_are_read_as_written() {
    let table = [
        ("8080", "8080"),
        ("007", "007"),
        ("-1", "-1"),
        ("true", "true"),
        ("True", "True"),
        ("no", "no"),
        ("''", ""),
        ("~", ""),
        ("", ""),
        ("'1.5'", "1.5"),
        ("2024-01-01", "2024-01-01"),
    ];
    for (written, value) in table {
        let text =
            format!("domain: 1\ndescriptors: [{{ key: 5, value: {written}, rate_limit: {{ unit: day }} }}]");
        let set = read(&text).unwrap();
        let place = if value.is_empty() { "1.5".to_owned() } else { format!("1.5_{value}") };
        assert_eq!(&*set.limits().next().unwrap().path, place, "{written}");
    }
    for (written, requests) in
        [("7", 7), ("1_000", 1000), ("0x10", 16), ("010", 8), ("0o10", 8), ("0b11", 3), ("~", 0), ("+5", 5)]
    {
        let text = format!(
            "domain: a\ndescriptors: [{{ key: b, rate_limit: {{ unit: week, requests_per_unit: {written} }} }}]"
        );
        let set = read(&text).unwrap();
        let amount = DescriptorAmount::PerUnit { requests, unit: CalendarUnit::Week };
        assert_eq!(set.limits().next().unwrap().amount, amount, "{written}");
    }
    for (written, is) in [("true", true), ("False", false), ("yes", true), ("Off", false), ("~", false)] {
        let text = format!(
            "domain: a\ndescriptors: [{{ key: b, rate_limit: {{ unit: day }}, quota_mode: {written} }}]"
        );
        assert_eq!(read(&text).unwrap().limits().next().unwrap().flags.quota_mode, is, "{written}");
    }
}

#[test]
fn anchors_and_merge_keys_are_expanded() {
    let text = "
domain: shop
descriptors:
  - &slow { key: a, rate_limit: &limit { unit: day, requests_per_unit: 1 } }
  - { <<: *slow, key: b }
  - { key: c, rate_limit: { <<: [{ requests_per_unit: 2 }, *limit] } }
";
    let lines: Vec<_> = read(text).unwrap().config_lines().map(|line| line[..35].to_owned()).collect();
    let line = |key: &str, requests: u32| {
        format!("shop.{key}: unit=DAY requests_per_unit={requests}")[..35].to_owned()
    };
    assert_eq!(lines, [line("a", 1), line("b", 1), line("c", 2)]);
}

/// envoyproxy/ratelimit confuses `a_b` with `a` and the value `b`. Here they are distinct.
#[test]
fn similar_keys_stay_distinct() {
    let text = "
domain: shop
descriptors:
  - { key: a_b, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: a, value: b, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: p, value: 'x_*', rate_limit: { unit: day, requests_per_unit: 3 } }
";
    let set = read(text).unwrap();
    let found = |text: &str| {
        let descriptor = entries(text);
        let found = set.domain("shop").unwrap().find(&descriptor).map(|found| found.limit.amount.clone());
        found.map(|amount| match amount {
            DescriptorAmount::PerUnit { requests, .. } => requests,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!((found("a_b"), found("a_b=c"), found("a=b")), (Some(1), Some(1), Some(2)));
    assert_eq!((found("p=x_1"), found("p_x=1"), found("a=b_c")), (Some(3), None, None));
}

#[test]
fn empty_input_has_no_domains() {
    let set = read_all(&[], DomainMerge::Reject).unwrap();
    assert_eq!((set.domains().count(), set.limits().count(), set.config_lines().count()), (0, 0, 0));
}
