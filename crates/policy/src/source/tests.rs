//! Texts that are trees, and texts that are not.

use super::{Format, Node, Sources, Value};
use std::path::Path;

fn parse(text: &str, format: Format) -> Result<Node, String> {
    let mut sources = Sources::default();
    sources.parse(Path::new("p"), text.as_bytes(), format).map_err(|faults| {
        let all = faults
            .iter()
            .map(|fault| format!("{}: {}; {}", sources.place(fault.at), fault.problem, fault.fix));
        all.collect::<Vec<_>>().join(" | ")
    })
}

#[test]
fn three_languages_give_one_tree() {
    let yaml = "a: [1, -2.5, x, '3']\nb: { c: true, d: null }\ne:\n  - f: ~\n  - |\n    two\n    lines\n";
    let json = r#"{"a": [1, -2.5, "x", "3"], "b": {"c": true, "d": null},
                   "e": [{"f": null}, "two\nlines\n"]}"#;
    let toml = "a = [1, -2.5, 'x', '3']\nb.c = true\ne = [{ f = 0 }, \"two\\nlines\\n\"]\n";
    let (yaml, json) = (parse(yaml, Format::Yaml), parse(json, Format::Json));
    assert!(yaml.is_ok());
    assert_eq!(yaml, json);
    // There is nothing in TOML, which has no null.
    let toml = parse(toml, Format::Toml).unwrap();
    let Value::Map(entries) = &toml.value else { panic!("{toml:?}") };
    let names: Vec<_> = entries.iter().map(|(name, _)| name.text.as_str()).collect();
    assert_eq!(names, ["a", "b", "e"]);
}

#[test]
fn every_value_knows_its_place() {
    let cases = [
        (Format::Yaml, "ä: 'ö'\nkey:\n  - fünf: \"5/min\"\n", "3:11"),
        (Format::Json, "{\"ä\": \"ö\",\n\"key\": [{\"fünf\":\n   \"5/min\"}]}", "3:4"),
        (Format::Toml, "\"ä\" = 'ö'\n[[key]]\n\"fünf\" = \"5/min\"", "3:10"),
    ];
    for (format, text, expected) in cases {
        let mut sources = Sources::default();
        let mut node = sources.parse(Path::new("p"), text.as_bytes(), format).unwrap();
        loop {
            node = match node.value {
                Value::Map(mut entries) => entries.pop().unwrap().1,
                Value::List(mut items) => items.pop().unwrap(),
                Value::Text(text) => {
                    assert_eq!(sources.place(node.at), format!("p:{expected}"), "{format:?}");
                    let inside = sources.inside(node.at, &text).unwrap();
                    assert_eq!(&sources.files[0].text[inside.start..inside.end], "5/min");
                    break;
                }
                other => panic!("{other:?}"),
            };
        }
    }
}

