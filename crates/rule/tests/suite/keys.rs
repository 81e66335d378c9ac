//! Keys of requests: which are found, which are missing, and which cannot be imitated.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use crate::common::TestRequest;
use tidegate_rule::{
    RequestContext,
    request::{AddressKey, KeyValue, MissingKey, RequestKey, TrustedProxies, key},
};

/// The key as in a store.
fn key_text(key: &RequestKey, request: &TestRequest) -> Option<String> {
    key.find(request).map(|value| value.to_string())
}

fn test_request() -> TestRequest {
    let request = TestRequest {
        path: "/users/7",
        host: Some("Example.COM.:8080"),
        route: Some("/users/{id}"),
        context: Some(RequestContext::default().with_user("alice")),
        ..TestRequest::from_peer("2001:db8:1:2:3:4:5:6")
    };
    request
        .header("x-api-key", "secret")
        .header("x-bytes", b"\xff\xfe")
        .header("x-empty", "")
        .header("x-long", "a".repeat(1_000_000))
        .header("cookie", "a=1; session=\"abc\"; sess=2; empty=; = ; session=other")
        .header("cookie", "b = 2;last=é")
}

#[test]
fn finds_every_key_source() {
    let header = |name| key::header(name).unwrap();
    let cookie = |name| key::cookie(name).unwrap();
    for (key, found) in [
        (key::all(), Some("")),
        (key::peer(), Some("2001:db8:1:2::")),
        (key::peer().ipv6_prefix(48), Some("2001:db8:1::")),
        (key::peer().ipv6_prefix(128), Some("2001:db8:1:2:3:4:5:6")),
        (key::peer().ipv6_prefix(255), Some("2001:db8:1:2:3:4:5:6")),
        (key::peer().ipv6_prefix(0), Some("::")),
        (key::client(TrustedProxies::private()), Some("2001:db8:1:2::")),
        (header("x-api-key"), Some("secret")),
        (header("X-Api-Key"), Some("secret")),
        (header("x-bytes"), Some("\u{1}xfffe")),
        (header("x-empty"), None),
        (header("x-none"), None),
        (cookie("session"), Some("abc")),
        (cookie("sess"), Some("2")),
        (cookie("b"), Some("2")),
        (cookie("last"), Some("é")),
        (cookie("empty"), None),
        (cookie("none"), None),
        (cookie("Session"), None),
        (key::host(), Some("example.com")),
        (key::method(), Some("GET")),
        (key::path(), Some("/users/7")),
        (key::route(), Some("/users/{id}")),
        (key::user(), Some("alice")),
        (key::user_from(|head| Some(head.path().trim_start_matches("/users/").into())), Some("7")),
        (key::user_from(|_| None), None),
        (key::custom(|_| Some(7.into())), Some("7")),
        (key::user().and(key::route()), Some("alice|/users/{id}")),
        (key::user().and(key::method()).and(key::route()), Some(r"alice|GET\|/users/{id}")),
        (key::user().and(header("x-none")), None),
        (key::user().or(key::peer()), Some("alice")),
        (header("x-none").or(key::peer()), Some("\u{1}1?2001:db8:1:2::")),
        (header("x-none").or(header("x-empty")).or(key::user()), Some("\u{1}2?alice")),
        (header("x-none").or(header("x-empty").or(key::user())), Some("\u{1}2?alice")),
        (header("x-none").or(header("x-empty")), None),
        (
            header("x-none").or(key::peer()).and(key::method()).ipv6_prefix(32),
            Some("\u{1}|\u{1}1?2001:db8::|GET"),
        ),
    ] {
        assert_eq!(key_text(&key, &test_request()).as_deref(), found, "{key:?}");
    }
}

/// A client that sends a long value is counted, even if requests without the key are not.
#[test]
fn long_keys_are_hashed() {
    let long = |text: &'static str| key::custom(move |_| Some(text.repeat(5_000).into()));
    let [one, again, other] = ["b", "b", "c"].map(|text| key_text(&long(text), &test_request()).unwrap());
    assert_eq!(one, again);
    assert_ne!(one, other);
    assert!(one.starts_with("\u{1}255?") && one.len() < 40, "{one}");
    let joined = key_text(&key::user().and(key::header("x-long").unwrap()), &test_request()).unwrap();
    assert!(joined.starts_with("alice|") && joined.len() < 50, "{joined}");
}

#[test]
fn missing_sources_give_no_key() {
    let bare = TestRequest { path: "/x", ..TestRequest::default() };
    for key in [
        key::peer(),
        key::client(TrustedProxies::private()),
        key::header("authorization").unwrap(),
        key::cookie("session").unwrap(),
        key::host(),
        key::user(),
    ] {
        assert_eq!(key_text(&key, &bare), None, "{key:?}");
    }
    assert_eq!(key_text(&key::route(), &bare).as_deref(), Some("/x"));
    assert_eq!(MissingKey::default(), MissingKey::Ip);
}

#[test]
fn host_names_are_normalized() {
    for (host, found) in [
        ("example.com", Some("example.com")),
        ("EXAMPLE.com:443", Some("example.com")),
        ("example.com.", Some("example.com")),
        ("[2001:DB8::1]:80", Some("[2001:db8::1]")),
        ("[2001:db8::1]", Some("[2001:db8::1]")),
        ("example.com:", Some("example.com")),
        ("", None),
        (":80", None),
    ] {
        let request = TestRequest { host: Some(host), ..TestRequest::default() };
        assert_eq!(key_text(&key::host(), &request).as_deref(), found, "{host}");
    }
}

#[test]
fn header_value_cannot_imitate_address_key() {
    let key = key::header("x-user").unwrap().or(key::peer());
    let victim = TestRequest::from_peer("203.0.113.7");
    let bucket = key_text(&key, &victim).unwrap();
    for name in ["203.0.113.7", "1?203.0.113.7", "\u{1}1?203.0.113.7", "\u{1}\u{1}1?203.0.113.7"] {
        let attacker = TestRequest::from_peer("198.51.100.1").header("x-user", name);
        assert_ne!(key_text(&key, &attacker).unwrap(), bucket, "{name:?}");
    }
}

#[test]
fn user_is_found_in_task_context() {
    let request = TestRequest::from_peer("203.0.113.7");
    let found =
        RequestContext::default().with_user("bob").scope_blocking(|| key_text(&key::user(), &request));
    assert_eq!(found.as_deref(), Some("bob"));
    let nameless =
        RequestContext::default().with_user("").scope_blocking(|| key_text(&key::user(), &request));
    assert_eq!(nameless, None);
}

#[test]
fn invalid_names_are_rejected() {
    for name in ["", "x y", "x:y", "x\r\ny", "é", "x\0", "(x)"] {
        let error = key::header(name).unwrap_err();
        assert!(error.problem().contains("invalid header name"), "{error}");
        assert!(key::cookie(name).unwrap_err().problem().contains("invalid cookie name"));
    }
    assert!(key::header(&"x".repeat(1_000)).is_err());
}

#[test]
fn key_debug_names_source() {
    let key = key::user().and(key::header("X-Tenant").unwrap()).or(key::client(TrustedProxies::loopback()));
    assert_eq!(
        format!("{key:?}"),
        r#"[{user, header x-tenant}, client/64 behind ["127.0.0.0/8", "::1"] by XForwardedFor]"#
    );
    let same = KeyValue::from(std::net::Ipv4Addr::new(192, 0, 2, 7));
    assert_eq!(same, KeyValue::Address(AddressKey::new([192, 0, 2, 7].into())));
}
