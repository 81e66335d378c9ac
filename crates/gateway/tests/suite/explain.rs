//! Property test: the gateway responds as `explain` predicts.

use crate::harness::{RawClient, TEST_TIMEOUT, TestBackend, text_body};
use http::{Request, Response, request};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
};
use tempfile::TempDir;
use tidegate_gateway::{Gateway, PolicySource};
use tidegate_policy::{Policy, PredictedOutcome, explain_request};
use tidegate_rule::Rules;
use tokio::{sync::oneshot, time::timeout};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Pseudo-random numbers, the same in every run.
struct RequestRng(u64);

impl RequestRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn choose<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.next() as usize % choices.len()]
    }
}

#[derive(Clone, Debug)]
struct RandomRequest {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: &'static str,
}

impl RandomRequest {
    fn random(random: &mut RequestRng) -> Self {
        let host = random.choose(&["shop.test", "shop.test", "shop.test", "shop.test:80", "shop test", ""]);
        let mut headers = vec![("host".to_owned(), host.to_owned())];
        let clients = ["203.0.113.7", "198.51.100.9", "192.0.2.1", "192.0.2.2"];
        headers.push(("x-forwarded-for".to_owned(), random.choose(&clients).to_owned()));
        for (name, values) in [("x-plan", ["gold", "free", ""]), ("x-user", ["ann", "bob", ""])] {
            match random.choose(&values) {
                "" => {}
                value => headers.push((name.to_owned(), value.to_owned())),
            }
        }
        // Most requests are plain.
        let odd = [
            ("x_user", "eve"),
            ("x-user", "eve"),
            ("x-plan", "free"),
            ("connection", "x-user"),
            ("connection", "close, x-plan"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("host", "other.test"),
            ("transfer-encoding", "chunked"),
        ];
        for _ in 0..(random.next() % 8).saturating_sub(5) {
            let (name, value) = odd[random.next() as usize % odd.len()];
            if name == "transfer-encoding" && headers.iter().any(|(known, _)| known == name) {
                continue;
            }
            headers.push((name.to_owned(), value.to_owned()));
        }
        let is_chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let body = match is_chunked {
            true => "0\r\n\r\n",
            false => random.choose(&["", "", "", "12345"]),
        };
        if !is_chunked {
            headers.push(("content-length".to_owned(), body.len().to_string()));
        }
        let plain = ["/", "/a", "/a/b", "/b/c", "/internal/x"];
        let odd = [
            "//a",
            "/a/./b",
            "/internal/../b/c",
            "/b/../internal/x",
            "/a/..;/internal/x",
            "/internal;v=1/x",
            "/%69nternal/x",
            "/internal%2fx",
            "/a%2F..%2Finternal/x",
            "/..",
            "/%zz",
            "/a%00",
            "/;a/b",
            "*",
            "http://shop.test/a/b",
            "http://eve@shop.test/a",
            "http://shop.test/b/../a",
        ];
        let target =
            if random.next().is_multiple_of(3) { random.choose(&odd) } else { random.choose(&plain) };
        let method = random.choose(&["GET", "POST", "GET", "POST", "GET", "POST", "OPTIONS", "TRACE"]);
        let method = if random.next().is_multiple_of(40) { "M".repeat(33) } else { method.to_owned() };
        Self { method, target: target.to_owned(), headers, body }
    }

    fn bytes(&self) -> String {
        let headers: String =
            self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{} {} HTTP/1.1\r\n{headers}\r\n{}", self.method, self.target, self.body)
    }

    fn head(&self) -> request::Parts {
        let request = Request::builder().method(&*self.method).uri(&self.target);
        let request = self.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        request.body(()).unwrap().into_parts().0
    }
}

/// A policy whose quotas are exceeded either by every single request or by none.
fn random_policy(random: &mut RequestRng, servers: [&TestBackend; 2]) -> String {
    let [a, b] = servers.map(|server| server.address);
    let mut text = format!(
        "listen: 127.0.0.1:0\n\
         upstreams: {{ a: 'http://{a}', b: 'http://{b}' }}\n\
         lists: {{ trusted: [203.0.113.0/24], bad: [198.51.100.0/24] }}\n\
         user: header x-user\n\
         log: {{ format: json, file: access.log }}\n"
    );
    text += random.choose(&["trusted-proxies: 127.0.0.0/8\n", "trusted-proxies: 127.0.0.0/8\n", ""]);
    text += random.choose(&[
        "",
        "connections: { max-body-size: 3 }\n",
        "connections: { escaped-slashes: keep, underscores-in-headers: allow }\n",
        "connections: { escaped-slashes: unescape }\n",
    ]);
    text += "routes:\n";
    let routes = [
        "{ path: /a/**, upstream: b }",
        "{ when: \"request.headers['x-plan'] == 'gold'\", upstream: b }",
        "{ client: trusted, upstream: b }",
        "{ method: POST, upstream: a }",
    ];
    for _ in 0..random.next() % 3 {
        text += &format!("  - {}\n", random.choose(&routes));
    }
    text += random.choose(&[
        "  - { upstream: a }\n",
        "  - { upstream: a }\n",
        "  - { path: /b/**, upstream: a }\n",
    ]);
    text += "rules:\n";
    for number in 0..=random.next() % 4 {
        let matching = random.choose(&[
            "{}",
            "{ path: /a/** }",
            "{ path: [/internal/**, /b/**] }",
            "{ method: POST }",
            "{ header: { x-plan: gold } }",
            "{ client: [trusted, bad] }",
            "{ not: { client: trusted } }",
            "{ when: \"request.headers['x-plan'] == 'free'\" }",
            "{ not: { when: \"request.headers['x-plan'] == 'gold'\" } }",
            "{ any: [{ path: /b/** }, { when: \"request.headers['x-user'] == 'ann'\" }] }",
        ]);
        let key = random.choose(&["all", "ip", "user", "header x-user", "[ip, header x-user]", "path"]);
        let missing = random.choose(&["", ", missing: share", ", missing: skip", ", missing: reject"]);
        let duplicates = random.choose(&["", "", ", duplicates: first", ", duplicates: last"]);
        let limit = random.choose(&[
            "deny: all",
            "deny: bad",
            "deny: all, allow: trusted",
            "deny: bad, allow: trusted, quota: 3/min, cost: 5",
            "quota: 1000/min",
            "quota: 3/min, cost: 5",
            "quota: 3/min fixed-window, cost: { from: header x-plan, default: 9, max: 9 }",
            "tiers: { key: header x-plan, quotas: { gold: 1000/s, free: 2/s }, default: 3/s }, cost: 4",
            "quota: 3/min, cost: 4, schedule: 00:00-24:00 x100",
            "quota: 400/min, cost: 300, schedule: 00:00-24:00 x0.5",
            "quota: 1000/min, charge: { if-status: [401] }, ban: 1000/min for 1h",
            "quota: 3/min, cost: 4, ban: 1000/min for 1h",
            "adaptive: { target: 250ms }",
            "bandwidth: 10MB/s",
            "breaker: { failure-rate: 50%, window-size: 20 }",
        ]);
        let mode = random.choose(&["", "", "", ", mode: shadow", ", mode: off", ", mode: enforce 50%"]);
        let on_limit = random.choose(&[
            "",
            "",
            ", on-limit: { status: 503 }",
            ", on-limit: { redirect: 'https://example.org/busy' }",
            ", on-limit: { fallback: { upstream: b } }",
            ", on-limit: { fallback: { body: old } }",
        ]);
        text += &format!(
            "  - {{ name: r{number}, match: {matching}, key: {key}{missing}{duplicates}, {limit}{mode}{on_limit} }}\n"
        );
    }
    text
}

#[tokio::test]
async fn explain_matches_gateway_response() {
    let a = TestBackend::start(|_| async { Response::new(text_body("upstream a".to_owned())) }).await;
    let b = TestBackend::start(|_| async { Response::new(text_body("upstream b".to_owned())) }).await;
    let mut random = RequestRng(0x9E37_79B9_7F4A_7C15);
    let (mut forwarded, mut rejected, mut malformed, mut no_route) = (0, 0, 0, 0);
    for _ in 0..100 {
        let folder = TempDir::new().unwrap();
        let text = random_policy(&mut random, [&a, &b]);
        let file = folder.path().join("policy.yaml");
        fs::write(&file, &text).unwrap();
        let policy = Policy::from_file(&file).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
        let gateway = Gateway::open(PolicySource::file(&file), Rules::new()).unwrap();
        let gateway = gateway.workers(std::num::NonZeroUsize::MIN);
        let address = gateway.addresses()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        let end = tokio::spawn(gateway.run(async {
            let _ = stopped.await;
        }));
        let mut rules = Vec::new();
        for _ in 0..6 {
            let request = RandomRequest::random(&mut random);
            let predicted =
                explain_request(&policy, (&request.head(), &[]), (PEER, None), "".as_ref()).unwrap();
            let outcome = &predicted.outcome;
            let response = RawClient::connect(address).await.request(&request.bytes()).await;
            let context = || format!("{predicted}\n{request:?}\n{text}");
            assert_eq!(response.status(), outcome.status().unwrap_or(200), "{}", context());
            if let Some(upstream) = outcome.upstream() {
                assert_eq!(response.body, format!("upstream {upstream}"), "{}", context());
            }
            match outcome {
                PredictedOutcome::Rejected { .. } => rejected += 1,
                PredictedOutcome::Forwarded { .. } => forwarded += 1,
                PredictedOutcome::Malformed(_) => malformed += 1,
                PredictedOutcome::NoRoute
                | PredictedOutcome::Responded { .. }
                | PredictedOutcome::Allowed { .. } => no_route += 1,
            }
            rules.push((outcome.rule().map(str::to_owned), context()));
        }
        drop(stop);
        timeout(TEST_TIMEOUT, end).await.unwrap().unwrap().unwrap();
        let log = fs::read_to_string(folder.path().join("access.log")).unwrap();
        let logged: Vec<serde_json::Value> =
            log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(logged.len(), rules.len(), "{log}");
        for (line, (rule, context)) in logged.iter().zip(rules) {
            if let Some(rule) = rule {
                assert_eq!(line["rule"], rule.as_str(), "{line}\n{context}");
            }
        }
    }
    let counts = [forwarded, rejected, malformed, no_route];
    assert!(counts.iter().zip([50, 50, 50, 5]).all(|(count, least)| *count > least), "{counts:?}");
}
