//! Tests of the parsers: valid and invalid sources.

use super::{PolicyFormat, Sources, SyntaxNode, SyntaxValue};
use std::path::Path;

fn parse(text: &str, format: PolicyFormat) -> Result<SyntaxNode, String> {
    let mut sources = Sources::default();
    sources.parse(Path::new("p"), text.as_bytes(), format).map_err(|faults| {
        let all = faults
            .iter()
            .map(|fault| format!("{}: {}; {}", sources.location(fault.span), fault.problem, fault.fix));
        all.collect::<Vec<_>>().join(" | ")
    })
}

#[test]
fn yaml_json_and_toml_parse_to_one_tree() {
    let yaml = "a: [1, -2.5, x, '3']\nb: { c: true, d: null }\ne:\n  - f: ~\n  - |\n    two\n    lines\n";
    let json = r#"{"a": [1, -2.5, "x", "3"], "b": {"c": true, "d": null},
                   "e": [{"f": null}, "two\nlines\n"]}"#;
    let toml = "a = [1, -2.5, 'x', '3']\nb.c = true\ne = [{ f = 0 }, \"two\\nlines\\n\"]\n";
    let (yaml, json) = (parse(yaml, PolicyFormat::Yaml), parse(json, PolicyFormat::Json));
    assert!(yaml.is_ok());
    assert_eq!(yaml, json);
    // TOML has no null.
    let toml = parse(toml, PolicyFormat::Toml).unwrap();
    let SyntaxValue::Map(entries) = &toml.value else { panic!("{toml:?}") };
    let names: Vec<_> = entries.iter().map(|(name, _)| name.text.as_str()).collect();
    assert_eq!(names, ["a", "b", "e"]);
}

#[test]
fn values_have_spans() {
    let cases = [
        (PolicyFormat::Yaml, "ä: 'ö'\nkey:\n  - fünf: \"5/min\"\n", "3:11"),
        (PolicyFormat::Json, "{\"ä\": \"ö\",\n\"key\": [{\"fünf\":\n   \"5/min\"}]}", "3:4"),
        (PolicyFormat::Toml, "\"ä\" = 'ö'\n[[key]]\n\"fünf\" = \"5/min\"", "3:10"),
    ];
    for (format, text, expected) in cases {
        let mut sources = Sources::default();
        let mut node = sources.parse(Path::new("p"), text.as_bytes(), format).unwrap();
        loop {
            node = match node.value {
                SyntaxValue::Map(mut entries) => entries.pop().unwrap().1,
                SyntaxValue::List(mut items) => items.pop().unwrap(),
                SyntaxValue::Text(text) => {
                    assert_eq!(sources.location(node.span), format!("p:{expected}"), "{format:?}");
                    let inside = sources.unquoted_span(node.span, &text).unwrap();
                    assert_eq!(&sources.files[0].text[inside.start..inside.end], "5/min");
                    break;
                }
                other => panic!("{other:?}"),
            };
        }
    }
}

