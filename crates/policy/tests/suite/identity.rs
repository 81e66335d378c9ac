//! Verified identities in a policy, with a manual clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use crate::requests::PolicyTestRequest;
use std::{fs, time::Duration};
use tempfile::TempDir;
use tidegate_core::Micros;
use tidegate_identity::jwt::JwtKeySet;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    Policy, PolicyFormat,
    compile::{Compiler, LivePolicy, PolicyGate, PolicyResult, RejectAction, RejectReason},
    explain,
};
use tidegate_rule::{Evaluation, Rules};
use tidegate_testkit::tokens::TokenIssuer;

/// A compiled policy whose key set has the key of an issuer.
struct IdentityPolicy {
    gate: PolicyGate,
    issuer: TokenIssuer,
    clock: ManualClock,
    _folder: TempDir,
}

impl IdentityPolicy {
    /// At second 1,000.
    fn new(identity: &str, rule: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let issuer = TokenIssuer::new("ES256", "one").unwrap();
        fs::write(folder.path().join("jwks.json"), issuer.key_set()).unwrap();
        let (wall, clock) = Clock::manual();
        clock.set(Micros::from_secs(1_000));
        let compiler =
            Compiler::new(Rules::new()).clock(Clock::manual().0).wall_clock(wall).base(folder.path());
        let text = format!(
            "identity: {{ jwt: {{ keys: jwks.json, leeway: 0s }}, {identity} }}\nrules: [{{ name: users, {rule} }}]"
        );
        let gate = compiler.compile(&Policy::parse(&text, PolicyFormat::Yaml).unwrap(), None).unwrap();
        Self { gate, issuer, clock, _folder: folder }
    }

