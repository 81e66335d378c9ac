//! Limits over plain HTTP.

use crate::stage::{Answer, LONG, Server, Wire};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, net::SocketAddr, process::Command};
use tempfile::TempDir;
use tidegate_rule::Rules;
use tidegate_server::{Gateway, GatewayError, Handle, PolicySource};
use tidegate_testkit::servers::NginxServer;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

/// A service that decides by a file.
struct Stage {
    decisions: SocketAddr,
    gateway: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    handle: Handle,
    folder: TempDir,
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<(), GatewayError>>,
}

impl Stage {
    fn start(policy: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("policy.yaml"), policy).unwrap();
        let source = PolicySource::file(folder.path().join("policy.yaml"));
        let gateway = Gateway::open(source, Rules::new()).unwrap();
        let decisions = gateway.decisions_address().unwrap();
        let (address, admin) = (gateway.addresses().first().copied(), gateway.admin_address());
        let handle = gateway.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let end = tokio::spawn(gateway.run(async {
            let _ = stopped.await;
        }));
        Self { decisions, gateway: address, admin, handle, folder, stop, end }
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.send(path, "", &body.to_string()).await;
        (answer.status(), serde_json::from_str(&answer.body).unwrap())
    }

    async fn send(&self, path: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        let head =
            format!("POST /v1/{path} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {length}\r\n\r\n{body}");
        timeout(LONG, Wire::to(self.decisions).await.ask(&head)).await.unwrap()
    }

    async fn auth(&self, query: &str, headers: &str) -> Answer {
        let head = format!("GET /v1/auth{query} HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
        timeout(LONG, Wire::to(self.decisions).await.ask(&head)).await.unwrap()
    }

    async fn end(self) {
        drop(self.stop);
        timeout(LONG, self.end).await.unwrap().unwrap().unwrap();
    }
}

/// What decides and serves nobody.
const PURE: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: login, key: header x-user, quota: 3/h, message: Enough. }
  - { name: pair, key: [header x-tenant, ip], quota: 2/h }
  - { name: either, key: { first: [header x-user, ip] }, quota: 2/h }
  - { name: plans, key: ip, tiers: { by: header x-plan, each: { gold: 5/h }, else: 1/h } }
  - { name: jobs, key: header x-user, quota: 2 at once }
  - { name: all, quota: 2/h }
  - { name: watched, key: ip, quota: 1/h, mode: shadow }
";

