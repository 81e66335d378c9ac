//! Values in JSON texts and event streams that arrive in pieces.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::Value;
use tidegate_rule::body::{BodyFormat, BodyScanner, BodyValue, BodyValues, JsonPointer, ScanState};

/// Random JSON, whose names occur in the pointers.
fn json() -> impl Strategy<Value = Value> {
    let text = prop_oneof!["[a-c]{0,3}", "\\PC{0,8}", Just("\u{1f600}\"\\/\n\u{7f}".to_owned())];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0.0_f64..1e9).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec(("[a-c~/é\"]{0,2}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn pointers() -> impl Strategy<Value = Vec<JsonPointer>> {
    let token = prop_oneof!["[a-c~/é\"]{0,2}", "[0-3]"];
    let pointer = vec(token, 1..4).prop_map(|tokens| JsonPointer::from_tokens(tokens).unwrap());
    vec(pointer, 1..6)
}

fn scan(pieces: &[&[u8]], pointers: &[JsonPointer], format: BodyFormat) -> BodyValues {
    let mut scanner = BodyScanner::new(pointers.into(), format);
    pieces.iter().for_each(|piece| scanner.push(piece));
    scanner.finish()
}

/// The value that a parser of whole texts finds.
fn expected(document: &Value, pointer: &JsonPointer) -> Option<BodyValue> {
    Some(match document.pointer(&pointer.to_string())? {
        Value::String(text) => BodyValue::Text(text.as_str().into()),
        Value::Number(number) => BodyValue::Number(number.to_string().into()),
        Value::Bool(value) => BodyValue::Bool(*value),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    })
}

/// Splits a text at these positions.
fn split<'t>(text: &'t [u8], at: &[Index]) -> Vec<&'t [u8]> {
    let mut at: Vec<_> = at.iter().map(|index| index.index(text.len() + 1)).collect();
    at.extend([0, text.len()]);
    at.sort_unstable();
    at.windows(2).map(|range| &text[range[0]..range[1]]).collect()
}

proptest! {
    /// The same values as serde_json, however the text is split and spaced.
    #[test]
    fn values_agree_with_a_parser(document in json(), pointers in pointers(), at in vec(any::<Index>(), 0..6), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) }.unwrap();
        // Without an enclosing container a number has no end.
        let is_container = document.is_array() || document.is_object();
        let values = scan(&split(text.as_bytes(), &at), &pointers, BodyFormat::Json);
        prop_assert!(!is_container || values.state() == ScanState::Complete, "{text}");
        for pointer in &pointers {
            let expected = expected(&document, pointer);
            prop_assert_eq!(values.get(pointer), expected.as_ref(), "{} in {}", pointer, text);
        }
    }

    /// Escaped characters, also pairs of UTF-16 units.
    #[test]
    fn escapes_are_resolved(text in "\\PC{0,8}", at in vec(any::<Index>(), 0..4)) {
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
        let body = format!("{{\"{escaped}\": \"{escaped}\"}}");
        let pointer = JsonPointer::from_tokens([text.clone()]).unwrap();
        let values = scan(&split(body.as_bytes(), &at), std::slice::from_ref(&pointer), BodyFormat::Json);
        prop_assert_eq!(values.get(&pointer), Some(&BodyValue::Text(text.into())));
    }

    /// Any bytes end without a panic, and the same however they are split.
    #[test]
    fn any_bytes_are_scanned(bytes in vec(prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\":,\\u0dtfn \n".to_vec())], 0..200),
            pointers in pointers(), at in vec(any::<Index>(), 0..6), events in any::<bool>()) {
        let format = if events { BodyFormat::EventStream } else { BodyFormat::Json };
        prop_assert_eq!(scan(&[&bytes], &pointers, format), scan(&split(&bytes, &at), &pointers, format));
    }

    /// The last event that has a value counts, however the stream is split, and with all line ends.
    #[test]
    fn last_value_of_events_counts(documents in vec(json(), 0..5), pointers in pointers(), at in vec(any::<Index>(), 0..8),
            end in prop::sample::select(vec!["\n", "\r", "\r\n"]), pretty in any::<bool>()) {
        let mut text = format!(": comment{end}{end}");
        for document in &documents {
            let data = if pretty { serde_json::to_string_pretty(document) } else { serde_json::to_string(document) }.unwrap();
            text.push_str(&format!("event: x{end}"));
            for line in data.lines() {
                text.push_str(&format!("data: {line}{end}"));
            }
            text.push_str(&format!("id: 1{end}{end}data:[DONE]{end}{end}"));
        }
        let values = scan(&split(text.as_bytes(), &at), &pointers, BodyFormat::EventStream);
        for pointer in &pointers {
            let last = documents.iter().filter_map(|document| expected(document, pointer)).next_back();
            prop_assert_eq!(values.get(pointer), last.as_ref(), "{} in {}", pointer, text);
        }
    }
}

