//! Requests per second with a token in each request, verified and remembered, compared with the same requests without verification.

use crate::{BenchResult, Measurement};
use tidegate_bench::proxy::{
    BenchServer, ClientProtocol, ExpectedStatus, compare_servers, run_wrk_with_headers,
};
use tidegate_testkit::tokens::TokenIssuer;

pub(crate) const ABOUT: &str =
    "requests/s with a limit per subject of a verified token, over the same limit per value of a header";

/// They expire in the year 2100.
const CLAIMS: &str = r#"{"iss":"https://issuer.example","aud":"api","sub":"7f1c8f0a-2c1e-4c55-8f7e-0d9a3a9b1c11","iat":1700000000,"exp":4102444800,"plan":"gold","scope":"read write","roles":["user","admin"]}"#;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let issuer = TokenIssuer::new("RS256", "first").ok_or("no key")?;
    let headers = [
        format!("authorization: Bearer {}", issuer.sign(CLAIMS)),
        "x-user: 7f1c8f0a-2c1e-4c55-8f7e-0d9a3a9b1c11".to_owned(),
    ];
    let backend = BenchServer::start_backend()?;
    let start = |identity: &str, key: &str| {
        let rule = format!("name: each, key: {key}, quota: 1000000/s burst 100000, missing: reject");
        let policy = format!("headers: none\n{identity}rules: {{ {rule} }}");
        let files = [("jwks.json", issuer.key_set())];
        BenchServer::start_gateway_with_files(&backend, ClientProtocol::Http, &policy, &files)
    };
    let identity = "identity: { jwt: { keys: jwks.json, issuer: https://issuer.example, audience: api } }\n";
    let (verified, plain) = (start(identity, "jwt sub")?, start("", "header x-user")?);
    compare_servers(&verified, &plain, "requests/s", |server| {
        Ok(run_wrk_with_headers(server, &headers, ExpectedStatus::Ok)?.rate)
    })
}
