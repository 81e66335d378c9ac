//! Quotas of single keys that operators set at run time.

use crate::{
    admin_api::{AdminGateway, LISTENERS},
    decisions::redis_rules,
    harness::TestBackend,
    overload::wait_until,
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::Path,
    time::Duration,
};
use tempfile::TempDir;
use tidegate_gateway::{Gateway, PolicySource};
use tidegate_limiter::Clock;
use tidegate_rule::Rules;
use tidegate_testkit::servers::RedisServer;

const USER_RULE: &str = "user: header x-user\nrules:\n  - { name: each, key: user, quota: 2/h }\n";
const PATH: &str = "/api/v1/overrides";

impl AdminGateway {
    /// Sets an override for an hour, and returns the response.
    async fn put_override(&self, key: &str, quota: &str, more: Value) -> (u16, Value) {
        let mut body = json!({ "rule": "each", "key": key, "quota": quota, "seconds": 3_600 });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body.as_object_mut().unwrap().retain(|_, value| *value != "-");
        let response = self.admin_request("PUT", PATH, &body.to_string()).await;
        (response.status(), serde_json::from_str(&response.body).unwrap())
    }

    async fn set_override(&self, key: &str, quota: &str) -> Value {
        let (status, reply) = self.put_override(key, quota, json!({})).await;
        assert_eq!(status, 200, "{reply}");
        reply["override"].clone()
    }

    async fn remove_override(&self, id: &Value, query: &str) -> (u16, String) {
        let path = format!("{PATH}/{}{query}", id.as_str().unwrap());
        let response = self.admin_request("DELETE", &path, "").await;
        (response.status(), response.body)
    }

    async fn overrides(&self) -> Value {
        self.admin_json(PATH).await
    }

    async fn wait_for_store(&self) {
        wait_until("the store is available", async || {
            self.get_with_header("/", "x-user: ready\r\n").await;
            self.status_at("/stores/0/health").await == "available"
        })
        .await;
    }

    /// The number of requests of this user that are admitted in a row.
    async fn admitted(&self, user: &str) -> usize {
        for admitted in 0..100 {
            if self.status_of("/", &format!("x-user: {user}\r\n")).await != 200 {
                return admitted;
            }
        }
        panic!("{user} is not limited");
    }
}

/// A gateway with overrides in this file.
fn start_with_file(server: &TestBackend, file: &Path) -> AdminGateway {
    AdminGateway::start(
        server,
        &format!("observe: {{ denials: 10 }}\noverrides: {{ file: {} }}\n{USER_RULE}", file.display()),
    )
}

/// A gateway with overrides in this store.
fn start_with_store(server: &TestBackend, redis: &RedisServer) -> AdminGateway {
    let app = format!("upstreams: {{ app: http://{} }}\nroutes: app\n", server.address);
    let policy = format!("{LISTENERS}{app}store: {}\noverrides: store\n{USER_RULE}", redis.url());
    AdminGateway::start_policy(&policy, redis_rules())
}