#[test]
fn what_is_wrong_with_a_text() {
    let deep = "[".repeat(100);
    let deeper = "[".repeat(500_000);
    let closed = |open: &str| format!("{open}{}", "]".repeat(open.len()));
    let (deep_json, deeper_json) = (closed(&deep), closed(&deeper));
    let bomb = format!(
        "a: &a [{}]\n{}",
        "x, ".repeat(10),
        (1..9)
            .map(|i| format!(
                "b{i}: &b{i} [{}]\n",
                format!("*{}, ", if i == 1 { "a".into() } else { format!("b{}", i - 1) }).repeat(10)
            ))
            .collect::<String>()
    );
    let anchors =
        format!("{}{}", (0..40).map(|i| format!("&a{i} [")).collect::<String>(), "x".repeat(900_000));
    let anchors = format!("{anchors}{}", "]".repeat(40));
    let large = "x".repeat(2 * 1024 * 1024);
    let long = format!("{}: 1", "k".repeat(300));
    let cases: &[(Format, &str, &str)] = &[
        (
            Format::Yaml,
            "a: 1\nb: 2\na: 3\n",
            "p:3:1: the key `a` is here twice; leave one out; the first is on line 1",
        ),
        (
            Format::Json,
            "{\"a\": 1,\n \"a\": 2}",
            "p:2:2: the key `a` is here twice; leave one out; the first is on line 1",
        ),
        (
            Format::Toml,
            "a = 1\na = 2\n",
            "p:2:1: duplicate key; write TOML, with text in quotes: quota = \"5/min\"",
        ),
        (Format::Yaml, "a:\n\tb: 1\n", "p:2:"),
        (Format::Yaml, &deep, "p:1:65: more than 64 levels deep; say it with fewer levels"),
        (Format::Json, &deep_json, "p:1:65: more than 64 levels deep; say it with fewer levels"),
        (Format::Json, &deeper_json, "p:1:65: more than 64 levels deep"),
        (Format::Json, &deeper, "p:1:"),
        (Format::Yaml, &deeper, "p:1:"),
        (Format::Toml, &format!("a = {deeper}"), "p:1:"),
        (
            Format::Yaml,
            &bomb,
            "p:6:10: aliases that unfold to more than 16 MiB; write less, or use `templates`",
        ),
        (Format::Yaml, &large, "p:1:1: 2097152 bytes are too many for a policy; split it with `include`"),
        (Format::Yaml, &long, "p:1:1: a key of 300 characters; write up to 256"),
        (Format::Yaml, "a: *b\n", "p:1:4: "),
        (Format::Yaml, "a: 1\n---\nb: 2\n", "p:2:1: a second document; write one only"),
        (Format::Yaml, "? [a]\n: 1\n", "p:1:3: a key that is a list; write a word"),
        (Format::Yaml, "a: !secret 5\n", "p:1:4: the tag `!secret`; leave it out"),
        (Format::Yaml, "a: [1, 2\n", "p:1:4: `[` is not closed; close it with `]`"),
        (Format::Yaml, "a: b: c\n", "p:1:5: "),
        (Format::Yaml, "a: \"b\n", "p:"),
        (Format::Json, "", "p:1:1: EOF while parsing a value; write JSON, or name the file .yaml"),
        (Format::Json, "{'a': 1}", "p:1:2: key must be a string; write JSON"),
        (Format::Json, "{\"a\" 1}", "p:1:6: expected `:`; write JSON"),
        (Format::Json, "{\"a\": 1,}", "p:1:9: key must be a string; write JSON"),
        (Format::Json, "[1 2]", "p:1:4: expected `,` or `]`; write JSON"),
        (Format::Json, "[01]", "p:1:3: invalid number; write JSON"),
        (Format::Json, "[+1]", "p:1:2: expected value; write JSON"),
        (Format::Json, "[\"a\nb\"]", "p:1:"),
        (Format::Json, "[\"a\\x\"]", "p:1:"),
        (Format::Json, "[\"\\ud800\"]", "p:1:"),
        (Format::Json, "[\"a", "p:1:"),
        (Format::Json, "{} x", "p:1:4: trailing characters; write JSON"),
        (Format::Yaml, &anchors, "p:1:1"),
        (Format::Json, "[\"\u{1}\"]", "p:1:"),
        (Format::Toml, "a = 0xffff_ffff_ffff_ffff_f\n", "p:1:5: a number with too many digits; write fewer"),
        (Format::Toml, "a = 1979-05-27\n", "p:1:5: a date; write a text in quotes"),
        (Format::Toml, "a = b\nc = d\n", "p:1:5: string values must be quoted"),
    ];
    for (format, text, expected) in cases {
        let error = parse(text, *format).unwrap_err();
        assert!(error.starts_with(expected), "{:?}: {error}", text.get(..40));
    }
    let mut sources = Sources::default();
    let faults = sources.parse(Path::new("p"), b"\xef\xbb\xbfa: 1\nb: \xff", Format::Yaml).unwrap_err();
    assert_eq!(sources.place(faults[0].at), "p:2:4");
    assert!(parse("\u{feff}a: 1", Format::Yaml).is_ok());
}

/// What JSON is, and what it says, is what another reader of it thinks.
#[test]
fn json_is_json() {
    use proptest::prelude::*;
    fn same(node: &Node, other: &serde_json::Value) -> bool {
        use serde_json::Value as Json;
        match (&node.value, other) {
            (Value::Null, Json::Null) => true,
            (Value::Bool(a), Json::Bool(b)) => a == b,
            (Value::Number(a), Json::Number(b)) => a.parse::<f64>().ok() == b.as_f64(),
            (Value::Text(a), Json::String(b)) => a == b,
            (Value::List(a), Json::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
            }
            (Value::Map(a), Json::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(name, a)| b.get(&name.text).is_some_and(|b| same(a, b)))
            }
            _ => false,
        }
    }
    let tokens = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"b\"",
        "1",
        "-0.5e3",
        "null",
        "true",
        "false",
        " ",
        "\n",
        "01",
        "1.",
        "\"\\u00e4\\n\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "é",
        "\"é\"",
        "'",
        "\t",
        "-",
        "1e5",
        "\u{1}",
        "\"\u{1}\"",
    ];
    let texts = prop_oneof![
        proptest::collection::vec(proptest::sample::select(tokens.to_vec()), 0..8)
            .prop_map(|all| all.concat()),
        proptest::collection::vec(proptest::sample::select(tokens.to_vec()), 0..3)
            .prop_map(|all| format!("{{\"k\": [{}], \"l\": {{}}}}", all.concat())),
    ];
    let law = |text: String| {
        let (ours, other) = (parse(&text, Format::Json), serde_json::from_str::<serde_json::Value>(&text));
        match (&ours, &other) {
            (Ok(ours), Ok(other)) => prop_assert!(same(ours, other), "{text}"),
            (Err(error), Ok(_)) => prop_assert!(error.contains("twice"), "{text}: {error}"),
            (Err(_), Err(_)) => {}
            // Numbers are kept as they are written, however large.
            (Ok(_), Err(error)) => {
                prop_assert!(error.to_string().contains("out of range"), "{text}: {error}");
            }
        }
        Ok(())
    };
    tidegate_testkit::strategy::runner_of(20_000).run(&texts, law).unwrap();
}
