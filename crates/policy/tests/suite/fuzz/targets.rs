//! The fuzz targets: each takes any bytes, and must not panic, hang, or return inconsistent results.
//!
//! The tests in `mod.rs` call them with a bounded number of mutated seeds; `scripts/fuzz` runs them with libFuzzer. The parts of
//! an input are separated by a line `---8<---`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic reports a finding")]

use std::{any::Any, fmt::Display, io, net::IpAddr, path::Path, str::FromStr};
use tidegate_access::{BanRule, Prefix};
use tidegate_core::{Demand, Micros, Percent, Quota, Ratio};
use tidegate_overload::Schedule;
use tidegate_policy::{
    Policy, PolicyFormat,
    compile::{self, Compiler, PolicyGate, PolicyResult},
    descriptors::{DescriptorEntry, DescriptorFile, DescriptorSet, DomainMerge, MetricName},
    explain,
    index::RuleIndex,
    lint,
    matching::{Lists, Matcher, RequestView, check_condition},
    model::{CostSpec, Expression, KeyPart, KeySpec, OnLimit, Quotas, Reject, RuleSpec},
};
use tidegate_rule::{
    Evaluation, Rules,
    request::{RequestHead, TrustedProxies, key},
};

/// Separates the parts of an input.
pub(crate) const SEPARATOR: &[u8] = b"\n---8<---\n";
/// Longer inputs are truncated, because they find nothing more.
const MAX_INPUT_BYTES: usize = 1 << 16;

fn parts(bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = &bytes[..bytes.len().min(MAX_INPUT_BYTES)];
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR) {
        parts.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    parts.push(rest);
    parts
}