#[tokio::test]
async fn a_check_tells_the_numbers_and_a_denial_is_429() {
    let stage = Stage::start(PURE);
    assert_eq!(stage.gateway, None, "there is nothing to go to");
    let (status, told) = stage.post("check", &json!({"rule": "login", "key": "ann", "cost": 2})).await;
    assert_eq!(status, 200);
    assert_eq!((&told["allowed"], &told["limit"], &told["remaining"]), (&json!(true), &json!(3), &json!(1)));
    assert_eq!(
        (&told["quota"], &told["degraded"], &told["mode"]),
        (&json!("3/h"), &json!(false), &json!("enforce"))
    );

    let (_, peeked) = stage.post("peek", &json!({"rule": "login", "key": "ann"})).await;
    assert_eq!((&peeked["allowed"], &peeked["remaining"]), (&json!(true), &json!(1)), "nothing was taken");

    let denied = stage.send("check", "", r#"{"rule":"login","key":"ann","cost":2}"#).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").is_some());
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""login";q=3;w=3600"#));
    let told: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(
        (&told["allowed"], &told["status"], &told["detail"]),
        (&json!(false), &json!(429), &json!("Enough."))
    );
    assert!(told["retry-after"].as_f64().unwrap() > 1_000.0);
    let same = stage.send("check?deny=200", "", r#"{"rule":"login","key":"ann","cost":2}"#).await;
    assert_eq!((same.status(), same.header("content-type")), (200, Some("application/json")));
    stage.end().await;
}

#[tokio::test]
async fn batches_are_answered_in_order_and_charge_each_or_all_or_none() {
    let stage = Stage::start(PURE);
    let ask = |key: &str, cost: u64| json!({"rule": "login", "key": key, "cost": cost});
    let (status, told) =
        stage.post("check", &json!([ask("a", 2), ask("a", 2), ask("b", 1), ask("a", 1)])).await;
    let allowed: Vec<_> =
        told.as_array().unwrap().iter().map(|told| told["allowed"].as_bool().unwrap()).collect();
    assert_eq!((status, allowed), (200, vec![true, false, true, true]));

    let both = json!({"asks": [ask("c", 2), ask("b", 3)], "all-or-nothing": true});
    let (status, told) = stage.post("check", &both).await;
    assert_eq!((status, &told["allowed"]), (200, &json!(false)));
    let (_, told) = stage.post("peek", &ask("c", 0)).await;
    assert_eq!(told["remaining"], 3, "nothing was charged");
    let both = json!({"asks": [ask("c", 2), ask("b", 2)], "all-or-nothing": true});
    let (_, told) = stage.post("check", &both).await;
    assert_eq!((&told["allowed"], &told["answers"][0]["remaining"]), (&json!(true), &json!(1)));
    let (status, _) = stage.post("check", &Value::Array(vec![ask("d", 0); 1_001])).await;
    assert_eq!(status, 400);
    stage.end().await;
}

#[tokio::test]
async fn a_reservation_is_settled_or_given_back() {
    let stage = Stage::start(PURE);
    let left =
        async || stage.post("peek", &json!({"rule": "login", "key": "ann"})).await.1["remaining"].clone();
    let reserve = json!({"rule": "login", "key": "ann", "cost": 3});
    let (status, held) = stage.post("reserve", &reserve).await;
    assert_eq!((status, &held["expires-after"], left().await), (200, &json!(60), json!(0)));
    let (status, denied) = stage.post("reserve", &reserve).await;
    assert_eq!((status, denied.get("id")), (429, None));
    let (status, _) = stage.post("commit", &json!({"id": held["id"], "cost": 1})).await;
    assert_eq!((status, left().await), (200, json!(2)));
    assert_eq!(stage.post("commit", &json!({"id": held["id"], "cost": 1})).await.0, 404);
    let (_, held) = stage.post("reserve", &json!({"rule": "login", "key": "ann", "cost": 2})).await;
    assert_eq!(left().await, 0);
    assert_eq!(stage.post("cancel", &json!({"id": held["id"]})).await.0, 200);
    assert_eq!(left().await, 2);
    let gone = json!({"id": format!("1-{:032x}", 7)});
    assert_eq!(stage.post("cancel", &gone).await.0, 410);
    assert_eq!(stage.post("release", &gone).await.0, 410);
    stage.end().await;
}

#[tokio::test]
async fn permits_hold_slots_until_they_are_released_or_expire() {
    let stage = Stage::start(PURE);
    let acquire = json!({"rule": "jobs", "key": "ann"});
    let (_, first) = stage.post("acquire", &acquire).await;
    let (status, _) = stage.post("acquire", &json!({"rule": "jobs", "key": "ann", "expires": 0.001})).await;
    assert_eq!(status, 200);
    // The second ends by itself, and its slot is there for the next.
    let (_, third) = timeout(LONG, async {
        loop {
            match stage.post("acquire", &acquire).await {
                (200, told) => return (200, told),
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
    .unwrap();
    let (status, told) = stage.post("acquire", &acquire).await;
    assert_eq!(
        (status, told["detail"].as_str()),
        (429, Some("All slots are held; one has to be released first."))
    );
    for permit in [first, third] {
        assert_eq!(
            stage.post("release", &json!({"id": permit["id"]})).await,
            (200, json!({"released": true}))
        );
        assert_eq!(stage.post("release", &json!({"id": permit["id"]})).await.0, 404);
    }
    assert_eq!(stage.post("reserve", &acquire).await.0, 400, "slots are not reserved");
    assert_eq!(stage.post("acquire", &json!({"rule": "login", "key": "ann"})).await.0, 400);
    stage.end().await;
}

#[tokio::test]
async fn keys_are_those_that_requests_have() {
    let server = Server::mirror().await;
    let rules = PURE.replace("127.0.0.1:0", "127.0.0.1:0\nlisten: 127.0.0.1:0");
    let stage =
        Stage::start(&format!("upstreams: {{ app: 'http://{}' }}\nroutes: app{rules}", server.address));
    let mut client = Wire::to(stage.gateway.unwrap()).await;
    let seen = client
        .ask("GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\nx-tenant: acme\r\nx-plan: gold\r\n\r\n")
        .await;
    assert_eq!(seen.status(), 200);
    let cases = [
        (json!({"rule": "login", "key": "ann"}), 2),
        (json!({"rule": "login", "key": "bob"}), 3),
        (json!({"rule": "pair", "key": ["acme", "127.0.0.1"]}), 1),
        (json!({"rule": "pair", "key": ["acme", "::ffff:127.0.0.1"]}), 1),
        (json!({"rule": "pair", "key": ["acme", "127.0.0.2"]}), 2),
        (json!({"rule": "either", "key": "ann"}), 1),
        (json!({"rule": "either", "key": {"header x-user": "ann"}}), 1),
        (json!({"rule": "either", "key": {"ip": "127.0.0.1"}}), 2),
        (json!({"rule": "plans", "key": "127.0.0.1", "tier": "gold"}), 4),
        (json!({"rule": "all"}), 1),
    ];
    for (ask, left) in cases {
        let (status, told) = stage.post("peek", &ask).await;
        assert_eq!((status, &told["remaining"]), (200, &json!(left)), "{ask}");
    }
    // And the other way round.
    let seen = client.ask("GET / HTTP/1.1\r\nhost: a\r\nx-plan: gold\r\n\r\n").await;
    assert_eq!(seen.status(), 200);
    let (_, told) = stage.post("check", &json!({"rule": "either", "key": {"ip": "127.0.0.1"}})).await;
    assert_eq!(told["remaining"], 0, "a request without a name is counted by its address");
    stage.end().await;
}

#[tokio::test]
async fn what_is_wrong_is_told_with_its_place_and_the_fix() {
    let stage = Stage::start(PURE);
    let cases = [
        ("check", "{", 400, "line 1 column 1"),
        ("check", "7", 400, "an object is needed here"),
        ("check", "{}", 400, "`rule` is missing"),
        ("check", r#"{"rule":"lgoin"}"#, 404, "did you mean `login`?"),
        ("check", r#"{"rule":"login","kye":"a"}"#, 400, "unknown member `kye`; did you mean `key`?"),
        ("check", r#"[{"rule":"all"},{"rule":"login"}]"#, 400, "[1]: there is no key"),
        ("check", r#"{"asks":[{"rule":"all","cost":-1}]}"#, 400, "asks[0]: `cost` is not a whole number"),
        ("check", r#"{"asks":7}"#, 400, "`asks` is no list"),
        ("check", r#"{"rule":"all","key":"a"}"#, 400, "leave `key` out"),
        ("check", r#"{"rule":"plans","key":"x"}"#, 400, "`x` is not an address"),
        ("check", r#"{"rule":"plans","key":"::1","tier":"glod"}"#, 400, "did you mean `gold`?"),
        ("check", r#"{"rule":"pair","key":"a"}"#, 400, "give a list of 2"),
        ("check", r#"{"rule":"either","key":{"ipp":"::1"}}"#, 400, "name one of `header x-user`, `ip`"),
        ("check?deny=302", "{}", 400, "from 400 to 599"),
        ("check?dney=200", "{}", 400, "did you mean `deny`?"),
        ("reserve", r#"{"rule":"login","key":"a","expires":3601}"#, 400, "3600 at most"),
        ("commit", r#"{"id":"x"}"#, 400, "`cost` is missing"),
        ("release", r#"{"id":"x"}"#, 404, "there is no such permit"),
        ("nothing", "{}", 404, "/v1/openapi.json"),
    ];
    for (path, body, status, part) in cases {
        let answer = stage.send(path, "", body).await;
        assert_eq!(answer.status(), status, "{path} {body}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path} {body}");
        let told: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(told["detail"].as_str().unwrap().contains(part), "{path} {body}: {told}");
    }
    let long = json!({"rule": "login", "key": "a".repeat(5_000)});
    assert_eq!(stage.post("check", &long).await.0, 400);
    assert_eq!(stage.send("check", "", &" ".repeat(1_000_001)).await.status(), 413);
    assert_eq!(stage.send("check", "origin: http://a\r\n", "{}").await.status(), 403);
    let (_, watched) = stage.post("check", &json!({"rule": "watched", "key": "::1", "cost": 2})).await;
    assert_eq!((&watched["allowed"], &watched["would-allow"]), (&json!(true), &json!(false)));
    stage.end().await;
}

/// Cargo says these to every test, so they can stand for secrets.
const GUARDED: &str = "
decisions: { listen: 127.0.0.1:0, tokens: [{ name: web, token: $CARGO_PKG_NAME }] }
admin: { listen: 127.0.0.1:0, token: $CARGO_PKG_VERSION }
rules:
  - { name: all, quota: 1/h }
";

#[tokio::test]
async fn programs_and_operators_need_their_own_tokens() {
    let stage = Stage::start(GUARDED);
    let (web, admin) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let ask = r#"{"rule":"all"}"#;
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    let none = stage.send("check", "", ask).await;
    assert_eq!((none.status(), none.header("www-authenticate")), (401, Some("Bearer realm=\"tidegate\"")));
    assert_eq!(stage.send("check", &with("tidegate-serve"), ask).await.status(), 401);
    assert_eq!(stage.send("check", &with(web), ask).await.status(), 200);
    let elsewhere = format!("x-tidegate-token: {web}\r\nauthorization: Basic YTpi\r\n");
    assert_eq!(stage.send("check", &elsewhere, ask).await.status(), 429);
    assert_eq!(stage.send("reset", &with(web), ask).await.status(), 403);
    assert_eq!(stage.send("reset", &with(admin), ask).await.status(), 200);
    assert_eq!(stage.send("check", &with(web), ask).await.status(), 200, "it was forgotten");

    let reload =
        |headers: &str| format!("POST /reload HTTP/1.1\r\nhost: a\r\n{headers}content-length: 0\r\n\r\n");
    let mut operator = Wire::to(stage.admin.unwrap()).await;
    assert_eq!(operator.ask(&reload("")).await.status(), 401);
    assert_eq!(operator.ask(&reload(&with(web))).await.status(), 401);
    assert_eq!(operator.ask(&reload(&with(admin))).await.status(), 200);
    stage.end().await;

    let missing =
        "decisions: { listen: 127.0.0.1:0, tokens: { name: web, token: $NOBODY_SET_THIS } }".parse().unwrap();
    let error = Gateway::open(PolicySource::given(missing), Rules::new()).unwrap_err().to_string();
    assert!(error.contains("the variable NOBODY_SET_THIS"), "{error}");
}

#[tokio::test]
async fn a_new_policy_answers_the_next_question_and_keeps_what_was_counted() {
    let stage = Stage::start(PURE);
    let ask = json!({"rule": "login", "key": "ann", "cost": 3});
    assert_eq!(stage.post("check", &ask).await.0, 200);
    let (_, held) = stage.post("acquire", &json!({"rule": "jobs", "key": "ann", "cost": 2})).await;
    let next = PURE.replace("quota: 3/h", "quota: 4/h");
    fs::write(stage.folder.path().join("policy.yaml"), next).unwrap();
    stage.handle.reload().await.unwrap();
    let (_, told) = stage.post("peek", &json!({"rule": "login", "key": "ann"})).await;
    assert_eq!((&told["limit"], &told["remaining"]), (&json!(4), &json!(1)));
    assert_eq!(
        stage.post("acquire", &json!({"rule": "jobs", "key": "ann"})).await.0,
        429,
        "it is still held"
    );
    assert_eq!(stage.post("release", &json!({"id": held["id"]})).await.0, 200);
    stage.end().await;
}

#[tokio::test]
async fn a_proxy_is_told_whether_a_request_may_pass() {
    let stage = Stage::start(
        "
decisions: 127.0.0.1:0
rules:
  - { name: bad, deny: [192.0.2.66/32] }
  - { name: posts, match: { method: POST, path: /login, host: shop.example }, key: ip, quota: 1/h }
",
    );
    let nginx = "x-original-uri: /login?a=b\r\nx-original-method: POST\r\nx-real-ip: 192.0.2.1\r\nhost: shop.example\r\n";
    let nginx = |query: &str| format!("GET /v1/auth{query} HTTP/1.1\r\n{nginx}\r\n");
    let mut proxy = Wire::to(stage.decisions).await;
    let passed = proxy.ask(&nginx("")).await;
    assert_eq!((passed.status(), passed.header("ratelimit-policy")), (200, Some(r#""posts";q=1;w=3600"#)));
    for (query, status) in [("", 403), ("?deny=policy", 429), ("?deny=503&proxy=nginx", 503)] {
        let refused = proxy.ask(&nginx(query)).await;
        assert_eq!((refused.status(), refused.header("x-tidegate-status")), (status, Some("429")), "{query}");
        assert_eq!(refused.header("x-tidegate-rule"), Some("posts"));
        assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some());
    }
    let forwarded =
        "x-forwarded-uri: /login\r\nx-forwarded-method: POST\r\nx-forwarded-host: shop.example\r\n";
    let from = |client: &str| format!("{forwarded}x-forwarded-for: 10.0.0.1, {client}\r\n");
    assert_eq!(stage.auth("", &from("192.0.2.1")).await.status(), 403, "it is the same client");
    assert_eq!(stage.auth("", &from("192.0.2.2")).await.status(), 200);
    let banned = stage.auth("?deny=451", &from("192.0.2.66")).await;
    assert_eq!((banned.status(), banned.header("x-tidegate-status")), (451, Some("403")));
    // A client may send the headers of a proxy that is not there.
    let both = format!("{}x-original-uri: /free\r\n", from("192.0.2.2"));
    assert_eq!(stage.auth("", &both).await.status(), 400);
    assert_eq!(stage.auth("?proxy=forwarded", &both).await.status(), 403);
    for (query, headers) in
        [("", ""), ("?proxy=nginx", "x-original-uri: /\r\n"), ("?proxy=apache", ""), ("?deny=200", "")]
    {
        assert_eq!(stage.auth(query, headers).await.status(), 400, "{query} {headers}");
    }
    stage.end().await;
}

#[tokio::test]
async fn nginx_turns_a_refusal_into_429_with_its_headers() {
    let server = Server::mirror().await;
    let stage = Stage::start("decisions: 127.0.0.1:0\nrules:\n  - { name: each, key: ip, quota: 2/h }\n");
    let example = include_str!("../../../../examples/nginx/tidegate.conf")
        .replace("listen 8080;", "listen 127.0.0.1:PORT;")
        .replace("127.0.0.1:8090", &stage.decisions.to_string())
        .replace("127.0.0.1:9000", &server.address.to_string());
    let nginx = NginxServer::start(&example).unwrap();
    let mut client = Wire::to(nginx.address()).await;
    for left in [1, 0] {
        let passed = timeout(LONG, client.get("/a?b=c")).await.unwrap();
        assert_eq!(passed.status(), 200, "{}", nginx.log());
        assert!(
            passed.header("ratelimit").unwrap().starts_with(&format!(r#""each";r={left}"#)),
            "{}",
            passed.head
        );
    }
    let limited = timeout(LONG, client.get("/a?b=c")).await.unwrap();
    assert_eq!(limited.status(), 429, "{}", nginx.log());
    assert!(limited.header("retry-after").is_some(), "{}", limited.head);
    assert!(limited.header("ratelimit").unwrap().starts_with(r#""each";r=0"#), "{}", limited.head);
    stage.end().await;
}

#[tokio::test]
async fn the_document_says_what_the_server_does() {
    let stage = Stage::start(PURE);
    let mut client = Wire::to(stage.decisions).await;
    let served = client.get("/v1/openapi.json").await;
    let document: Value = serde_json::from_str(&served.body).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(post) = methods.get("post") else { continue };
        let call = path.strip_prefix("/v1/").unwrap();
        let schema = &post["requestBody"]["content"]["application/json"]["schema"]["oneOf"][0]["$ref"];
        let schema = document.pointer(schema.as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
        let known: BTreeSet<_> = schema["properties"].as_object().unwrap().keys().cloned().collect();
        // An unknown member is answered with all that are known.
        let (status, told) = stage.post(call, &json!({"qqqqqqqqqq": 1})).await;
        let told: BTreeSet<String> =
            told["detail"].as_str().unwrap().split('`').skip(3).step_by(2).map(str::to_owned).collect();
        assert_eq!((status, told), (400, known), "{path}");
        let wrong = client.get(path).await;
        assert_eq!((wrong.status(), wrong.header("allow")), (405, Some("POST")), "{path}");
        for status in ["200", "400", "401", "403", "404", "408", "413", "503"] {
            assert!(post["responses"].get(status).is_some(), "{path} {status}");
        }
    }
    // All that a decision can say is in the document.
    let known = document["components"]["schemas"]["Decision"]["properties"].as_object().unwrap();
    for ask in [json!({"rule": "login", "key": "a"}), json!({"rule": "login", "key": "a", "cost": 9})] {
        for call in ["check", "reserve"] {
            let (status, told) = stage.post(call, &ask).await;
            assert!(told.as_object().unwrap().keys().all(|name| known.contains_key(name)), "{status} {told}");
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn the_guide_is_true() {
    let guide = include_str!("../../../../docs/decisions-over-http.md");
    let block = |kind: &str| guide.split(kind).nth(1).unwrap().split("```").next().unwrap().to_owned();
    let stage = Stage::start(&block("```yaml").replace("8090", "0"));
    let script = block("```sh");
    let mut lines = script.lines().filter(|line| !line.is_empty());
    let mut asked = 0;
    while let (Some(command), Some(meant)) = (lines.next(), lines.next()) {
        let command = command.replace("127.0.0.1:8090", &stage.decisions.to_string());
        let command = command.replace("curl -s", "curl -s -w '\n%{http_code}'");
        let run = move || Command::new("sh").arg("-c").arg(command).output().unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let (body, status) = output.rsplit_once('\n').unwrap();
        let (meant, part) = meant.trim_start_matches("# ").split_once(' ').unwrap();
        assert_eq!(status, meant, "{body}");
        assert!(body.contains(part), "{part}: {body}");
        asked += 1;
    }
    assert_eq!(asked, 8);
    stage.end().await;
}
