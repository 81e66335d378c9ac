//! Which limit applies to a descriptor, and which counter it uses.

use super::{entries, format_entries, read};
use tidegate_policy::descriptors::{DescriptorAmount, DescriptorSet, MetricName};

/// The number of the limit that applies, the entries of its counter if they differ, and its metric name if it is detailed.
fn find_limit(set: &DescriptorSet, text: &str) -> String {
    let descriptor = entries(text);
    let Some(found) = set.domain("shop").unwrap().find(&descriptor) else { return "none".to_owned() };
    let DescriptorAmount::PerUnit { requests, .. } = found.limit.amount else {
        return "unlimited".to_owned();
    };
    let mut description = requests.to_string();
    let counted = format_entries(&found.counter_entries);
    if counted != format_entries(&descriptor) {
        description += &format!(" as {counted}");
    }
    if let MetricName::Detailed(name) = &found.metric {
        description += &format!(" called {name}");
    }
    description
}

fn assert_matches(file: &str, table: &[(&str, &str)]) {
    let set = read(file).unwrap();
    for (descriptor, expected) in table {
        assert_eq!(find_limit(&set, descriptor), *expected, "{descriptor}");
    }
}

/// The best match at each level applies, without backtracking.
#[test]
fn best_match_per_level_applies() {
    let file = "
domain: shop
descriptors:
  - key: key1
    value: value1
    descriptors:
      - { key: subkey1, rate_limit: { unit: second, requests_per_unit: 5 } }
      - { key: subkey1, value: subvalue1, rate_limit: { unit: second, requests_per_unit: 10 } }
  - { key: key2, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: key2, value: value2, rate_limit: { unit: minute, requests_per_unit: 30 } }
  - { key: key2, value: value3 }
  - { key: key3, rate_limit: { unit: minute, requests_per_unit: 40 }, descriptors: [{ key: below }] }
  - { key: key4, rate_limit: { unlimited: true } }
  - key: user
    descriptors: [{ key: path, rate_limit: { unit: day, requests_per_unit: 50 } }]
  - key: user
    value: root
";
    assert_matches(
        file,
        &[
            ("", "none"),
            ("unknown=x", "none"),
            // Too shallow, exact depth, too deep.
            ("key1=value1", "none"),
            ("key1=something subkey1=x", "none"),
            ("key1=value1 subkey1=something", "5"),
            ("key1=value1 subkey1=subvalue1", "10"),
            ("key1=value1 subkey1=subvalue1 more=x", "none"),
            ("key2=something", "20"),
            ("key2", "20"),
            ("key2=value2", "30"),
            ("key2=value2 subkey=x", "none"),
            // A node without a limit admits all requests, even if the node of its key alone has a limit.
            ("key2=value3", "none"),
            ("key3=x", "40"),
            ("key3=x below=y", "none"),
            ("key4=x", "unlimited"),
            // The exact match has no children, and there is no backtracking to the other node.
            ("user=alice path=/", "50"),
            ("user=root path=/", "none"),
            // The order of entries matters.
            ("path=/ user=alice", "none"),
        ],
    );
}

#[test]
fn patterns_match_after_exact_values_in_order() {
    let file = "
domain: shop
descriptors:
  - { key: path, value: /a*, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: path, value: /ab*, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: path, value: /abc, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: path, rate_limit: { unit: day, requests_per_unit: 4 } }
  - { key: mid, value: bar*b, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: multi, value: foo*bar*baz, rate_limit: { unit: day, requests_per_unit: 6 } }
  - { key: front, value: '*.jpg', rate_limit: { unit: day, requests_per_unit: 7 } }
  - { key: all, value: '*', rate_limit: { unit: day, requests_per_unit: 8 } }
  - key: nest
    value: n*
    descriptors: [{ key: x, value: y*, rate_limit: { unit: day, requests_per_unit: 9 } }]
  - key: nest
    descriptors: [{ key: z, rate_limit: { unit: day, requests_per_unit: 10 } }]
  - { key: k*, rate_limit: { unit: day, requests_per_unit: 11 } }
  - { key: ki, value: v*, rate_limit: { unit: day, requests_per_unit: 12 } }
  - { key: ki, value: x, rate_limit: { unit: day, requests_per_unit: 13 } }
  - { key: q*q, value: w*, rate_limit: { unit: day, requests_per_unit: 14 } }
";
    assert_matches(
        file,
        &[
            ("path=/abc", "3"),
            ("path=/abd", "1"),
            ("path=/a*", "1"),
            ("path=/ab*", "2"),
            ("path=/x", "4"),
            ("path", "4"),
            ("mid=barab", "5"),
            ("mid=barb", "5"),
            ("mid=bara", "none"),
            ("mid=xbarb", "none"),
            ("mid=bar", "none"),
            ("multi=foo1bar2baz", "6"),
            ("multi=foobarbaz", "6"),
            ("multi=foobaz", "none"),
            ("multi=foobarba", "none"),
            ("front=a.jpg", "7"),
            ("front=a.jpg.exe", "none"),
            ("all=x", "8"),
            ("all", "8"),
            ("nest=n1 x=y1", "9"),
            // The pattern is first in the file, and has no child `z`.
            ("nest=n1 z=y", "none"),
            ("nest=m z=y", "10"),
            ("nest=n1 x=z", "none"),
            // Patterns of keys.
            ("kx=1", "11"),
            ("ki=v", "11"),
            ("ki=x", "13"),
            ("qq=w", "14"),
            ("q1q=w2", "14"),
            ("q1q=x", "none"),
        ],
    );
}