    /// A request with a token of this subject, which expires at second 1,010.
    fn request(&self, subject: &str) -> PolicyTestRequest {
        let token = self.issuer.sign(&format!(r#"{{"sub":"{subject}","exp":1010}}"#));
        PolicyTestRequest::new("GET /").with_header("authorization", &format!("Bearer {token}"))
    }

    /// The reason and the status of a rejection.
    fn check(&self, request: &PolicyTestRequest) -> Option<(RejectReason, u16)> {
        let Evaluation::Ready(PolicyResult::Rejected(rejection)) = self.gate.check(request) else {
            return None;
        };
        let RejectAction::Response(response) = &rejection.action else { panic!("{rejection:?}") };
        Some((rejection.reason, response.status()))
    }
}

const UNAUTHENTICATED: Option<(RejectReason, u16)> = Some((RejectReason::Unauthenticated, 401));
const LIMITED: Option<(RejectReason, u16)> = Some((RejectReason::Limited, 429));

#[test]
fn token_is_valid_until_it_expires() {
    let policy = IdentityPolicy::new("", "key: jwt sub, quota: 9/h, missing: reject");
    let alice = policy.request("alice");
    assert_eq!(policy.check(&alice), None);
    policy.clock.advance(Duration::from_secs(9));
    assert_eq!(policy.check(&alice), None);
    policy.clock.advance(Duration::from_secs(1));
    assert_eq!(policy.check(&alice), UNAUTHENTICATED);
}

/// A token that was valid is no guess.
#[test]
fn expired_token_is_counted_but_is_no_guess() {
    let policy = IdentityPolicy::new("invalid-quota: 1/h", "key: jwt sub, quota: 99/h, missing: reject");
    let alice = policy.request("alice");
    assert_eq!(policy.check(&alice), None);
    policy.clock.advance(Duration::from_secs(10));
    for _ in 0..3 {
        assert_eq!(policy.check(&alice), UNAUTHENTICATED);
    }
    let counted: Vec<_> = policy.gate.invalid_credentials().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [("expired", 3)]);
}

#[test]
fn rule_in_shadow_mode_rejects_no_credential() {
    let rule = "mode: shadow, key: jwt sub, quota: 1/h, missing: reject";
    let policy = IdentityPolicy::new("invalid-quota: 1/h", rule);
    for _ in 0..3 {
        let guess = PolicyTestRequest::new("GET /").with_header("authorization", "Bearer guess");
        assert_eq!(policy.check(&guess), None);
    }
}

#[test]
fn composite_key_needs_all_of_its_parts() {
    let policy = IdentityPolicy::new("", "key: [jwt sub, header x-tenant], quota: 1/h, missing: reject");
    let with_tenant = |request: PolicyTestRequest| request.with_header("x-tenant", "a");
    assert_eq!(policy.check(&with_tenant(policy.request("alice"))), None);
    assert_eq!(policy.check(&with_tenant(policy.request("alice"))), LIMITED);
    assert_eq!(policy.check(&policy.request("bob")), Some((RejectReason::NoKey, 400)));
    assert_eq!(policy.check(&with_tenant(PolicyTestRequest::new("GET /"))), UNAUTHENTICATED);
}

#[test]
fn user_may_be_a_claim() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = TokenIssuer::new("EdDSA", "one").unwrap();
    fs::write(folder.path().join("jwks.json"), issuer.key_set()).unwrap();
    let text = "user: jwt sub\nidentity: { jwt: jwks.json }\nrules: [{ name: users, key: user, quota: 1/h }]";
    let compiler = Compiler::new(Rules::new()).wall_clock(Clock::manual().0).base(folder.path());
    let gate = compiler.compile(&Policy::parse(text, PolicyFormat::Yaml).unwrap(), None).unwrap();
    let token = issuer.sign(r#"{"sub":"alice","exp":1010}"#);
    let request = PolicyTestRequest::new("GET /").with_header("authorization", &format!("Bearer {token}"));
    let mut results =
        (0..2).map(|_| matches!(gate.check(&request), Evaluation::Ready(PolicyResult::Admitted(_))));
    assert_eq!((results.next(), results.next()), (Some(true), Some(false)));
}

#[test]
fn service_without_gateway_fetches_no_keys() {
    let text = "identity: { jwt: { keys: 'http://127.0.0.1:9/keys' } }\nrules: [{ name: a, key: jwt sub, quota: 1/h }]";
    let policy = Policy::parse(text, PolicyFormat::Yaml).unwrap();
    let live = LivePolicy::new(Compiler::new(Rules::new()), &policy).unwrap();
    assert_eq!(live.current().remote_key_set().unwrap().url, "http://127.0.0.1:9/keys");
    let expected = "key set at a URL, but only a gateway fetches one; use a file";
    assert!(live.forbid_gateway_fallbacks().unwrap_err().to_string().contains(expected));
    let live = LivePolicy::new(Compiler::new(Rules::new()), &Policy::default()).unwrap();
    live.forbid_gateway_fallbacks().unwrap();
    assert!(live.replace(&policy).unwrap_err().to_string().contains(expected));
}

/// A token that several rules read is one guess.
#[test]
fn invalid_credential_counts_once_for_all_rules() {
    let rule = "key: jwt sub, quota: 9/h }, { name: more, key: jwt sub, quota: 9/h, missing: reject";
    let policy = IdentityPolicy::new("invalid-quota: 2/h", rule);
    for expected in [UNAUTHENTICATED, UNAUTHENTICATED, Some((RejectReason::Unauthenticated, 429))] {
        let guess = PolicyTestRequest::new("GET /").with_header("authorization", "Bearer guess");
        assert_eq!(policy.check(&guess), expected);
    }
}

/// Fetched keys stay while their settings do, and the address is that of the new policy.
#[test]
fn change_of_one_part_keeps_the_others() {
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    let compiler = Compiler::new(Rules::new()).clock(Clock::manual().0).wall_clock(Clock::manual().0);
    let compile = |before: Option<&PolicyGate>, quota: &str, rest: &str| {
        let identity = format!("jwt: {{ keys: 'http://127.0.0.1:9/keys' }}, invalid-quota: {quota}");
        let rules = "rules: [{ name: users, key: jwt sub, quota: 9/h, missing: reject }]";
        let text = format!("identity: {{ {identity} }}\n{rules}\n{rest}");
        compiler.compile(&Policy::parse(&text, PolicyFormat::Yaml).unwrap(), before).unwrap()
    };
    let first = compile(None, "1/h", "");
    first.remote_key_set().unwrap().verifier.set_keys(JwtKeySet::parse(issuer.key_set().as_bytes()).unwrap());
    let header = format!("Bearer {}", issuer.sign(r#"{"sub":"alice","exp":1010}"#));
    let is_admitted = |gate: &PolicyGate, header: &str, client: &str| {
        let request = PolicyTestRequest::new("GET /").with_header("authorization", header);
        let request = request.with_header("x-forwarded-for", client);
        matches!(gate.check(&request), Evaluation::Ready(PolicyResult::Admitted(_)))
    };
    let second = compile(Some(&first), "2/h", "");
    assert!(is_admitted(&second, &header, "203.0.113.1"));

    // Behind a proxy, a guess of one client leaves the others alone.
    let third = compile(Some(&second), "2/h", "trusted-proxies: 192.0.2.0/24");
    for _ in 0..3 {
        assert!(!is_admitted(&third, "Bearer guess", "203.0.113.1"));
    }
    let bob = format!("Bearer {}", issuer.sign(r#"{"sub":"bob","exp":1010}"#));
    assert!(!is_admitted(&third, &bob, "203.0.113.1"));
    assert!(is_admitted(&third, &bob, "203.0.113.2"));
}

/// Whether the only rule, which denies all requests that match, applies.
fn is_denied(policy: &IdentityPolicy, request: &PolicyTestRequest) -> bool {
    policy.check(request).is_some_and(|(reason, _)| reason == RejectReason::DenyListed)
}

#[test]
fn rule_applies_only_to_verified_claims_that_match() {
    let with_token = |policy: &IdentityPolicy, claims: &str| {
        let token = policy.issuer.sign(&format!("{{{claims},\"exp\":1010}}"));
        PolicyTestRequest::new("GET /").with_header("authorization", &format!("Bearer {token}"))
    };
    let matching = |jwt: &str| IdentityPolicy::new("", &format!("match: {{ {jwt} }}, deny: all"));
    for (jwt, claims, expected) in [
        ("jwt: { plan: gold }", r#""plan":"gold""#, true),
        ("jwt: { plan: gold }", r#""plan":"silver""#, false),
        ("jwt: { plan: gold }", r#""sub":"gold""#, false),
        ("jwt: { plan: [free, gold] }", r#""plan":"gold""#, true),
        ("jwt: { plan: 'g*' }", r#""plan":"gold""#, true),
        ("jwt: { plan: gold, sub: a }", r#""plan":"gold","sub":"b""#, false),
        ("jwt: { admin: true, level: 3 }", r#""admin":true,"level":3"#, true),
        ("jwt: { roles: admin }", r#""roles":["user","admin"]"#, true),
        ("jwt: { roles: admin }", r#""roles":["user",["admin"],{"admin":1}]"#, false),
        ("jwt: { /realm/roles/0: admin }", r#""realm":{"roles":["admin"]}"#, true),
        ("jwt: { 'https://example.com/plan': gold }", r#""https://example.com/plan":"gold""#, true),
        ("not: { jwt: { plan: gold } }", r#""plan":"gold""#, false),
        ("not: { jwt: { plan: gold } }", r#""plan":"free""#, true),
        ("any: [{ path: /none }, { jwt: { plan: gold } }]", r#""plan":"gold""#, true),
    ] {
        let policy = matching(jwt);
        assert_eq!(is_denied(&policy, &with_token(&policy, claims)), expected, "{jwt}: {claims}");
    }
    let policy = matching("jwt: { sub: '*' }");
    let alice = policy.request("alice");
    assert!(is_denied(&policy, &alice));
    policy.clock.advance(Duration::from_secs(10));
    assert!(!is_denied(&policy, &alice), "expired");
    let without = PolicyTestRequest::new("GET /");
    let invalid = PolicyTestRequest::new("GET /").with_header("authorization", "Bearer a.b.c");
    let anonymous = matching("not: { jwt: { sub: '*' } }");
    for request in [&without, &invalid] {
        assert!(!is_denied(&policy, request) && is_denied(&anonymous, request));
    }
    assert!(!is_denied(&anonymous, &anonymous.request("alice")));
}

/// An invalid credential that only a match reads is a guess as well, once for each request.
#[test]
fn guesses_for_a_match_are_limited() {
    let rule = "match: { jwt: { plan: gold } }, deny: all }, { name: more, match: { not: { jwt: { plan: free } } }, quota: 99/h";
    let policy = IdentityPolicy::new("invalid-quota: 2/h", rule);
    let known = policy.request("alice");
    assert_eq!(policy.check(&known), None);
    let guess = |token: &str| {
        PolicyTestRequest::new("GET /").with_header("authorization", &format!("Bearer {token}"))
    };
    // Looking up what the rules need of the body is no decision.
    let asked = guess("x.y.z");
    policy.gate.body_pointers(&policy.gate.view_request(&asked));
    for token in ["a.b.c", "d.e.f"] {
        assert_eq!(policy.check(&guess(token)), None, "{token}");
    }
    let blocked = Some((RejectReason::Unauthenticated, 429));
    assert_eq!(policy.check(&guess("g.h.i")), blocked);
    assert_eq!(policy.check(&policy.request("bob")), blocked);
    assert_eq!(policy.check(&known), None);
    assert_eq!(policy.check(&PolicyTestRequest::new("GET /")), None);
}

/// Without a rule that applies, guesses count as well, so that a correct one is not noticed.
#[test]
fn guesses_count_if_no_rule_applies() {
    let policy = IdentityPolicy::new("invalid-quota: 2/h", "match: { jwt: { sub: '*' } }, deny: all");
    for _ in 0..2 {
        let guess = PolicyTestRequest::new("GET /").with_header("authorization", "Bearer a.b.c");
        assert_eq!(policy.check(&guess), None);
    }
    assert_eq!(policy.check(&policy.request("alice")), Some((RejectReason::Unauthenticated, 429)));
}

/// A denial and `explain` name the reason.
#[test]
fn reasons_are_described() {
    let problem = |policy: &IdentityPolicy, request: &PolicyTestRequest| {
        let Evaluation::Ready(PolicyResult::Rejected(rejection)) = policy.gate.check(request) else {
            panic!("admitted");
        };
        rejection.credential.unwrap().to_string()
    };
    let policy = IdentityPolicy::new("invalid-quota: 1/h", "key: jwt sub, quota: 9/h, missing: reject");
    let guess = PolicyTestRequest::new("GET /").with_header("authorization", "Bearer a.b.c");
    assert_eq!(problem(&policy, &PolicyTestRequest::new("GET /")), "no valid credential");
    assert_eq!(problem(&policy, &guess), "no valid credential: malformed token");
    let limited = "an unverified credential, because its address sent too many invalid ones";
    assert_eq!(problem(&policy, &guess), limited);

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("keys.json"), r#"{"api-keys":[]}"#).unwrap();
    let text = "identity: { api-keys: keys.json }
rules:
  - { name: name, match: { api-key: { name: a } }, quota: 1/h }
  - { name: tier, match: { api-key: { tier: a } }, quota: 1/h }
  - { name: certificate, match: { client-cert: { san: a } }, quota: 1/h }
";
    let policy = Policy::parse(text, PolicyFormat::Yaml).unwrap();
    let explanation = explain(&policy, &PolicyTestRequest::new("GET /"), folder.path()).unwrap().to_string();
    for text in
        ["API key does not match", "tier of the API key does not match", "client-cert `san` does not match"]
    {
        assert!(explanation.contains(text), "{explanation}");
    }
}
