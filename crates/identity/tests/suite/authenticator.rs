//! Tokens in requests.

use std::{any::Any, net::IpAddr, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_identity::{
    CredentialSource,
    jwt::{JwtAuthenticator, JwtError, JwtKeySet, JwtSettings, JwtVerifier},
};
use tidegate_limiter::Clock;
use tidegate_rule::request::RequestHead;
use tidegate_testkit::tokens::TokenIssuer;

/// A request with these headers, and a query.
#[derive(Default)]
pub(crate) struct TestRequest {
    headers: Vec<(&'static str, String)>,
    query: String,
}

impl RequestHead for TestRequest {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        "/"
    }

    fn query(&self) -> Option<&str> {
        Some(&self.query)
    }

    fn host(&self) -> Option<&str> {
        None
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn peer(&self) -> Option<IpAddr> {
        None
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_bytes())
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.iter().filter(|(own, _)| *own == name).for_each(|(_, value)| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

fn authenticator(source: CredentialSource, issuer: &TokenIssuer) -> Arc<JwtAuthenticator> {
    let (clock, manual) = Clock::manual();
    manual.set(Micros::from_secs(1_000));
    let keys = JwtKeySet::parse(issuer.key_set().as_bytes()).unwrap();
    let settings = JwtSettings { leeway: Duration::ZERO, ..JwtSettings::default() };
    let verifier = Arc::new(JwtVerifier::new(settings, keys));
    Arc::new(JwtAuthenticator::new(source, verifier).with_clock(clock))
}

pub(crate) fn request(name: &'static str, values: &[&str]) -> TestRequest {
    TestRequest {
        headers: values.iter().map(|value| (name, (*value).to_owned())).collect(),
        ..TestRequest::default()
    }
}

#[test]
fn token_is_read_from_each_source() {
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    let token = issuer.sign(r#"{"sub":"ada","exp":1001}"#);
    let query = TestRequest { query: format!("a=1&access_token={token}"), ..TestRequest::default() };
    let cases = [
        (CredentialSource::default(), request("authorization", &[&format!("Bearer {token}")])),
        (CredentialSource::default(), request("authorization", &[&format!("bEARER   {token} ")])),
        (CredentialSource::Header("x-token".into()), request("x-token", &[&token])),
        (CredentialSource::Header("x-token".into()), request("x-token", &[&format!("Bearer {token}")])),
        (CredentialSource::Cookie("session".into()), request("cookie", &[&format!("a=b; session={token}")])),
        (CredentialSource::Query("access_token".into()), query),
    ];
    for (source, request) in cases {
        let authenticator = authenticator(source.clone(), &issuer);
        assert!(authenticator.authenticate_known(&request).is_none(), "{source:?}");
        let claims = authenticator.authenticate(&request).unwrap().unwrap();
        assert_eq!(claims.get(&"/sub".parse().unwrap()).as_deref(), Some("ada"), "{source:?}");
        assert!(authenticator.authenticate_known(&request).unwrap().unwrap().is_some(), "{source:?}");
        assert!(authenticator.authenticate(&TestRequest::default()).unwrap().is_none(), "{source:?}");
    }
}

#[test]
fn other_scheme_is_no_token() {
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    let authenticator = authenticator(CredentialSource::default(), &issuer);
    for value in ["Basic YWRhOnNlY3JldA==", "Bearer", "", "Digest username=ada"] {
        assert!(
            authenticator.authenticate(&request("authorization", &[value])).unwrap().is_none(),
            "{value}"
        );
    }
    assert_eq!(
        authenticator.authenticate(&request("authorization", &["Bearer x"])).unwrap_err(),
        JwtError::Malformed
    );
}

#[test]
fn several_tokens_are_rejected() {
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    let token = format!("Bearer {}", issuer.sign(r#"{"sub":"ada","exp":1001}"#));
    let authenticator = authenticator(CredentialSource::default(), &issuer);
    let several = request("authorization", &[&token, &token]);
    assert_eq!(authenticator.authenticate(&several).unwrap_err(), JwtError::Several);
    assert!(authenticator.authenticate_known(&several).is_none());
    assert!(authenticator.authenticate_known(&TestRequest::default()).unwrap().unwrap().is_none());
    let with_other_scheme = request("authorization", &["Basic eDp5", &token]);
    assert!(authenticator.authenticate(&with_other_scheme).unwrap().is_some());
}

#[test]
fn claim_is_a_key() {
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    let key = authenticator(CredentialSource::default(), &issuer).key("/sub".parse().unwrap());
    let found = |claims: &str| {
        let request = request("authorization", &[&format!("Bearer {}", issuer.sign(claims))]);
        key.find(&request).map(|value| value.to_string())
    };
    assert_eq!(found(r#"{"sub":"ada","exp":1001}"#).as_deref(), Some("ada"));
    assert_eq!(found(r#"{"sub":"ada","exp":1000}"#), None);
    assert_eq!(found(r#"{"sub":"","exp":1001}"#), None);
    assert_eq!(found(r#"{"exp":1001}"#), None);
    assert!(key.find(&TestRequest::default()).is_none());
}
