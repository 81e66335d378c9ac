//! Tokens: the examples of the RFCs, every algorithm, and tokens that must not be accepted.

use proptest::prelude::*;
use tidegate_identity::jwt::{JwtAlgorithm, JwtError, JwtKeySet, JwtSettings, JwtVerifier, MAX_TOKEN_SIZE};
use tidegate_testkit::tokens::{TokenIssuer, encode, key_set};

const NOW: u64 = 1_800_000_000;
const CLAIMS: &str = r#"{"sub":"ada","iss":"https://issuer","aud":["api","web"],"exp":1800000600,"plan":{"name":"gold"},"level":7}"#;

fn issuer(algorithm: &str) -> TokenIssuer {
    TokenIssuer::new(algorithm, "first").unwrap()
}

/// A verifier without leeway.
fn verifier(settings: JwtSettings, keys: &str) -> JwtVerifier {
    let settings = JwtSettings { leeway: std::time::Duration::ZERO, ..settings };
    JwtVerifier::new(settings, JwtKeySet::parse(keys.as_bytes()).unwrap())
}

fn error(verifier: &JwtVerifier, token: &str) -> JwtError {
    verifier.verify(token, NOW).unwrap_err()
}

fn claim(verifier: &JwtVerifier, token: &str, pointer: &str) -> Option<String> {
    let claims = verifier.verify(token, NOW).unwrap();
    claims.get(&pointer.parse().unwrap()).map(Into::into)
}