#[tokio::test]
async fn override_applies_to_its_key_until_it_ends() {
    let server = TestBackend::start_echo().await;
    let (clock, manual_clock) = Clock::manual();
    let rest = format!("overrides: {{ file: overrides.jsonl }}\n{USER_RULE}");
    let gateway = AdminGateway::start_with_clock(&server, &rest, clock);
    assert_eq!((gateway.admitted("ann").await, gateway.admitted("bob").await), (2, 2));
    let set = gateway.set_override("ann", "5/h").await;
    assert_eq!((&set["quota"], &set["key"], &set["obstacle"]), (&json!("5/h"), &json!("ann"), &Value::Null));
    assert_eq!(gateway.admitted("ann").await, 3, "two of five are used");
    assert_eq!(gateway.admitted("bob").await, 0);
    let ann = gateway.get_with_header("/", "x-user: ann\r\n").await;
    assert_eq!(ann.header("ratelimit-policy"), Some(r#""each";q=5;w=3600"#));

    // Half an hour refills 2.5 of 5, and 1 of 2.
    manual_clock.advance(Duration::from_secs(1_800));
    assert_eq!((gateway.admitted("ann").await, gateway.admitted("bob").await), (2, 1));
    manual_clock.advance(Duration::from_secs(1_800));
    let header = "x-user: ann\r\n";
    assert_eq!(gateway.status_of("/", header).await, 429, "the override has ended, and its usage stays");
    assert_eq!(gateway.overrides().await["overrides"], json!([]));
    manual_clock.advance(Duration::from_secs(5 * 3_600));
    assert_eq!(gateway.admitted("ann").await, 2);
    gateway.stop().await;
}

#[tokio::test]
async fn removed_override_restores_the_usage() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let gateway = start_with_file(&server, &folder.path().join("o.jsonl"));
    let header = "x-user: ann\r\n";
    assert_eq!(gateway.status_of("/", header).await, 200);
    let set = gateway.set_override("ann", "1/h").await;
    let denied = gateway.get_with_header("/", header).await;
    let id = denied.header("tidegate-denial").unwrap();
    let why = gateway.admin_json(&format!("/api/v1/denials/{id}")).await;
    assert_eq!((denied.status(), &why["quota"]["text"]), (429, &json!("1/h")));
    assert_eq!(gateway.remove_override(&set["id"], "").await.0, 200);
    assert_eq!(gateway.admitted("ann").await, 1, "one of two is used");
    gateway.stop().await;
}

/// A preview of another number for the rule has the overrides, which the number does not change.
#[tokio::test]
async fn preview_applies_overrides() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let file = folder.path().join("o.jsonl");
    let rest = format!("observe: {{ history: 100 }}\noverrides: {{ file: {} }}\n{USER_RULE}", file.display());
    let gateway = AdminGateway::start(&server, &rest);
    gateway.set_override("ann", "5/h").await;
    assert_eq!((gateway.admitted("ann").await, gateway.admitted("bob").await), (5, 2));
    let body = r#"{"key":"quota","value":"1/h"}"#;
    let response = gateway.admin_request("POST", "/api/v1/rules/each/preview", body).await;
    let preview: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(
        (&preview["before"]["denied"], &preview["after"]["denied"]),
        (&json!(2), &json!(3)),
        "{preview}"
    );
    assert_eq!(preview["keys"], json!([{ "key": "bob", "newly-denied": 1, "no-longer-denied": 0 }]));
    gateway.stop().await;
}

#[tokio::test]
async fn changes_are_listed() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let gateway = start_with_file(&server, &folder.path().join("o.jsonl"));
    gateway.put_override("ann", "5/h", json!({ "reason": "until Friday" })).await;
    let bob = gateway.set_override("bob", "7/h").await;
    let (_, again) = gateway.put_override("ann", "9/h", json!({})).await;
    assert_eq!(again["replaced"]["quota"], "5/h");
    assert_eq!(gateway.remove_override(&bob["id"], "").await.0, 200);
    assert_eq!(gateway.remove_override(&bob["id"], "").await.0, 404);
    let changes = gateway.admin_json(&format!("{PATH}/changes")).await;
    let shown =
        |change: &Value| ["change", "rule", "key", "quota", "reason"].map(|member| change[member].clone());
    let shown: Vec<_> = changes["changes"].as_array().unwrap().iter().map(shown).collect();
    assert_eq!(
        json!(shown),
        json!([
            [4, "each", "bob", null, null],
            [3, "each", "ann", "9/h", null],
            [2, "each", "bob", "7/h", null],
            [1, "each", "ann", "5/h", "until Friday"],
        ])
    );
    let all = gateway.overrides().await;
    assert_eq!((&all["total"], &all["stored-in"], &all["next"]), (&json!(1), &json!("file"), &Value::Null));
    assert_eq!(all["overrides"][0]["change"], 3);
    gateway.stop().await;
}