/// A file in each format, which may include `a.yaml`, `b.toml` and `c.json`. Problems have valid positions; a valid policy
/// is printed and parsed in every format, linted, and checked.
pub(crate) fn policy(bytes: &[u8]) {
    let parts = parts(bytes);
    for root in ["policy.yaml", "policy.toml", "policy.json"] {
        let files = |path: &Path| {
            let index = [root, "a.yaml", "b.toml", "c.json"].iter().position(|name| Path::new(name) == path);
            let part = index.and_then(|index| parts.get(index));
            part.map(|part| part.to_vec()).ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        match Policy::read(root, &files) {
            Ok(policy) => check_policy(&policy),
            Err(problems) => {
                assert!(problems.count() > 0 && !problems.to_string().is_empty());
                for problem in &problems {
                    assert!(!problem.problem().is_empty(), "{problem}");
                    assert!(problem.line() != Some(0) && problem.column() != Some(0), "{problem}");
                }
            }
        }
    }
}

/// Checks a valid policy.
fn check_policy(policy: &Policy) {
    for format in [PolicyFormat::Yaml, PolicyFormat::Toml, PolicyFormat::Json] {
        let printed = policy.print(format);
        match Policy::parse(&printed, format) {
            Ok(again) => assert!(again == *policy, "{printed}"),
            Err(problems) => panic!("{problems}\n{printed}"),
        }
    }
    lint(policy).iter().for_each(|warning| assert!(!warning.to_string().is_empty()));
    if policy.lists.values().all(|list| list.files.is_empty())
        && let Err(error) = compile::check(policy)
    {
        assert!(!error.to_string().is_empty());
    }
}

/// A policy and requests: the index finds the same rules as a scan, and `explain` succeeds.
pub(crate) fn matchers(bytes: &[u8]) {
    let mut parts = parts(bytes).into_iter();
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let Ok(policy) = text.parse::<Policy>() else { return };
    if policy.lists.values().any(|list| !list.files.is_empty()) {
        return;
    }
    let Ok(lists) = Lists::read(&policy, Path::new("")) else { return };
    let matchers: Result<Vec<_>, _> =
        policy.rules.iter().map(|rule| Matcher::new(&rule.matching, &lists)).collect();
    let Ok(matchers) = matchers else { return };
    let index = RuleIndex::new(matchers.iter().cloned());
    let networks = policy.trusted_proxies.iter().map(ToString::to_string);
    let proxies = TrustedProxies::new(networks).unwrap_or_else(|_| TrustedProxies::none());
    for request in parts.take(8).map(FuzzRequest::parse) {
        let view = RequestView::new(&request, &proxies);
        let mut found = Vec::new();
        index.find(&view, &mut found);
        let scanned: Vec<_> = (0..matchers.len()).filter(|rule| matchers[*rule].matches(&view)).collect();
        assert_eq!(found, scanned, "{request:?}\n{policy}");
        assert_eq!(index.find_first(&view), scanned.first().copied(), "{request:?}\n{policy}");
        if let Ok(explanation) = explain(&policy, &request, Path::new("")) {
            assert!(!explanation.to_string().is_empty());
        }
    }
}

/// An expression and requests: a valid expression can be evaluated for every request.
pub(crate) fn expression(bytes: &[u8]) {
    let mut parts = parts(bytes).into_iter();
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let expression = Expression(text.as_ref().into());
    if check_condition(&expression).is_err() {
        return;
    }
    let mut rule = RuleSpec::new("fuzzed");
    rule.key = KeySpec::Part(KeyPart::Cel(expression.clone()));
    rule.matching.when = Some(expression);
    rule.quotas = Quotas::All(vec!["5/min".parse().unwrap()]);
    let policy = Policy { rules: vec![rule], ..Policy::default() };
    for request in parts.take(8).map(FuzzRequest::parse) {
        // A type error is reported when the policy is compiled.
        if explain(&policy, &request, Path::new("")).is_err() {
            return;
        }
    }
}

/// A key and requests: the result for a request is deterministic.
pub(crate) fn keys(bytes: &[u8]) {
    let mut parts = parts(bytes).into_iter();
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let quoted = text.replace('\'', "''");
    let path = "match: { path: ['/users/{id}/{rest**}', '/{id}'] }";
    let text = format!("user: header x-user\nrules: [{{ name: a, quota: 5/min, {path}, key: '{quoted}' }}]");
    let Ok(policy) = text.parse::<Policy>() else { return };
    for request in parts.take(8).map(FuzzRequest::parse) {
        let explained = |request| explain(&policy, request, Path::new("")).map(|text| text.to_string());
        assert_eq!(explained(&request), explained(&request), "{request:?}");
    }
}

/// An exhausted rule with bodies by content type: any `Accept` header gets one of them.
pub(crate) fn accept(bytes: &[u8]) {
    let bodies = ["application/json", "text/html; charset=utf-8", "text/*"];
    let bodies: Vec<_> = bodies.iter().map(|kind| ((*kind).to_owned(), (*kind).to_owned())).collect();
    let mut rule = RuleSpec::new("exhausted");
    rule.quotas = Quotas::All(vec!["1/h".parse().unwrap()]);
    rule.cost = CostSpec::Fixed(2);
    rule.on_limit = OnLimit::Reject(Reject { bodies, body: Some("plain".to_owned()), ..Reject::default() });
    let gate = EXHAUSTED.with(|gate: &std::cell::OnceCell<PolicyGate>| {
        let policy = Policy { rules: vec![rule], ..Policy::default() };
        gate.get_or_init(|| Compiler::new(Rules::new()).compile(&policy, None).unwrap()).clone()
    });
    let mut request = FuzzRequest::parse(b"GET /");
    request.headers.push(("accept".to_owned(), bytes.to_vec()));
    let Evaluation::Ready(PolicyResult::Rejected(rejection)) = gate.check(&request) else {
        panic!("expected a denial")
    };
    let compile::RejectAction::Response(answer) = rejection.action else { panic!("expected a response") };
    let answer = answer.to_response();
    assert!(!answer.body.is_empty() && answer.get("content-type").is_some(), "{answer:?}");
}

thread_local! {
    static EXHAUSTED: std::cell::OnceCell<PolicyGate> = const { std::cell::OnceCell::new() };
}

/// Any forwarded headers: the client is the peer, or an address in a header, and values that a client adds in front of it do
/// not change the result.
pub(crate) fn forwarded(bytes: &[u8]) {
    let trusted = || TrustedProxies::new(["10.0.0.0/8", "::1"]).unwrap();
    let (value, noise) = match parts(bytes).as_slice() {
        [value, noise, ..] => (value.to_vec(), noise.to_vec()),
        [value] => (value.to_vec(), b"203.0.113.99".to_vec()),
        [] => return,
    };
    let headers = [
        ("x-forwarded-for", trusted()),
        ("forwarded", trusted().forwarded()),
        ("x-real-ip", trusted().custom_header("x-real-ip").unwrap()),
    ];
    for (name, proxies) in headers {
        let mut request = FuzzRequest::parse(b"GET /");
        request.peer = Some([10, 0, 0, 1].into());
        request.headers.push((name.to_owned(), value.clone()));
        let found = proxies.client_address(&request);
        assert!(found.is_some(), "there is a peer");
        _ = key::client(proxies.clone()).find(&request).map(|key| key.to_string());
        // The headers of an untrusted peer are ignored.
        let mut untrusted = request.clone();
        untrusted.peer = Some([203, 0, 113, 7].into());
        assert_eq!(proxies.client_address(&untrusted), untrusted.peer);
        // Values in front of an untrusted address are ignored.
        let named = found.filter(|found| Some(*found) != request.peer && !proxies.is_trusted(*found));
        if let Some(named) = named.filter(|_| name != "x-real-ip") {
            let mut longer = request.clone();
            longer.headers.insert(0, (name.to_owned(), noise.clone()));
            assert_eq!(
                proxies.client_address(&longer),
                Some(named),
                "{:?} in front of {request:?}",
                noise.escape_ascii()
            );
        }
    }
    let mut request = FuzzRequest::parse(b"GET /");
    request.headers.push(("cookie".to_owned(), value.clone()));
    request.query = Some(String::from_utf8_lossy(&value).into_owned());
    request.host = Some(String::from_utf8_lossy(&value).into_owned());
    let keys = [key::cookie("a").unwrap(), key::query("a"), key::host(), key::header("cookie").unwrap()];
    keys.iter().for_each(|key| _ = key.find(&request).map(|found| found.to_string()));
}

/// Single values of policies: a valid value round-trips.
pub(crate) fn words(bytes: &[u8]) {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4_096)]);
    round_trip::<Quota>(&text);
    round_trip::<Schedule>(&text);
    round_trip::<BanRule>(&text);
    round_trip::<Percent>(&text);
    round_trip::<Prefix>(&text);
    _ = text.parse::<Micros>();
    _ = text.parse::<Ratio>();
    if let Ok(quota) = text.parse::<Quota>()
        && quota.state_len() <= 1 << 12
    {
        let mut state = vec![0; quota.state_len()];
        quota.create(&mut state[..], Micros::ZERO);
        for at in [0, 1, 1_000_000, 1_000_000_000_000] {
            let demand = Demand::with_max_wait(1, Micros::MAX);
            _ = quota.decide(&mut state[..], Micros::new(at), demand);
        }
    }
}

