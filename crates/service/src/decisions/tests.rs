//! Tests with a manual clock and few slots.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

use super::{routes, state::AppState};
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

/// The decision API without a listener.
struct TestApi {
    state: Arc<AppState>,
    clock: ManualClock,
}

impl TestApi {
    /// Creates an API with a capacity per kind of reservation.
    fn new(capacity: usize, authorization: Authorization) -> Self {
        let (clock, manual_clock) = Clock::manual();
        let compiler = Compiler::new(Rules::new()).clock(clock.clone());
        let gate = compiler.compile(&POLICY.parse().unwrap(), None).unwrap();
        let observer = Observer::new(Rules::new(), clock.clone());
        let recorder = RequestRecorder::new(&observer, gate.rule_names(), &Observe::default());
        let state = Arc::new(AppState::with_clock(gate, recorder, authorization, clock, capacity));
        Self { state, clock: manual_clock }
    }

    async fn post(&self, call: &str, token: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(format!("/v1/{call}")).header("authorization", format!("Bearer {token}"));
        let request = request.body(Full::from(body.to_string())).unwrap();
        let response = routes::serve(&self.state, request).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// The remaining quota of a rule for `ann`.
    async fn remaining(&self, rule: &str) -> Value {
        self.post("peek", "web", &json!({"rule": rule, "key": "ann"})).await.1["remaining"].clone()
    }
}

#[tokio::test]
async fn unsettled_reservations_and_permits_expire() {
    let api = TestApi::new(9, Authorization::default());
    let reserve = json!({"rule": "login", "key": "ann", "cost": 2, "expires": 30});
    let acquire = json!({"rule": "jobs", "key": "ann", "cost": 2, "expires": 60});
    let (_, reserved) = api.post("reserve", "", &reserve).await;
    let (_, acquired) = api.post("acquire", "", &acquire).await;
    assert_eq!((api.remaining("login").await, api.remaining("jobs").await), (json!(1), json!(0)));

    // A reservation can be cancelled until it expires.
    api.clock.advance(Duration::from_micros(29_999_999));
    assert_eq!(api.post("cancel", "", &json!({"id": reserved["id"]})).await.0, 200);
    assert_eq!(api.remaining("login").await, 3);
    let (_, reserved) = api.post("reserve", "", &reserve).await;
    api.clock.advance(Duration::from_secs(30));
    api.state.close_expired();
    let (status, error) = api.post("commit", "", &json!({"id": reserved["id"], "cost": 1})).await;
    assert_eq!(
        (status, error["detail"].as_str()),
        (410, Some("this reservation has expired and stays charged; use a longer `expires`"))
    );
    assert_eq!(api.remaining("login").await, 1, "it stays charged");

    // Expired permits are released instead.
    api.clock.advance(Duration::from_micros(1));
    api.state.close_expired();
    assert_eq!(api.remaining("jobs").await, 2);
    let (status, error) = api.post("release", "", &json!({"id": acquired["id"]})).await;
    assert_eq!(
        (status, error["detail"].as_str()),
        (410, Some("this permit has expired and was released; use a longer `expires`"))
    );
}

#[tokio::test]
async fn request_without_free_slots_is_not_charged() {
    let api = TestApi::new(2, Authorization::default());
    for (call, settle, rule) in [("reserve", "cancel", "login"), ("acquire", "release", "jobs")] {
        let query = json!({"rule": rule, "key": "ann"});
        let (_, first) = api.post(call, "", &query).await;
        let before = api.remaining(rule).await;
        // There is capacity for one more. A batch of two is rejected as a whole, in each form.
        for both in [json!([query, query]), json!({"queries": [query, query], "all-or-nothing": true})] {
            let (status, error) = api.post(call, "", &both).await;
            assert_eq!(
                (status, error["detail"].as_str()),
                (503, Some("reservation capacity reached: 2; settle some, or use a shorter `expires`")),
                "{call}"
            );
            assert_eq!(api.remaining(rule).await, before, "{call}");
        }
        let (_, second) = api.post(call, "", &json!({"rule": rule, "key": "bob"})).await;
        assert_eq!(api.post(call, "", &json!({"rule": rule, "key": "eve"})).await.0, 503, "{call}");
        for reservation in [first, second] {
            assert_eq!(api.post(settle, "", &json!({"id": reservation["id"]})).await.0, 200, "{call}");
        }
        assert_eq!(api.post(call, "", &query).await.0, 200, "there is capacity again");
    }
}

#[tokio::test]
async fn token_cannot_settle_entries_of_another() {
    let tokens = [("web", "web-secret"), ("jobs", "jobs-secret")];
    let tokens = tokens.map(|(name, secret)| (name.into(), Secret::new(secret.to_owned())));
    let api = TestApi::new(9, Authorization::new(tokens, Operators::Everyone));
    let reserve = json!({"rule": "login", "key": "ann"});
    let (_, reserved) = api.post("reserve", "web-secret", &reserve).await;
    let (_, acquired) = api.post("acquire", "web-secret", &json!({"rule": "jobs", "key": "ann"})).await;
    let never = json!({"id": format!("{:x}-{:032x}", u64::MAX >> 1, 7), "cost": 1});
    let unknown = api.post("commit", "jobs-secret", &never).await;
    assert_eq!(unknown.0, 404);
    let commit = json!({"id": reserved["id"], "cost": 1});
    assert_eq!(api.post("commit", "jobs-secret", &commit).await, unknown, "as if it were not there");
    assert_eq!(api.post("release", "jobs-secret", &json!({"id": acquired["id"]})).await.0, 404);
    assert_eq!(api.post("commit", "wrong", &commit).await.0, 401);
    assert_eq!(api.post("commit", "web-secret", &commit).await.0, 200);
    assert_eq!(api.post("release", "web-secret", &json!({"id": acquired["id"]})).await.0, 200);
}