/// RFC 7515, appendices A.1 to A.3. All three expire at 1300819380.
#[test]
fn examples_of_rfc_7515_are_verified() {
    let payload =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let examples = [
        (
            r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#,
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ),
        (
            r#"{"kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#,
            "eyJhbGciOiJSUzI1NiJ9",
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        ),
        (
            r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
            "eyJhbGciOiJFUzI1NiJ9",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
    ];
    for (key, header, signature) in examples {
        let verifier = verifier(JwtSettings::default(), &format!(r#"{{"keys":[{key}]}}"#));
        let token = format!("{header}.{payload}.{signature}");
        let claims = verifier.verify(&token, 1_300_819_379).unwrap();
        assert_eq!(claims.get(&"/iss".parse().unwrap()).as_deref(), Some("joe"));
        assert_eq!(claims.get(&"/http:~1~1example.com~1is_root".parse().unwrap()).as_deref(), Some("true"));
        assert_eq!(verifier.verify(&token, 1_300_819_380).unwrap_err(), JwtError::Expired);
        let changed = token.replace(".eyJpc3MiOiJqb2Ui", ".eyJpc3MiOiJqb2Yi");
        assert_eq!(verifier.verify(&changed, 1_300_819_379).unwrap_err(), JwtError::WrongSignature);
    }
}

/// RFC 7519, section 6.1 (unsecured) and appendix A.1 (encrypted); RFC 7515, appendices A.4 (ES512) and E (`crit`).
#[test]
fn examples_of_the_rfcs_without_a_supported_signature_are_rejected() {
    let unsecured = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.";
    let encrypted = "eyJhbGciOiJSU0ExXzUiLCJlbmMiOiJBMTI4Q0JDLUhTMjU2In0.QR1Owv2ug2WyPBnbQrRARTeEk9kDO2w8qDcjiHnSJflSdv1iNqhWXaKH4MqAkQtM.AxY8DCtDaGlsbGljb3RoZQ.MKOle7UQrG6nSxTLX6Mqwt0orbHvAKeWnDYvpIAeZ72deHxz3roJDXQyhxx0wKaM.fiK51VwhsxJ-siBMR-YFiA";
    let es512 = "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA.AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn";
    let critical = "eyJhbGciOiJub25lIiwNCiAiaHR0cDovL2V4YW1wbGUuY29tL1VOREVGSU5FRCI6dHJ1ZSwNCiAiY3JpdCI6WyJodHRwOi8vZXhhbXBsZS5jb20vVU5ERUZJTkVEIl0NCn0.RkFJTA.";
    for algorithm in ["HS256", "RS256", "ES256"] {
        let verifier = verifier(JwtSettings::default(), &issuer(algorithm).key_set());
        assert_eq!(error(&verifier, unsecured), JwtError::WrongAlgorithm);
        assert_eq!(error(&verifier, encrypted), JwtError::Malformed);
        assert_eq!(error(&verifier, es512), JwtError::WrongAlgorithm);
        assert_eq!(error(&verifier, critical), JwtError::Malformed);
    }
}

/// RFC 8037, appendix A.4. Its payload is no map, so it has no claims.
#[test]
fn signature_of_rfc_8037_is_verified() {
    let key = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let signature = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let token = format!("eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.{signature}");
    assert_eq!(error(&verifier(JwtSettings::default(), key), &token), JwtError::Malformed);
    let changed = token.replace("RXhh", "RXhi");
    assert_eq!(error(&verifier(JwtSettings::default(), key), &changed), JwtError::WrongSignature);
}

#[test]
fn every_algorithm_is_verified_only_with_its_key() {
    for algorithm in TokenIssuer::ALGORITHMS {
        let issuer = issuer(algorithm);
        let token = issuer.sign(CLAIMS);
        let all = verifier(JwtSettings::default(), &issuer.key_set());
        assert_eq!(claim(&all, &token, "/sub").as_deref(), Some("ada"), "{algorithm}");
        let others = JwtAlgorithm::ALL.into_iter().filter(|one| one.name() != algorithm).collect();
        let other = verifier(JwtSettings { algorithms: others, ..JwtSettings::default() }, &issuer.key_set());
        assert_eq!(error(&other, &token), JwtError::WrongAlgorithm, "{algorithm}");
        let other_issuer =
            TokenIssuer::new(if algorithm == "ES256" { "ES384" } else { "ES256" }, "first").unwrap();
        let other = verifier(JwtSettings::default(), &other_issuer.key_set());
        assert_eq!(error(&other, &token), JwtError::UnknownKey, "{algorithm}");
        // The last characters of some signatures have unused bits.
        let (message, signature) = token.rsplit_once('.').unwrap();
        let first = if signature.starts_with('A') { 'B' } else { 'A' };
        let changed = format!("{message}.{first}{}", signature.get(1..).unwrap());
        assert_eq!(error(&all, &changed), JwtError::WrongSignature, "{algorithm}");
    }
}

#[test]
fn token_without_signature_is_rejected() {
    let issuer = issuer("RS256");
    let verifier = verifier(JwtSettings::default(), &issuer.key_set());
    for name in ["none", "None", "NONE", "nOnE", ""] {
        let header = format!(r#"{{"alg":"{name}","kid":"first"}}"#);
        let token = format!("{}.{}.", encode(header.as_bytes()), encode(CLAIMS.as_bytes()));
        assert_eq!(error(&verifier, &token), JwtError::WrongAlgorithm, "{name}");
    }
    let signed = issuer.sign(CLAIMS);
    let (message, _) = signed.rsplit_once('.').unwrap();
    assert_eq!(error(&verifier, &format!("{message}.")), JwtError::WrongSignature);
}

/// The public key of RSA must not be a secret of HMAC.
#[test]
fn public_key_is_no_secret() {
    let rsa = issuer("RS256");
    let verifier = verifier(JwtSettings::default(), &rsa.key_set());
    let modulus = rsa.jwk().split('"').nth(11).unwrap().to_owned();
    for secret in [rsa.key_set(), rsa.jwk(), modulus] {
        let header = encode(br#"{"alg":"HS256","kid":"first"}"#);
        let message = format!("{header}.{}", encode(CLAIMS.as_bytes()));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
        let signature = ring::hmac::sign(&key, message.as_bytes());
        let token = format!("{message}.{}", encode(signature.as_ref()));
        assert_eq!(error(&verifier, &token), JwtError::UnknownKey);
    }
    // With a secret of the same name in the set, the secret counts, and not the public key.
    let secret = issuer("HS256");
    let both = self::verifier(JwtSettings::default(), &key_set(&[&rsa, &secret]));
    assert_eq!(claim(&both, &secret.sign(CLAIMS), "/sub").as_deref(), Some("ada"));
    assert_eq!(claim(&both, &rsa.sign(CLAIMS), "/sub").as_deref(), Some("ada"));
    let confused = rsa.sign_with_header(r#"{"alg":"HS256","kid":"first"}"#, CLAIMS);
    assert_eq!(error(&both, &confused), JwtError::WrongSignature);
}

#[test]
fn key_is_found_by_its_name() {
    let (first, second) = (issuer("ES256"), TokenIssuer::new("ES256", "second").unwrap());
    let both = verifier(JwtSettings::default(), &key_set(&[&first, &second]));
    for issuer in [&first, &second] {
        assert_eq!(claim(&both, &issuer.sign(CLAIMS), "/sub").as_deref(), Some("ada"));
        let without_name = issuer.sign_with_header(r#"{"alg":"ES256"}"#, CLAIMS);
        assert_eq!(claim(&both, &without_name, "/sub").as_deref(), Some("ada"));
    }
    let other_name = first.sign_with_header(r#"{"alg":"ES256","kid":"second"}"#, CLAIMS);
    assert_eq!(error(&both, &other_name), JwtError::WrongSignature);
    let unknown = first.sign_with_header(r#"{"alg":"ES256","kid":"third"}"#, CLAIMS);
    assert_eq!(error(&both, &unknown), JwtError::UnknownKey);
    let without_names = first.key_set().replace(r#""kid":"first","#, "");
    assert_eq!(
        claim(&verifier(JwtSettings::default(), &without_names), &unknown, "/sub").as_deref(),
        Some("ada")
    );
}

#[test]
fn replaced_keys_reject_tokens_of_removed_ones() {
    let (first, second) = (issuer("ES256"), TokenIssuer::new("ES256", "second").unwrap());
    let verifier = verifier(JwtSettings::default(), &first.key_set());
    let (old, new) = (first.sign(CLAIMS), second.sign(CLAIMS));
    assert!(verifier.verify(&old, NOW).is_ok());
    assert!(verifier.verify_known(&old, NOW).is_some());
    assert_eq!(error(&verifier, &new), JwtError::UnknownKey);
    verifier.set_keys(JwtKeySet::parse(key_set(&[&first, &second]).as_bytes()).unwrap());
    assert!(verifier.verify(&old, NOW).is_ok());
    assert!(verifier.verify(&new, NOW).is_ok());
    verifier.set_keys(JwtKeySet::parse(second.key_set().as_bytes()).unwrap());
    assert_eq!(error(&verifier, &old), JwtError::UnknownKey);
    assert!(verifier.verify(&new, NOW).is_ok());
}

#[test]
fn issuer_and_audience_are_checked() {
    let issuer = issuer("ES256");
    let accepted = |issuers: &[&str], audiences: &[&str], claims: &str| {
        let text = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let settings =
            JwtSettings { issuers: text(issuers), audiences: text(audiences), ..JwtSettings::default() };
        verifier(settings, &issuer.key_set()).verify(&issuer.sign(claims), NOW).err()
    };
    let (wrong_issuer, wrong_audience) = (Some(JwtError::WrongIssuer), Some(JwtError::WrongAudience));
    assert_eq!(accepted(&["other", "https://issuer"], &["web"], CLAIMS), None);
    assert_eq!(accepted(&[], &["api", "other"], CLAIMS), None);
    assert_eq!(accepted(&["https://issuer/"], &[], CLAIMS), wrong_issuer);
    assert_eq!(accepted(&[], &["other"], CLAIMS), wrong_audience);
    let claims = r#"{"iss":["https://issuer"],"aud":"api","exp":1800000600}"#;
    assert_eq!(accepted(&[], &["api"], claims), None);
    assert_eq!(accepted(&["https://issuer"], &[], claims), wrong_issuer);
    let none = r#"{"exp":1800000600}"#;
    assert_eq!(accepted(&["https://issuer"], &[], none), wrong_issuer);
    assert_eq!(accepted(&[], &["api"], none), wrong_audience);
    assert_eq!(accepted(&[], &["api"], r#"{"aud":[["api"],7],"exp":1800000600}"#), wrong_audience);
}

#[test]
fn times_are_checked_on_every_request() {
    let issuer = issuer("ES256");
    let verifier = verifier(JwtSettings::default(), &issuer.key_set());
    let token = issuer.sign(r#"{"nbf":100,"exp":200.9}"#);
    for (now, expected) in
        [(99, Some(JwtError::NotYetValid)), (100, None), (199, None), (200, Some(JwtError::Expired))]
    {
        assert_eq!(verifier.verify(&token, now).err(), expected, "{now}");
    }
    let with_leeway =
        JwtVerifier::new(JwtSettings::default(), JwtKeySet::parse(issuer.key_set().as_bytes()).unwrap());
    for (now, expected) in
        [(39, Some(JwtError::NotYetValid)), (40, None), (259, None), (260, Some(JwtError::Expired))]
    {
        assert_eq!(with_leeway.verify(&token, now).err(), expected, "{now}");
    }
    for claims in [
        r#"{"sub":"ada"}"#,
        r#"{"exp":"1800000600"}"#,
        r#"{"exp":-5}"#,
        r#"{"exp":1e300}"#,
        r#"{"exp":null}"#,
    ] {
        assert_eq!(error(&verifier, &issuer.sign(claims)), JwtError::NoExpiry, "{claims}");
    }
    assert_eq!(error(&verifier, &issuer.sign(r#"{"exp":1800000600,"nbf":"soon"}"#)), JwtError::NotYetValid);
}

#[test]
fn malformed_tokens_are_rejected() {
    let issuer = issuer("ES256");
    let verifier = verifier(JwtSettings::default(), &issuer.key_set());
    let token = issuer.sign(CLAIMS);
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (header, payload) = message.split_once('.').unwrap();
    let malformed = [
        String::new(),
        "..".into(),
        header.into(),
        message.into(),
        format!("{token}."),
        format!("{token}.{signature}"),
        format!(".{payload}.{signature}"),
        format!("{header}=.{payload}.{signature}"),
        format!("{message}.{signature}="),
        format!("{message}. {signature}"),
        format!("{}.{payload}.{signature}", encode(b"[]")),
        format!("{}.{payload}.{signature}", encode(b"{\"alg\":5}")),
        format!("{}.{payload}.{signature}", encode(b"{}")),
        issuer.sign_with_header(r#"{"alg":"ES256","kid":5}"#, CLAIMS),
        issuer.sign_with_header(r#"{"alg":"ES256","kid":"first","crit":["b64"],"b64":false}"#, CLAIMS),
        issuer.sign("[]"),
        issuer.sign("{"),
        issuer.sign(&"[".repeat(10_000)),
    ];
    for token in malformed {
        assert_eq!(error(&verifier, &token), JwtError::Malformed, "{token}");
    }
    let long =
        |length: usize| issuer.sign(&format!(r#"{{"exp":1800000600,"padding":"{}"}}"#, "x".repeat(length)));
    assert!(verifier.verify(&long(MAX_TOKEN_SIZE / 2), NOW).is_ok());
    assert_eq!(error(&verifier, &long(MAX_TOKEN_SIZE)), JwtError::TooLong);
    assert_eq!(error(&verifier, &"x".repeat(1024 * 1024)), JwtError::TooLong);
}

#[test]
fn claims_are_texts_numbers_and_booleans() {
    let issuer = issuer("EdDSA");
    let verifier = verifier(JwtSettings::default(), &issuer.key_set());
    let token = issuer
        .sign(r#"{"exp":1800000600,"n":7,"f":1.5,"t":true,"z":null,"list":["a",{"b":"c"}],"":"empty"}"#);
    let expected = [
        ("/n", Some("7")),
        ("/f", Some("1.5")),
        ("/t", Some("true")),
        ("/z", None),
        ("/list", None),
        ("/list/0", Some("a")),
        ("/list/00", None),
        ("/list/1/b", Some("c")),
        ("/list/2", None),
        ("/n/0", None),
        ("/missing", None),
    ];
    for (pointer, value) in expected {
        assert_eq!(claim(&verifier, &token, pointer).as_deref(), value, "{pointer}");
    }
}

/// Debugging output must not contain a token or a key.
#[test]
fn debug_output_has_no_secrets() {
    let issuer = issuer("HS256");
    let verifier = verifier(JwtSettings::default(), &issuer.key_set());
    let claims = verifier.verify(&issuer.sign(CLAIMS), NOW).unwrap();
    let output = format!("{verifier:?} {claims:?}");
    assert!(output.contains("first") && output.contains("plan"), "{output}");
    assert!(!output.contains("ada") && !output.contains("gold"), "{output}");
    let secret = issuer.jwk();
    let secret = secret.split('"').rev().nth(1).unwrap();
    assert!(!output.contains(secret), "{output}");
}

#[test]
fn more_tokens_than_the_cache_holds_are_verified() {
    let issuer = issuer("HS256");
    let verifier = verifier(JwtSettings::default(), &issuer.key_set());
    let tokens: Vec<_> =
        (0..40_000).map(|user| issuer.sign(&format!(r#"{{"sub":"{user}","exp":1800000600}}"#))).collect();
    for (user, token) in tokens.iter().enumerate() {
        assert_eq!(claim(&verifier, token, "/sub"), Some(user.to_string()));
    }
    let cached = tokens.iter().filter(|token| verifier.verify_known(token, NOW).is_some()).count();
    assert!((10_000..=16_384).contains(&cached), "{cached}");
}

proptest! {
    /// Whatever bytes are changed, a token has its claims or is rejected.
    #[test]
    fn changed_tokens_are_rejected(at in 0_usize..300, byte in 0x20_u8..0x7f) {
        let issuer = issuer("HS256");
        let verifier = verifier(JwtSettings::default(), &issuer.key_set());
        let token = issuer.sign(CLAIMS);
        let at = at % token.len();
        let mut changed = token.clone().into_bytes();
        if let Some(place) = changed.get_mut(at) {
            *place = byte;
        }
        let changed = String::from_utf8(changed).unwrap();
        prop_assert_eq!(verifier.verify(&changed, NOW).is_ok(), changed == token);
    }

    #[test]
    fn random_texts_do_not_panic(token in "[A-Za-z0-9._=-]{0,200}", keys in ".{0,200}") {
        let issuer = issuer("HS256");
        let verifier = verifier(JwtSettings::default(), &issuer.key_set());
        prop_assert!(verifier.verify(&token, NOW).is_err());
        prop_assert!(JwtKeySet::parse(keys.as_bytes()).is_err());
    }
}