/// Descriptor files and requests (`? key=value key=value`): a match is one of the limits, and its counter has the same number
/// of entries.
pub(crate) fn descriptors(bytes: &[u8]) {
    let parts = parts(bytes);
    let (requests, files): (Vec<&[u8]>, Vec<&[u8]>) =
        parts.into_iter().partition(|part| part.starts_with(b"?"));
    let named = files.iter().enumerate().map(|(at, part)| DescriptorFile {
        name: format!("{at}.yaml"),
        text: String::from_utf8_lossy(part).into_owned(),
    });
    let files: Vec<_> = named.collect();
    let set = match DescriptorSet::read(&files, DomainMerge::Combine) {
        Ok(set) => set,
        Err(error) => return assert!(!error.problem().is_empty() && error.file().ends_with(".yaml")),
    };
    assert_eq!(set.config_lines().count(), set.limits().count());
    for request in requests {
        let text = String::from_utf8_lossy(request);
        let entries: Vec<_> = text
            .split_whitespace()
            .skip(1)
            .map(|word| word.split_once('=').unwrap_or((word, "")))
            .map(|(key, value)| DescriptorEntry { key: key.to_owned(), value: value.to_owned() })
            .collect();
        for domain in set.domains() {
            let Some(found) = domain.find(&entries) else { continue };
            assert_eq!(found.counter_entries.len(), entries.len());
            assert!(found.limit.path.starts_with(domain.name()));
            assert!(found.metric != MetricName::Detailed(found.limit.path.to_string()));
            assert!(domain.limits().any(|limit| std::sync::Arc::ptr_eq(limit, found.limit)));
        }
    }
}

fn round_trip<T>(text: &str)
where
    T: FromStr<Err: Display> + Display + PartialEq,
{
    match text.parse::<T>() {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(value) => {
            let printed = value.to_string();
            match printed.parse::<T>() {
                Ok(again) => assert!(again == value, "`{text}` prints as `{printed}`, which is not equal"),
                Err(error) => panic!("`{text}` prints as `{printed}`: {error}"),
            }
        }
    }
}

/// A request parsed from any bytes: `METHOD HOST/PATH?QUERY`, then lines of headers.
#[derive(Clone, Debug)]
struct FuzzRequest {
    method: String,
    host: Option<String>,
    path: String,
    query: Option<String>,
    peer: Option<IpAddr>,
    headers: Vec<(String, Vec<u8>)>,
}

impl FuzzRequest {
    fn parse(bytes: &[u8]) -> Self {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let line = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let (method, address) = line.split_once(' ').unwrap_or((&line, "/"));
        let slash = address.find('/').unwrap_or(address.len());
        let (path, query) = match address[slash..].split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (&address[slash..], None),
        };
        let mut request = Self {
            method: method.to_owned(),
            host: Some(address[..slash].to_owned()).filter(|host| !host.is_empty()),
            path: path.to_owned(),
            query,
            peer: Some([192, 0, 2, 1].into()),
            headers: Vec::new(),
        };
        for line in lines.take(32) {
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            let value = line.get(colon + 1..).unwrap_or_default().trim_ascii().to_vec();
            match (name.as_str(), str::from_utf8(&value).map(str::parse::<IpAddr>)) {
                ("peer", Ok(Ok(peer))) => request.peer = Some(peer),
                ("peer", _) => request.peer = None,
                _ => request.headers.push((name, value)),
            }
        }
        request
    }
}

impl RequestHead for FuzzRequest {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.iter().filter(|(known, _)| known == name).for_each(|(_, value)| each(value));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

/// The name of a target, and its function.
pub(crate) type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: [FuzzTarget; 8] = [
    ("policy", policy),
    ("matchers", matchers),
    ("expression", expression),
    ("keys", keys),
    ("accept", accept),
    ("forwarded", forwarded),
    ("words", words),
    ("descriptors", descriptors),
];