#[test]
fn syntax_errors_have_position_and_fix() {
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
    let cases: &[(PolicyFormat, &str, &str)] = &[
        (
            PolicyFormat::Yaml,
            "a: 1\nb: 2\na: 3\n",
            "p:3:1: duplicate key `a`; remove one of them; the first is on line 1",
        ),
        (
            PolicyFormat::Json,
            "{\"a\": 1,\n \"a\": 2}",
            "p:2:2: duplicate key `a`; remove one of them; the first is on line 1",
        ),
        (
            PolicyFormat::Toml,
            "a = 1\na = 2\n",
            "p:2:1: duplicate key; write valid TOML, with strings in quotes: quota = \"5/min\"",
        ),
        (PolicyFormat::Yaml, "a:\n\tb: 1\n", "p:2:"),
        (PolicyFormat::Yaml, &deep, "p:1:65: more than 64 levels deep; use fewer levels"),
        (PolicyFormat::Json, &deep_json, "p:1:65: more than 64 levels deep; use fewer levels"),
        (PolicyFormat::Json, &deeper_json, "p:1:65: more than 64 levels deep"),
        (PolicyFormat::Json, &deeper, "p:1:"),
        (PolicyFormat::Yaml, &deeper, "p:1:"),
        (PolicyFormat::Toml, &format!("a = {deeper}"), "p:1:"),
        (
            PolicyFormat::Yaml,
            &bomb,
            "p:6:10: aliases expand to more than 16 MiB; use fewer aliases, or `templates`",
        ),
        (PolicyFormat::Yaml, &large, "p:1:1: policy file too large (2097152 bytes); split it into files"),
        (PolicyFormat::Yaml, &long, "p:1:1: key of 300 characters; shorten it to 256"),
        (PolicyFormat::Yaml, "a: *b\n", "p:1:4: "),
        (PolicyFormat::Yaml, "a: 1\n---\nb: 2\n", "p:2:1: more than one document; write only one"),
        (PolicyFormat::Yaml, "? [a]\n: 1\n", "p:1:3: expected a string as key, found a list; write a string"),
        (PolicyFormat::Yaml, "a: !secret 5\n", "p:1:4: unsupported tag `!secret`; remove it"),
        (PolicyFormat::Yaml, "a: [1, 2\n", "p:1:4: `[` is not closed; close it with `]`"),
        (PolicyFormat::Yaml, "a: b: c\n", "p:1:5: "),
        (PolicyFormat::Yaml, "a: \"b\n", "p:"),
        (
            PolicyFormat::Json,
            "",
            "p:1:1: EOF while parsing a value; write valid JSON, or use the extension .yaml",
        ),
        (PolicyFormat::Json, "{'a': 1}", "p:1:2: key must be a string; write valid JSON"),
        (PolicyFormat::Json, "{\"a\" 1}", "p:1:6: expected `:`; write valid JSON"),
        (PolicyFormat::Json, "{\"a\": 1,}", "p:1:9: key must be a string; write valid JSON"),
        (PolicyFormat::Json, "[1 2]", "p:1:4: expected `,` or `]`; write valid JSON"),
        (PolicyFormat::Json, "[01]", "p:1:3: invalid number; write valid JSON"),
        (PolicyFormat::Json, "[+1]", "p:1:2: expected value; write valid JSON"),
        (PolicyFormat::Json, "[\"a\nb\"]", "p:1:"),
        (PolicyFormat::Json, "[\"a\\x\"]", "p:1:"),
        (PolicyFormat::Json, "[\"\\ud800\"]", "p:1:"),
        (PolicyFormat::Json, "[\"a", "p:1:"),
        (PolicyFormat::Json, "{} x", "p:1:4: trailing characters; write valid JSON"),
        (PolicyFormat::Yaml, &anchors, "p:1:1"),
        (PolicyFormat::Json, "[\"\u{1}\"]", "p:1:"),
        (
            PolicyFormat::Toml,
            "a = 0xffff_ffff_ffff_ffff_f\n",
            "p:1:5: number out of range; use a smaller number",
        ),
        (PolicyFormat::Toml, "a = 1979-05-27\n", "p:1:5: date is not supported; write a string in quotes"),
        (PolicyFormat::Toml, "a = b\nc = d\n", "p:1:5: string values must be quoted"),
    ];
    for (format, text, expected) in cases {
        let error = parse(text, *format).unwrap_err();
        assert!(error.starts_with(expected), "{:?}: {error}", text.get(..40));
    }
    let mut sources = Sources::default();
    let faults = sources.parse(Path::new("p"), b"\xef\xbb\xbfa: 1\nb: \xff", PolicyFormat::Yaml).unwrap_err();
    assert_eq!(sources.location(faults[0].span), "p:2:4");
    assert!(parse("\u{feff}a: 1", PolicyFormat::Yaml).is_ok());
}

/// The parser accepts the same texts as `serde_json`, and returns the same values.
#[test]
fn json_parser_agrees_with_serde_json() {
    use proptest::prelude::*;
    fn is_same(node: &SyntaxNode, other: &serde_json::Value) -> bool {
        use serde_json::Value as Json;
        match (&node.value, other) {
            (SyntaxValue::Null, Json::Null) => true,
            (SyntaxValue::Bool(a), Json::Bool(b)) => a == b,
            (SyntaxValue::Number(a), Json::Number(b)) => a.parse::<f64>().ok() == b.as_f64(),
            (SyntaxValue::Text(a), Json::String(b)) => a == b,
            (SyntaxValue::List(a), Json::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
            }
            (SyntaxValue::Map(a), Json::Object(b)) => {
                a.len() == b.len()
                    && a.iter().all(|(name, a)| b.get(&name.text).is_some_and(|b| is_same(a, b)))
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
    let property = |text: String| {
        let (ours, other) =
            (parse(&text, PolicyFormat::Json), serde_json::from_str::<serde_json::Value>(&text));
        match (&ours, &other) {
            (Ok(ours), Ok(other)) => prop_assert!(is_same(ours, other), "{text}"),
            (Err(error), Ok(_)) => prop_assert!(error.contains("duplicate key"), "{text}: {error}"),
            (Err(_), Err(_)) => {}
            // Numbers keep the notation of the source, however large.
            (Ok(_), Err(error)) => {
                prop_assert!(error.to_string().contains("out of range"), "{text}: {error}");
            }
        }
        Ok(())
    };
    tidegate_testkit::strategy::runner_with_cases(20_000).run(&texts, property).unwrap();
}
