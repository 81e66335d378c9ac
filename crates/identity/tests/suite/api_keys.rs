//! API keys.

use crate::authenticator::{TestRequest, request};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_identity::{
    CredentialSource,
    api_key::{ApiKeyAuthenticator, ApiKeyError, ApiKeyFile, ApiKeyPart},
};
use tidegate_limiter::{Clock, ManualClock};

fn authenticator(file: &ApiKeyFile) -> (Arc<ApiKeyAuthenticator>, ManualClock) {
    let (clock, manual) = Clock::manual();
    manual.set(Micros::from_secs(1_000));
    let source = CredentialSource::Header("x-api-key".into());
    (Arc::new(ApiKeyAuthenticator::new(source, file.clone()).with_clock(clock)), manual)
}

fn problem(json: &str) -> String {
    ApiKeyFile::parse(json.as_bytes()).unwrap_err().problem().to_owned()
}

#[test]
fn added_key_is_accepted_until_it_is_revoked() {
    let mut file = ApiKeyFile::default();
    let acme = file.add("acme", Some("gold"), 10, None).unwrap();
    let other = file.add("other", None, 11, Some(2_000)).unwrap();
    assert!(acme.starts_with("tg_") && acme.len() == 46 && acme != other, "{acme}");
    assert!(!file.to_json().contains(&acme), "{}", file.to_json());
    assert_eq!(ApiKeyFile::parse(file.to_json().as_bytes()).unwrap(), file);

    let (keys, clock) = authenticator(&file);
    let name = |secret: &str| {
        keys.authenticate(&request("x-api-key", &[secret])).map(|key| key.map(|key| key.name.clone()))
    };
    assert_eq!(name(&acme), Ok(Some("acme".to_owned())));
    assert_eq!(name(&other), Ok(Some("other".to_owned())));
    assert_eq!(name(&acme.to_uppercase()), Err(ApiKeyError::Unknown));
    assert_eq!(name(""), Err(ApiKeyError::Unknown));
    assert_eq!(name(&"x".repeat(1_000_000)), Err(ApiKeyError::Unknown));
    assert_eq!(keys.authenticate(&TestRequest::default()), Ok(None));
    let several = request("x-api-key", &[&acme, &acme]);
    assert_eq!(keys.authenticate(&several), Err(ApiKeyError::Several));
    clock.set(Micros::from_secs(2_000));
    assert_eq!(name(&other), Err(ApiKeyError::Expired));

    let removed = file.revoke("acme");
    assert_eq!(removed.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["acme"]);
    assert!(file.revoke("acme").is_empty());
    keys.set_keys(file);
    assert_eq!(name(&acme), Err(ApiKeyError::Unknown));
}

#[test]
fn one_of_several_keys_of_a_name_is_revoked_by_its_id() {
    let mut file = ApiKeyFile::default();
    let old = file.add("acme", None, 10, None).unwrap();
    let new = file.add("acme", None, 11, None).unwrap();
    let id = file.keys()[0].id();
    assert_eq!(file.revoke(&id).len(), 1);
    let (keys, _) = authenticator(&file);
    assert_eq!(keys.authenticate(&request("x-api-key", &[&old])), Err(ApiKeyError::Unknown));
    assert!(keys.authenticate(&request("x-api-key", &[&new])).is_ok());
    assert_eq!(file.revoke("acme").len(), 1);
}

#[test]
fn name_and_tier_are_keys() {
    let mut file = ApiKeyFile::default();
    let with_tier = file.add("acme", Some("gold"), 10, None).unwrap();
    let without = file.add("other", None, 10, None).unwrap();
    let (keys, _) = authenticator(&file);
    let found = |part, secret: &str| {
        keys.clone().key(part).find(&request("x-api-key", &[secret])).map(|value| value.to_string())
    };
    assert_eq!(found(ApiKeyPart::Name, &with_tier).as_deref(), Some("acme"));
    assert_eq!(found(ApiKeyPart::Tier, &with_tier).as_deref(), Some("gold"));
    assert_eq!(found(ApiKeyPart::Tier, &without), None);
    assert_eq!(found(ApiKeyPart::Name, "guess"), None);
}

#[test]
fn only_keys_that_were_accepted_before_are_known() {
    let mut file = ApiKeyFile::default();
    let secret = file.add("acme", None, 10, None).unwrap();
    let (keys, _) = authenticator(&file);
    let with_key = request("x-api-key", &[&secret]);
    assert!(keys.authenticate_known(&with_key).is_none());
    assert!(keys.authenticate(&with_key).is_ok());
    let is_known =
        |keys: &ApiKeyAuthenticator| matches!(keys.authenticate_known(&with_key), Some(Ok(Some(_))));
    assert!(is_known(&keys));
    keys.set_keys(file);
    assert!(is_known(&keys), "forgotten after a reload");
    assert!(keys.authenticate_known(&request("x-api-key", &["guess"])).is_none());
    assert!(keys.authenticate_known(&request("x-api-key", &[&secret, &secret])).is_none());
    assert_eq!(keys.authenticate_known(&TestRequest::default()), Some(Ok(None)));
}

#[test]
fn invalid_files_are_rejected_with_the_position() {
    let hash = "0".repeat(64);
    let entry =
        |entry: &str| problem(&format!(r#"{{"api-keys":[{{"name":"a","sha256":"{hash}"}},{entry}]}}"#));
    assert!(problem("").starts_with("invalid JSON in a file of API keys"));
    assert_eq!(problem("[]"), "file of API keys without `api-keys`");
    assert_eq!(entry("7"), "api-keys[1]: expected a map");
    assert_eq!(entry("{}"), "api-keys[1]: missing `sha256`");
    assert_eq!(entry(&format!(r#"{{"sha256":"{hash}"}}"#)), "api-keys[1]: missing `name`");
    assert_eq!(
        entry(&format!(r#"{{"sha256":"{hash}","name":""}}"#)),
        "api-keys[1]: `name` is not a text of 1 to 256 bytes"
    );
    assert_eq!(
        entry(&format!(r#"{{"sha256":"{hash}","name":"\u001b[2J"}}"#)),
        "api-keys[1]: `name` is not a text of 1 to 256 bytes"
    );
    assert_eq!(
        entry(&format!(r#"{{"sha256":"{hash}","name":"a","tier":5}}"#)),
        "api-keys[1]: `tier` is not a text of 1 to 256 bytes"
    );
    assert_eq!(
        entry(&format!(r#"{{"sha256":"{hash}","name":"a","expires":-1}}"#)),
        "api-keys[1]: `expires` is not a time in seconds"
    );
    assert_eq!(
        entry(r#"{"sha256":"ab","name":"a"}"#),
        "api-keys[1]: `sha256` does not have 64 hexadecimal digits"
    );
    assert_eq!(
        entry(&format!(r#"{{"sha256":"+{}","name":"a"}}"#, "0".repeat(63))),
        "api-keys[1]: `sha256` does not have 64 hexadecimal digits"
    );
}