#[tokio::test]
async fn long_list_has_pages() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let gateway = start_with_file(&server, &folder.path().join("o.jsonl"));
    for user in 0..7 {
        gateway.set_override(&format!("user-{user}"), "5/h").await;
    }
    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let page = gateway.admin_json(&format!("{PATH}?rule=each&limit=3{after}")).await;
        assert_eq!(page["total"], 7);
        keys.extend(page["overrides"].as_array().unwrap().iter().map(|it| it["key"].to_string()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    keys.sort();
    assert_eq!(keys, (0..7).map(|user| format!("\"user-{user}\"")).collect::<Vec<_>>());
    let one = gateway.admin_json(&format!("{PATH}?rule=each&key=user-4")).await;
    assert_eq!(
        (one["overrides"].as_array().unwrap().len(), &one["overrides"][0]["key"]),
        (1, &json!("user-4"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn second_operator_is_refused_with_the_change_of_the_first() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let gateway = start_with_file(&server, &folder.path().join("o.jsonl"));
    let (status, first) = gateway.put_override("ann", "5/h", json!({ "from": null })).await;
    assert_eq!((status, &first["override"]["change"]), (200, &json!(1)));
    let (status, refused) = gateway.put_override("ann", "6/h", json!({ "from": null })).await;
    assert_eq!(status, 409);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("has set it to 5/h until ") && detail.contains("(change 1)"), "{detail}");
    assert_eq!(gateway.put_override("ann", "6/h", json!({ "from": 1 })).await.0, 200);
    let id = &first["override"]["id"];
    let (status, refused) = gateway.remove_override(id, "?from=1").await;
    assert!(status == 409 && refused.contains("has set it to 6/h"), "{refused}");
    assert_eq!(gateway.remove_override(id, "?from=2").await.0, 200);
    let (status, refused) = gateway.put_override("ann", "8/h", json!({ "from": 2 })).await;
    assert!(status == 409 && refused["detail"].as_str().unwrap().contains("has removed it"), "{refused}");
    gateway.stop().await;
}

/// Operators who have read the same state, at the same time: one of them makes a change.
#[tokio::test]
async fn one_of_several_operators_at_once_is_accepted() {
    let (server, folder, redis) =
        (TestBackend::start_echo().await, TempDir::new().unwrap(), RedisServer::start().unwrap());
    let in_file = start_with_file(&server, &folder.path().join("o.jsonl"));
    let fleet = [(); 2].map(|()| start_with_store(&server, &redis));
    for gateway in &fleet {
        gateway.wait_for_store().await;
    }
    for gateways in [[&in_file, &in_file], [&fleet[0], &fleet[1]]] {
        let (mut from, mut quotas) = (Value::Null, Vec::new());
        for round in 0..5 {
            let put = |operator: usize| {
                let (gateway, from) = (gateways[operator % 2], from.clone());
                async move {
                    let quota = format!("{}/h", 10 + 8 * round + operator);
                    gateway.put_override("ann", &quota, json!({ "from": from })).await
                }
            };
            let replies = join_all((0..6).map(put)).await;
            let accepted: Vec<_> = replies.iter().filter(|(status, _)| *status == 200).collect();
            let refused: Vec<_> = replies.iter().filter(|(status, _)| *status == 409).collect();
            assert_eq!((accepted.len(), refused.len()), (1, 5), "{replies:?}");
            let set = &accepted[0].1["override"];
            let quota = set["quota"].as_str().unwrap();
            for (_, reply) in refused {
                let detail = reply["detail"].as_str().unwrap();
                assert!(detail.contains(&format!("has set it to {quota} until ")), "{quota}: {detail}");
            }
            from = set["change"].clone();
            quotas.insert(0, json!(quota));
        }
        let changes = gateways[0].admin_json(&format!("{PATH}/changes")).await;
        let changes: Vec<_> =
            changes["changes"].as_array().unwrap().iter().map(|it| it["quota"].clone()).collect();
        assert_eq!(changes, quotas);
    }
    in_file.stop().await;
    for gateway in fleet {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn invalid_overrides_are_rejected() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let file = folder.path().join("o.jsonl");
    let gateway = AdminGateway::start(
        &server,
        &format!(
            "overrides: {{ file: {} }}
user: header x-user
rules:
  - {{ name: each, key: user, quota: 2/h }}
  - {{ name: window, key: ip, quota: 2/h fixed-window }}
  - {{ name: log, key: ip, quota: 2/h sliding-log }}
  - {{ name: slots, key: ip, quota: 2 at once }}
  - {{ name: both, key: ip, quotas: [2/h, 9/d] }}
  - {{ name: waiting, key: ip, quota: 2 at once, wait: 1s }}
  - {{ name: listed, deny: 192.0.2.0/24 }}
",
            file.display()
        ),
    );
    let cases = [
        (json!({ "rule": "eech" }), 404, "did you mean `each`?"),
        (json!({ "rule": "listed" }), 404, "has no quota"),
        (json!({ "key": "-" }), 400, "missing key"),
        (json!({ "key": "" }), 400, "empty key"),
        (json!({ "quota": "lots" }), 400, "`quota`: "),
        (json!({ "quota": "unlimited" }), 400, "`quota`: "),
        (json!({ "seconds": "-" }), 400, "an override must end"),
        (json!({ "seconds": 0 }), 400, "in the future"),
        (json!({ "seconds": 400 * 86_400 }), 400, "at most 366 days"),
        (json!({ "seconds": "-", "until": "Friday" }), 400, "`until` is not a time"),
        (json!({ "seconds": "-", "until": "1999-12-31T23:59:59Z" }), 400, "in the future"),
        (json!({ "until": "2999-12-31" }), 400, "an override must end"),
        (json!({ "from": "x" }), 400, "`from`"),
        (json!({ "reason": "x".repeat(201) }), 400, "`reason` is too long"),
        (json!({ "mode": "off" }), 400, "unknown member `mode`"),
        (json!({ "quota": "3 at once" }), 422, "counts requests in flight"),
        (json!({ "quota": "3/h fixed-window" }), 422, "use the algorithm and the period of the rule"),
        (
            json!({ "rule": "window", "key": "192.0.2.1", "quota": "9/d fixed-window" }),
            422,
            "counts in another way",
        ),
        (
            json!({ "rule": "log", "key": "192.0.2.1", "quota": "3/h sliding-log" }),
            422,
            "more memory per key",
        ),
        (json!({ "rule": "slots", "key": "192.0.2.1" }), 422, "give a concurrency quota"),
        (json!({ "rule": "both", "key": "192.0.2.1" }), 422, "several quotas"),
        (json!({ "rule": "waiting", "key": "192.0.2.1", "quota": "3 at once" }), 422, "wait for a slot"),
        (json!({ "rule": "window", "key": "192.0.2.300" }), 400, "invalid address"),
    ];
    for (more, status, problem) in cases {
        let (got, reply) = gateway.put_override("ann", "5/h", more.clone()).await;
        let detail = reply["detail"].as_str().unwrap_or_default();
        assert!(got == status && detail.contains(problem), "{more}: {got} {detail}");
    }
    for (rule, quota) in [("window", "9/h fixed-window"), ("slots", "3 at once")] {
        let more = json!({ "rule": rule });
        assert_eq!(gateway.put_override("192.0.2.1", quota, more).await.0, 200, "{rule}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 2);
    // Each quota needs a place of its own in the limiter.
    for number in 0..64 {
        gateway.set_override(&format!("user-{number}"), &format!("{}/h", 100 + 7 * number)).await;
    }
    let (status, reply) = gateway.put_override("one more", "9/h", json!({})).await;
    assert!(status == 422 && reply["detail"].as_str().unwrap().contains("64 different quotas"), "{reply}");
    let free = gateway.admin_json(&format!("{PATH}?rule=each&key=user-3")).await;
    assert_eq!(gateway.remove_override(&free["overrides"][0]["id"], "").await.0, 200);
    gateway.set_override("one more", "9/h").await;
    assert_eq!(gateway.admitted("one%20more").await, 2, "the header has another text");
    gateway.stop().await;
    let without = AdminGateway::start(&server, USER_RULE);
    let (status, reply) = without.put_override("ann", "5/h", json!({})).await;
    assert!(status == 422 && reply["detail"].as_str().unwrap().contains("overrides: store"), "{reply}");
    without.stop().await;
}

#[tokio::test]
async fn overrides_in_a_file_survive_a_restart_and_a_cut_off_line() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let file = folder.path().join("o.jsonl");
    let gateway = start_with_file(&server, &file);
    gateway.set_override("ann", "5/h").await;
    gateway.set_override("bob", "3/h").await;
    let removed = gateway.set_override("eve", "9/h").await;
    assert_eq!(gateway.remove_override(&removed["id"], "").await.0, 200);
    let policy = format!("{LISTENERS}overrides: {{ file: {} }}\n", file.display());
    let other = TempDir::new().unwrap();
    fs::write(other.path().join("policy.yaml"), policy).unwrap();
    let second = Gateway::open(PolicySource::file(other.path().join("policy.yaml")), Rules::new());
    assert!(second.unwrap_err().to_string().contains("in use by another process"));
    gateway.stop().await;

    let whole = fs::read(&file).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    // A crash can leave any part of the last change.
    for cut in [last, last + 1, whole.len() - 20, whole.len() - 1, whole.len()] {
        fs::write(&file, &whole[..cut]).unwrap();
        let gateway = start_with_file(&server, &file);
        let expected = if cut == whole.len() { 2 } else { 3 };
        assert_eq!(gateway.overrides().await["total"], expected, "{cut}");
        assert_eq!((gateway.admitted("ann").await, gateway.admitted("bob").await), (5, 3), "{cut}");
        // The next change is whole, and has the next number.
        let next = gateway.set_override("dan", "4/h").await;
        assert_eq!(next["change"], if expected == 2 { 5 } else { 4 });
        gateway.stop().await;
        let gateway = start_with_file(&server, &file);
        assert_eq!(gateway.overrides().await["total"], expected + 1, "{cut}");
        gateway.stop().await;
    }

    let source = other.path().join("policy.yaml");
    fs::write(&source, format!("{LISTENERS}overrides: store\n")).unwrap();
    let error = Gateway::open(PolicySource::file(&source), Rules::new()).unwrap_err().to_string();
    assert!(error.contains("the overrides need a `store`, and the policy has none"), "{error}");
    fs::write(&source, format!("{LISTENERS}overrides: {{ file: {} }}\n", file.display())).unwrap();
    writeln!(OpenOptions::new().append(true).open(&file).unwrap(), "{{}}").unwrap();
    let error = Gateway::open(PolicySource::file(source), Rules::new()).unwrap_err().to_string();
    assert!(error.contains("o.jsonl: line ") && error.contains("correct the line, or remove it"), "{error}");
}

#[tokio::test]
async fn override_of_a_removed_rule_is_listed_and_returns_with_it() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let file = folder.path().join("o.jsonl");
    let gateway = start_with_file(&server, &file);
    gateway.set_override("ann", "5/h").await;
    let replace = async |rest: &str| {
        let overrides = format!("overrides: {{ file: {} }}\n", file.display());
        let app = format!("upstreams: {{ app: http://{} }}\nroutes: app\n", server.address);
        gateway.replace_policy(&format!("{LISTENERS}{app}{overrides}{rest}")).await;
        gateway.overrides().await["overrides"][0]["obstacle"].clone()
    };
    for (rules, obstacle) in [
        ("rules:\n  - { name: other, key: ip, quota: 2/h }\n", "has no rule `each`"),
        (
            "user: header x-user\nrules:\n  - { name: each, key: user, quotas: [2/h, 9/d] }\n",
            "several quotas",
        ),
        (
            "user: header x-user\nrules:\n  - { name: each, key: user, quota: 2/h fixed-window }\n",
            "in another way",
        ),
    ] {
        let shown = replace(rules).await;
        assert!(shown.as_str().is_some_and(|shown| shown.contains(obstacle)), "{rules}: {shown}");
    }
    assert_eq!(replace(USER_RULE).await, Value::Null);
    assert_eq!((gateway.admitted("ann").await, gateway.admitted("bob").await), (5, 2));
    // A changed quota keeps the override.
    assert_eq!(replace(&USER_RULE.replace("2/h", "3/h")).await, Value::Null);
    assert_eq!((gateway.admitted("ann").await, gateway.admitted("bob").await), (0, 1));
    // Nor does a restart without the rule drop it, and operators can remove it.
    gateway.stop().await;
    let others = USER_RULE.replace("each", "other");
    for total in [1, 0] {
        let gateway =
            AdminGateway::start(&server, &format!("overrides: {{ file: {} }}\n{others}", file.display()));
        let all = gateway.overrides().await;
        assert_eq!(all["total"], total, "{all}");
        if let Some(stored) = all["overrides"].get(0) {
            assert!(stored["obstacle"].as_str().unwrap().contains("has no rule `each`"), "{stored}");
            assert_eq!(gateway.put_override("ann", "7/h", json!({})).await.0, 404);
            assert_eq!(gateway.remove_override(&stored["id"], "").await.0, 200);
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn tiers_slots_and_credentials_have_overrides() {
    let (server, folder) = (TestBackend::start_echo().await, TempDir::new().unwrap());
    let file = folder.path().join("o.jsonl");
    let gateway = AdminGateway::start(
        &server,
        &format!(
            "overrides: {{ file: {} }}
user: header x-user
rules:
  - name: each
    key: user
    tiers: {{ key: header x-plan, quotas: {{ gold: 4/h }}, default: 2/h }}
  - {{ name: secret, key: header authorization, missing: skip, quota: 1/h }}
",
            file.display()
        ),
    );
    gateway.set_override("ann", "6/h").await;
    assert_eq!(gateway.admitted("ann").await, 6);
    assert_eq!(gateway.admitted("ann\r\nx-plan: gold").await, 0, "the override has precedence");
    assert_eq!(gateway.admitted("bob\r\nx-plan: gold").await, 4);
    let more = json!({ "rule": "secret" });
    let (status, set) = gateway.put_override("Basic c2VjcmV0", "3/h", more).await;
    assert!(status == 200 && !set.to_string().contains("c2VjcmV0"), "{set}");
    assert!(!gateway.overrides().await.to_string().contains("c2VjcmV0"));
    let header = "authorization: Basic c2VjcmV0\r\nx-user: ";
    let statuses = [0, 1, 2, 3].map(|user| format!("{header}user-{user}\r\n"));
    let mut admitted = 0;
    for header in statuses {
        admitted += usize::from(gateway.status_of("/", &header).await == 200);
    }
    assert_eq!(admitted, 3);
    gateway.stop().await;
}

#[tokio::test]
async fn gateways_with_one_store_share_overrides() {
    let (server, redis) = (TestBackend::start_echo().await, RedisServer::start().unwrap());
    let start = || start_with_store(&server, &redis);
    let (one, other) = (start(), start());
    for gateway in [&one, &other] {
        gateway.wait_for_store().await;
    }
    let has_total = async |gateway: &AdminGateway, total: u64| {
        wait_until("the other gateway has the change", async || gateway.overrides().await["total"] == total)
            .await;
    };
    assert_eq!(one.admitted("ann").await, 2);
    let set = one.set_override("ann", "5/h").await;
    has_total(&other, 1).await;
    assert_eq!(other.admitted("ann").await, 3, "two of five are used");
    assert_eq!(one.admitted("ann").await, 0);
    // The gateways compare in the store, whatever they have fetched.
    assert_eq!(other.put_override("ann", "7/h", json!({ "from": 1 })).await.0, 200);
    let (status, refused) = one.put_override("ann", "8/h", json!({ "from": 1 })).await;
    assert!(status == 409 && refused["detail"].as_str().unwrap().contains("has set it to 7/h"), "{refused}");
    assert_eq!(one.admitted("ann").await, 2, "the conflict has brought the change");
    // A gateway that starts later fetches everything.
    let late = start();
    has_total(&late, 1).await;
    assert_eq!(late.overrides().await["stored-in"], "store");
    assert_eq!(late.remove_override(&set["id"], "?from=2").await.0, 200);
    for gateway in [&one, &other] {
        has_total(gateway, 0).await;
        assert_eq!(gateway.put_override("ann", "9/h", json!({ "from": 2 })).await.0, 409);
    }
    let changes = one.admin_json(&format!("{PATH}/changes")).await;
    let numbers: Vec<_> = changes["changes"].as_array().unwrap().iter().map(|it| &it["change"]).collect();
    assert_eq!(numbers, [3, 2, 1]);

    // Without the store, the last known overrides apply, and changes are refused.
    one.set_override("bob", "4/h").await;
    has_total(&other, 1).await;
    redis.kill();
    wait_until("the store is unavailable", async || {
        other.put_override("eve", "9/h", json!({})).await.0 == 503
            && other.status_at("/stores/0/health").await == "unavailable"
    })
    .await;
    assert_eq!(other.overrides().await["total"], 1);
    assert_eq!(other.admitted("bob").await, 4);
    for gateway in [one, other, late] {
        gateway.stop().await;
    }
}