fn value_of(body: &str) -> Option<BodyValue> {
    let pointer: JsonPointer = "/a/b".parse().unwrap();
    scan(&[body.as_bytes()], std::slice::from_ref(&pointer), BodyFormat::Json).get(&pointer).cloned()
}

#[test]
fn unusual_texts_have_defined_values() {
    let number = |text: &str| Some(BodyValue::Number(text.into()));
    for (body, value) in [
        (r#"{"a": {"b": 1}}"#, number("1")),
        // The last of several members counts.
        (r#"{"a": {"b": 1, "b": 2}}"#, number("2")),
        (r#"{"a": {"b": 1}, "a": {"b": {}}}"#, None),
        (r#"{"a": {"b": 1, "b": null}}"#, None),
        (r#"{"b": 1, "x": {"b": 2, "a": {"b": 3}}}"#, None),
        (r#"{"a": [{"b": 1}], "\u0061": {"\u0062": -2.5e3}}"#, number("-2.5e3")),
        // Cut off after the value.
        (r#"{"a": {"b": 1, "c"#, number("1")),
        (r#"{"a": {"b": 1"#, None),
        // Invalid.
        (r#"{"a": {"b": 1}]"#, None),
        (r#"{"a": {"b": 1}} x"#, None),
        (r#"{"a" {"b": 1}}"#, None),
        (r#"{a: {"b": 1}}"#, None),
        ("", None),
        ("no JSON at all", None),
    ] {
        assert_eq!(value_of(body), value, "{body}");
    }
}

#[test]
fn long_texts_are_not_stored() {
    let body = |length: usize| format!(r#"{{"a": {{"b": "{}"}}}}"#, "x".repeat(length));
    assert!(value_of(&body(4_096)).is_some());
    assert!(value_of(&body(4_097)).is_none());
    let nested = |depth: usize| format!(r#"{}1{}"#, r#"{"a": "#.repeat(depth), "}".repeat(depth));
    let state = |body: &str| scan(&[body.as_bytes()], &["/x".parse().unwrap()], BodyFormat::Json).state();
    assert_eq!((state(&nested(128)), state(&nested(129))), (ScanState::Complete, ScanState::Invalid));
}

#[test]
fn only_whole_positive_numbers_are_counts() {
    for (text, count) in [
        ("0", Some(0)),
        ("12", Some(12)),
        ("9007199254740991", Some((1 << 53) - 1)),
        ("9007199254740992", None),
        ("18446744073709551616", None),
        ("1e3", Some(1_000)),
        ("0.001", Some(1)),
        ("2.5", Some(3)),
        ("-1", None),
        ("-0.5", Some(0)),
        ("1e400", None),
        ("1-2", None),
    ] {
        assert_eq!(BodyValue::Number(text.into()).to_count(), count, "{text}");
    }
    assert_eq!(BodyValue::Text("12".into()).to_count(), None);
    assert_eq!(BodyValue::Bool(true).to_count(), None);
}
