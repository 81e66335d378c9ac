//! Which requests a match applies to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::requests::{MatchExt as _, PolicyTestRequest, any_request};
use proptest::prelude::*;
use std::{collections::BTreeMap, fs, path::Path};
use tidegate_policy::{
    matching::{Lists, Matcher, Mismatch, RequestView, check_condition, check_key},
    model::{AddressList, Expression, Match, Policy},
};
use tidegate_rule::request::TrustedProxies;

fn mismatch(matching: &Match, request: &PolicyTestRequest) -> Option<Mismatch> {
    let matcher = Matcher::new(matching, &Lists::default()).unwrap();
    matcher.mismatch(&RequestView::new(request, &TrustedProxies::none()))
}

#[test]
fn match_requires_all_conditions() {
    let value = |source, name: &str| Some(Mismatch::Value(source, name.into()));
    let get = any_request().method("GET").method("HEAD");
    let host = any_request().host("example.com").host("*.example.com");
    let plan = any_request().header("x-plan", "free|trial*");
    let debug = any_request().query("debug", "*");
    let session = any_request().cookie("session", "*");
    let cases = [
        (&get, PolicyTestRequest::new("GET /"), None),
        (&get, PolicyTestRequest::new("get /"), Some(Mismatch::Method)),
        (&host, PolicyTestRequest::new("GET EXAMPLE.com.:8080/"), None),
        (&host, PolicyTestRequest::new("GET a.b.example.com/"), None),
        (&host, PolicyTestRequest::new("GET badexample.com/"), Some(Mismatch::Host)),
        (&host, PolicyTestRequest::new("GET /"), Some(Mismatch::Host)),
        (&plan, PolicyTestRequest::new("GET /").with_header("x-plan", "trial-2"), None),
        (
            &plan,
            PolicyTestRequest::new("GET /").with_header("x-plan", "gold").with_header("x-plan", "free"),
            None,
        ),
        (&plan, PolicyTestRequest::new("GET /").with_header("x-plan", "gold"), value("header", "x-plan")),
        (&plan, PolicyTestRequest::new("GET /"), value("header", "x-plan")),
        (&debug, PolicyTestRequest::new("GET /?debug"), None),
        (&debug, PolicyTestRequest::new("GET /?a=1&%64ebug=1"), None),
        (&debug, PolicyTestRequest::new("GET /?debugger=1"), value("query", "debug")),
        (&session, PolicyTestRequest::new("GET /").with_header("cookie", "a=1; session=x"), None),
        (
            &session,
            PolicyTestRequest::new("GET /").with_header("cookie", "xsession=x"),
            value("cookie", "session"),
        ),
    ];
    for (matching, request, expected) in cases {
        assert_eq!(mismatch(matching, &request), expected, "{matching:?} {request:?}");
    }
}

#[test]
fn not_excludes_requests() {
    let users = any_request().path("/users/**").without(any_request().path("/users/me/**").method("GET"));
    assert_eq!(mismatch(&users, &PolicyTestRequest::new("GET /users/7")), None);
    assert_eq!(mismatch(&users, &PolicyTestRequest::new("GET /users//%6de/photos")), Some(Mismatch::Not));
    assert_eq!(mismatch(&users, &PolicyTestRequest::new("POST /users/me")), None);
    assert_eq!(mismatch(&users, &PolicyTestRequest::new("GET /user")), Some(Mismatch::Path));
    let nothing = any_request().without(any_request());
    assert_eq!(mismatch(&nothing, &PolicyTestRequest::new("GET /")), Some(Mismatch::Not));
}

#[test]
fn any_needs_one_alternative() {
    let either = any_request()
        .method("GET")
        .or(any_request().host("a.test").path("/a"))
        .or(any_request().host("b.test"));
    let cases = [
        ("GET a.test/a", None),
        ("GET b.test/x", None),
        ("GET a.test/x", Some(Mismatch::Any)),
        ("PUT b.test/x", Some(Mismatch::Method)),
    ];
    for (request, expected) in cases {
        assert_eq!(mismatch(&either, &PolicyTestRequest::new(request)), expected, "{request}");
    }
    let neither = any_request().without(either);
    assert_eq!(mismatch(&neither, &PolicyTestRequest::new("GET b.test/")), Some(Mismatch::Not));
    assert_eq!(mismatch(&neither, &PolicyTestRequest::new("GET c.test/")), None);
}

#[test]
fn client_is_resolved_through_trusted_proxies() {
    let inside =
        Matcher::new(&any_request().client("10.0.0.0/8").client("2001:db8::/32"), &Lists::default()).unwrap();
    let proxies = TrustedProxies::new(["192.0.2.1"]).unwrap();
    let request = |peer: &str, forwarded: &str| {
        PolicyTestRequest::new("GET /").with_peer(peer).with_header("x-forwarded-for", forwarded)
    };
    let cases = [
        (request("192.0.2.1", "10.1.2.3"), true),
        (request("192.0.2.1", "10.1.2.3, 198.51.100.1"), false),
        (request("198.51.100.1", "10.1.2.3"), false),
        (request("::ffff:10.9.9.9", ""), true),
        (request("2001:db8::1", ""), true),
        (PolicyTestRequest { peer: None, ..PolicyTestRequest::new("GET /") }, false),
    ];
    for (request, is_inside) in cases {
        assert_eq!(inside.matches(&RequestView::new(&request, &proxies)), is_inside, "{request:?}");
    }
}

