//! Tests with a manual clock and few slots.

#![allow(clippy::unwrap_used, reason = "a story ends where it goes wrong")]

use super::{desk::Desk, routes};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidegate_http_server::{Authorization, Operators, Secret};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_observe::{Observer, RequestRecorder};
use tidegate_policy::{compile::Compiler, model::Observe};
use tidegate_rule::Rules;

const POLICY: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: login, key: header x-user, quota: 3/d fixed-window from-first-hit }
  - { name: jobs, key: header x-user, quota: 2 at once }
";

/// What answers, without a listener around it.
struct Stage {
    desk: Arc<Desk>,
    hand: ManualClock,
}

impl Stage {
    /// One where so many can be held of each kind.
    fn with(most_held: usize, authorization: Authorization) -> Self {
        let (clock, hand) = Clock::manual();
        let compiler = Compiler::new(Rules::new()).clock(clock.clone());
        let gate = compiler.compile(&POLICY.parse().unwrap(), None).unwrap();
        let observer = Observer::new(Rules::new(), clock.clone());
        let recorder = RequestRecorder::new(&observer, gate.rule_names(), &Observe::default());
        let desk = Arc::new(Desk::with(gate, recorder, authorization, clock, most_held));
        Self { desk, hand }
    }

    async fn post(&self, call: &str, token: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(format!("/v1/{call}")).header("authorization", format!("Bearer {token}"));
        let request = request.body(Full::from(body.to_string())).unwrap();
        let response = routes::serve(&self.desk, request).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// What is left of a rule for `ann`.
    async fn left(&self, rule: &str) -> Value {
        self.post("peek", "web", &json!({"rule": rule, "key": "ann"})).await.1["remaining"].clone()
    }
}

#[tokio::test]
async fn what_nobody_settles_ends_at_its_time() {
    let stage = Stage::with(9, Authorization::default());
    let reserve = json!({"rule": "login", "key": "ann", "cost": 2, "expires": 30});
    let acquire = json!({"rule": "jobs", "key": "ann", "cost": 2, "expires": 60});
    let (_, reserved) = stage.post("reserve", "", &reserve).await;
    let (_, acquired) = stage.post("acquire", "", &acquire).await;
    assert_eq!((stage.left("login").await, stage.left("jobs").await), (json!(1), json!(0)));

    // A moment before its end it can be given back; and then it cannot.
    stage.hand.advance(Duration::from_micros(29_999_999));
    assert_eq!(stage.post("cancel", "", &json!({"id": reserved["id"]})).await.0, 200);
    assert_eq!(stage.left("login").await, 3);
    let (_, reserved) = stage.post("reserve", "", &reserve).await;
    stage.hand.advance(Duration::from_secs(30));
    stage.desk.follow_time();
    let (status, told) = stage.post("commit", "", &json!({"id": reserved["id"], "cost": 1})).await;
    assert_eq!(
        (status, told["detail"].as_str()),
        (410, Some("this reservation has expired, and was charged; ask for longer with `expires`"))
    );
    assert_eq!(stage.left("login").await, 1, "it stays charged");

    // Slots are given back instead.
    stage.hand.advance(Duration::from_micros(1));
    stage.desk.follow_time();
    assert_eq!(stage.left("jobs").await, 2);
    let (status, told) = stage.post("release", "", &json!({"id": acquired["id"]})).await;
    assert_eq!(
        (status, told["detail"].as_str()),
        (410, Some("this permit has expired, and was given back; ask for longer with `expires`"))
    );
}

#[tokio::test]
async fn request_without_free_slots_is_not_charged() {
    let stage = Stage::with(2, Authorization::default());
    for (call, settle, rule) in [("reserve", "cancel", "login"), ("acquire", "release", "jobs")] {
        let ask = json!({"rule": rule, "key": "ann"});
        let (_, first) = stage.post(call, "", &ask).await;
        let before = stage.left(rule).await;
        // One more has room, two have not: then neither is taken, however they are asked.
        for both in [json!([ask, ask]), json!({"asks": [ask, ask], "all-or-nothing": true})] {
            let (status, told) = stage.post(call, "", &both).await;
            assert_eq!(
                (status, told["detail"].as_str()),
                (
                    503,
                    Some(
                        "there is no room beside what is held already, 2 at most; settle some, or let them expire sooner"
                    )
                ),
                "{call}"
            );
            assert_eq!(stage.left(rule).await, before, "{call}");
        }
        let (_, second) = stage.post(call, "", &json!({"rule": rule, "key": "bob"})).await;
        assert_eq!(stage.post(call, "", &json!({"rule": rule, "key": "eve"})).await.0, 503, "{call}");
        for held in [first, second] {
            assert_eq!(stage.post(settle, "", &json!({"id": held["id"]})).await.0, 200, "{call}");
        }
        assert_eq!(stage.post(call, "", &ask).await.0, 200, "there is room again");
    }
}

#[tokio::test]
async fn another_token_cannot_settle_what_it_did_not_make() {
    let tokens = [("web", "web-secret"), ("jobs", "jobs-secret")];
    let tokens = tokens.map(|(name, secret)| (name.into(), Secret::new(secret.to_owned())));
    let stage = Stage::with(9, Authorization::new(tokens, Operators::Everyone));
    let reserve = json!({"rule": "login", "key": "ann"});
    let (_, reserved) = stage.post("reserve", "web-secret", &reserve).await;
    let (_, acquired) = stage.post("acquire", "web-secret", &json!({"rule": "jobs", "key": "ann"})).await;
    let never = json!({"id": format!("{:x}-{:032x}", u64::MAX >> 1, 7), "cost": 1});
    let unknown = stage.post("commit", "jobs-secret", &never).await;
    assert_eq!(unknown.0, 404);
    let commit = json!({"id": reserved["id"], "cost": 1});
    assert_eq!(stage.post("commit", "jobs-secret", &commit).await, unknown, "as if it were not there");
    assert_eq!(stage.post("release", "jobs-secret", &json!({"id": acquired["id"]})).await.0, 404);
    assert_eq!(stage.post("commit", "nobody", &commit).await.0, 401);
    assert_eq!(stage.post("commit", "web-secret", &commit).await.0, 200);
    assert_eq!(stage.post("release", "web-secret", &json!({"id": acquired["id"]})).await.0, 200);
}