#[test]
fn shared_threshold_uses_one_counter() {
    let file = "
domain: shop
descriptors:
  - { key: files, value: files/*, share_threshold: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: plain, value: files/*, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: file, value: test1, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: file, value: test*, share_threshold: true, rate_limit: { unit: day, requests_per_unit: 4 } }
  - { key: mid, value: /api*v1, share_threshold: true, rate_limit: { unit: day, requests_per_unit: 5 } }
  - key: path
    value: path/*
    share_threshold: true
    descriptors:
      - key: file
        value: file/*
        descriptors: [{ key: type, rate_limit: { unit: day, requests_per_unit: 6 } }]
  - { key: t*, share_threshold: true, rate_limit: { unit: day, requests_per_unit: 7 } }
";
    assert_matches(
        file,
        &[
            ("files=files/a.txt", "1 as files=files/*"),
            ("files=files/*", "1"),
            ("plain=files/a.txt", "2"),
            ("file=test1", "3"),
            ("file=test2", "4 as file=test*"),
            ("mid=/api-beta-v1", "5 as mid=/api*v1"),
            ("path=path/foo file=file/doc type=pdf", "6 as path=path/* file=file/doc type=pdf"),
            ("tea=green", "7 as t*="),
        ],
    );
}

#[test]
fn metric_names_include_values_when_enabled() {
    let file = "
domain: shop
descriptors:
  - { key: a, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - key: b
    descriptors: [{ key: c, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 2 } }]
  - { key: d, detailed_metric: true, descriptors: [{ key: e, rate_limit: { unit: day, requests_per_unit: 3 } }] }
  - { key: v, value_to_metric: true, rate_limit: { unit: day, requests_per_unit: 4 } }
  - { key: v, value: w, value_to_metric: true, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: p, value: foo*, value_to_metric: true, rate_limit: { unit: day, requests_per_unit: 6 } }
  - key: route
    value_to_metric: true
    descriptors: [{ key: method, rate_limit: { unit: day, requests_per_unit: 7 } }]
  - key: shared
    value: api/*
    share_threshold: true
    value_to_metric: true
    descriptors: [{ key: method, rate_limit: { unit: day, requests_per_unit: 8 } }]
  - key: service
    value: svc/*
    share_threshold: true
    descriptors: [{ key: end, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 9 } }]
";
    assert_matches(
        file,
        &[
            ("a=1", "1 called shop.a_1"),
            // The name always contains the value, as in envoyproxy/ratelimit.
            ("a", "1 called shop.a_"),
            ("b=1 c=2", "2 called shop.b_1.c_2"),
            // The flag applies only to the node with the limit.
            ("d=1 e=2", "3"),
            ("v=1", "4 called shop.v_1"),
            ("v", "4"),
            ("v=w", "5"),
            ("p=foo1", "6 called shop.p_foo1"),
            ("route=r method=GET", "7 called shop.route_r.method"),
            // Values that share a counter also share a metric name.
            ("shared=api/v1 method=GET", "8 as shared=api/* method=GET"),
            ("service=svc/user end=get", "9 as service=svc/* end=get called shop.service_svc/*.end_get"),
        ],
    );
}
