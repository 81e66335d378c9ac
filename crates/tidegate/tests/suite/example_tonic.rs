//! The output of the tonic example.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

#[path = "../../examples/tonic.rs"]
mod example;

#[tokio::test]
async fn tonic_example_layer_and_interceptor_limit() {
    let mut out = Vec::new();
    example::run(&mut out).await.unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "acme: Serving
acme: Serving
acme: Serving
acme: ResourceExhausted by per-tenant, with a retry time
umbrella: Serving
umbrella: ResourceExhausted by per-client, with a retry time
"
    );
}