#[test]
fn list_reload_is_atomic() {
    let folder = std::env::temp_dir().join(format!("tidegate-lists-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("internal.txt");
    fs::write(&file, "# the internal\n10.0.0.0/8\n!10.1.0.0/16\n").unwrap();
    let list =
        AddressList { networks: vec!["192.0.2.0/24".parse().unwrap()], files: vec!["internal.txt".into()] };
    let policy = Policy { lists: BTreeMap::from([("internal".to_owned(), list)]), ..Policy::default() };
    let lists = Lists::read(&policy, &folder).unwrap();
    assert_eq!(lists.files().collect::<Vec<_>>(), [file.as_path()]);

    let internal = Matcher::new(&any_request().client("internal"), &lists).unwrap();
    let is_in = |peer: &str| {
        internal.matches(&RequestView::new(
            &PolicyTestRequest::new("GET /").with_peer(peer),
            &TrustedProxies::none(),
        ))
    };
    assert_eq!([is_in("10.2.0.1"), is_in("10.1.0.1"), is_in("192.0.2.9")], [true, false, true]);

    fs::write(&file, "10.0.0.0/8\n10.0.0.1/8\n").unwrap();
    let errors = lists.reload().unwrap_err();
    let error = errors[0].to_string();
    assert!(error.contains("internal.txt, line 2") && error.contains("write `10.0.0.0/8`"), "{error}");
    assert_eq!([is_in("10.2.0.1"), is_in("10.1.0.1")], [true, false], "the list is unchanged");

    fs::write(&file, "198.51.100.0/24\n").unwrap();
    lists.reload().unwrap();
    assert_eq!([is_in("10.2.0.1"), is_in("198.51.100.1"), is_in("192.0.2.9")], [false, true, true]);
    fs::remove_dir_all(&folder).unwrap();

    let missing = Lists::read(&policy, Path::new("/nowhere")).unwrap_err();
    assert!(missing[0].to_string().contains("cannot read"), "{missing:?}");
    let unknown = Matcher::new(&any_request().client("networks"), &lists).unwrap_err();
    assert_eq!(unknown.to_string(), "unknown list `networks`; use one of internal, all");
}

#[test]
fn when_expression_matches_requests() {
    let upload =
        || PolicyTestRequest::new("POST api.example.com/a/%62?page=2").with_header("content-length", "2000");
    let request = upload().with_header("accept", "text/html").with_header("cookie", "s=1");
    let cases = [
        ("request.size > 1000", true),
        ("request.size > 3000", false),
        ("request.method == 'POST' && request.path == '/a/b'", true),
        ("request.host.endsWith('.example.com')", true),
        ("request.client == '192.0.2.1'", true),
        ("request.headers.accept.startsWith('text/')", true),
        ("request.headers['accept'] in ['text/html', 'text/plain']", true),
        ("'x-plan' in request.headers", false),
        ("has(request.headers.accept) && !has(request.cookies.t)", true),
        ("int(request.query['page']) == 2 || request.query['none'] == 'x'", true),
        ("request.path.split('/')[1] == 'a' ? true : false", true),
        // An expression that fails counts as true, so that the rule applies.
        ("request.headers['x-none'] == 'a'", true),
        ("request.path.split('/')[9] == 'a'", true),
        ("request.size / 0 == 1", true),
        ("int(request.path) == 1", true),
        ("false && request.headers['x-none'] == 'a'", false),
    ];
    for (expression, is_true) in cases {
        let found = mismatch(&any_request().when(expression), &request);
        assert_eq!(found, (!is_true).then_some(Mismatch::When), "{expression}");
    }
}

#[test]
fn failing_expression_makes_the_rule_apply() {
    let matcher =
        Matcher::new(&any_request().when("request.headers['x-plan'] == 'free'"), &Lists::default()).unwrap();
    let proxies = TrustedProxies::none();
    assert!(matcher.matches(&RequestView::new(&PolicyTestRequest::new("GET /"), &proxies)));
    assert!(!matcher.matches(&RequestView::new(
        &PolicyTestRequest::new("GET /").with_header("x-plan", "gold"),
        &proxies
    )));
    assert!(matcher.matches(&RequestView::new(
        &PolicyTestRequest::new("GET /").with_header("x-plan", "free"),
        &proxies
    )));
    assert_eq!(matcher.failures(), 1);
    let fails = || any_request().when("request.headers['x-plan'] == 'gold'");
    let cases = [
        any_request().without(fails()),
        any_request().or(fails()),
        any_request().without(any_request().without(fails())),
        any_request().without(any_request().or(fails()).or(any_request().path("/b"))),
    ];
    for matching in cases {
        assert_eq!(mismatch(&matching, &PolicyTestRequest::new("GET /a")), None, "{matching:?}");
    }
}

#[test]
fn expression_of_the_wrong_type_is_rejected() {
    let conditions = [
        ("request.size", "`request.size` is a number, but `when` needs a boolean"),
        ("request.path", "`request.path` is a string, but `when` needs a boolean"),
        ("request.path.split('/')", "is a list, but `when` needs a boolean"),
        ("request.method == 'GET' ? 1 : 2", "is a number, but `when` needs a boolean"),
        ("request.size + 'x' == 'y'", "type error in the expression: `+` of a number and a string"),
        ("request.size == '1'", "a number never equals a string"),
        ("request.headers['x-n'] > 5", "a string cannot be ordered against a number"),
        ("request.path && true", "`&&` needs a boolean, not a string"),
        ("!request.path", "`!` needs a boolean, not a string"),
        ("request.size in ['1']", "a number is never in a list of a string"),
        ("request.size.startsWith('1')", "`startsWith` needs a string, not a number"),
        ("size(request.size) > 1", "a number has no size"),
        ("request.path.split('/')['a'] == 'a'", "a list has no element at a string"),
        ("-request.path == 'a'", "`-` of a string"),
    ];
    for (expression, expected) in conditions {
        let error = check_condition(&Expression(expression.into())).unwrap_err().to_string();
        assert!(error.contains(expected), "{expression}: {error}");
    }
    for key in ["request.path.split('/')", "1.5", "null"] {
        let error = check_key(&Expression(key.into())).unwrap_err().to_string();
        assert!(error.contains("a key must be a string or an integer"), "{key}: {error}");
    }
    for key in ["request.path.split('/')[1]", "request.size", "request.size > 5", "request.path + 'x'"] {
        check_key(&Expression(key.into())).unwrap();
    }
}

#[test]
fn unbounded_expressions_are_rejected() {
    let long = format!("'{}' == 'a'", "a".repeat(1_000));
    let cases = [
        ("[1, 2].all(x, x > 0)", "loop in an expression"),
        ("request.path.split('').map(x, x).size() > 0", "loop in an expression"),
        ("request.path.replace('a', request.path) == ''", "function `replace` is not allowed"),
        ("request.path.matches('(a+)+')", "function `matches` is not allowed"),
        ("request.headers[request.path] == ''", "computed name in an expression"),
        ("request.headers == 1", "`request.headers` without a name"),
        ("request.headers['X-Plan'] == ''", "write it in lower case: `x-plan`"),
        ("request.body == ''", "unknown `request.body`; use one of request.method"),
        ("path == '/'", "unknown name `path`; use one of request.method"),
        ("request == 1", "`request` without a field"),
        ("{'a': 1}.a == 1", "map in an expression"),
        ("request.size >", "invalid expression"),
        ("", "invalid expression"),
        (&long, "expression of 1009 bytes; shorten it to 1000 bytes"),
    ];
    for (expression, expected) in cases {
        let error = check_condition(&Expression(expression.into())).unwrap_err().to_string();
        assert!(error.contains(expected), "{expression}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Compiling and evaluating any expression does not panic.
    #[test]
    fn expressions_never_panic(
        tokens in proptest::collection::vec(
            prop_oneof![
                Just("request.path".to_owned()), Just("request.headers['a']".to_owned()), Just(".split('/')".to_owned()),
                Just("==".to_owned()), Just("&&".to_owned()), Just("(".to_owned()), Just(")".to_owned()), Just("[".to_owned()),
                Just("]".to_owned()), Just("-".to_owned()), Just("!".to_owned()), Just("?".to_owned()), Just(":".to_owned()),
                Just("1".to_owned()), Just("'".to_owned()), Just("in".to_owned()), Just("+".to_owned()), Just(".substring(-1)".to_owned()),
                Just("9223372036854775807".to_owned()), Just("%0".to_owned()), "\\PC{0,3}",
            ],
            0..12,
        ),
    ) {
        let matching = any_request().when(&tokens.join(" "));
        if let Ok(matcher) = Matcher::new(&matching, &Lists::default()) {
            let request = PolicyTestRequest::new("GET /a/b").with_header("a", "ü");
            matcher.matches(&RequestView::new(&request, &TrustedProxies::none()));
        }
    }
}

#[test]
fn listener_is_compared_by_its_name() {
    let matching = Match { listeners: vec!["internal".to_owned()], ..any_request() };
    let matcher = Matcher::new(&matching, &Lists::default()).unwrap();
    let proxies = TrustedProxies::none();
    let cases = [(Some("internal"), true), (Some("public"), false), (None, false)];
    for (listener, is_match) in cases {
        let request = PolicyTestRequest {
            listener: listener.map(str::to_owned),
            ..PolicyTestRequest::new("GET a.test/")
        };
        let mismatch = matcher.mismatch(&RequestView::new(&request, &proxies));
        assert_eq!(mismatch.is_none(), is_match, "{listener:?}");
        if let Some(mismatch) = mismatch {
            assert_eq!(mismatch.to_string(), "listener does not match");
        }
    }
}
