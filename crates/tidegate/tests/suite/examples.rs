//! The output of the examples.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

#[path = "../../examples/attribute.rs"]
mod attribute;
#[cfg(feature = "stream")]
#[path = "../../examples/consumer.rs"]
mod consumer;

#[test]
fn attribute_example_output() {
    let mut out = Vec::new();
    attribute::run(&mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "to alice: hello
to alice: hello
to alice: hello
to alice: not sent: mail limit reached
to bob: hello
example.org is 192.0.2.1
example.org is 192.0.2.1
nowhere: unknown host
nowhere: unknown host
example.org is 192.0.2.255 (fallback)
the maximum depth is 3
"
    );
}

#[cfg(feature = "stream")]
#[tokio::test(start_paused = true)]
async fn consumer_example_output() {
    let mut out = Vec::new();
    consumer::run(&mut out).await.unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "  0 ms: handled 1 of alice
100 ms: handled 2 of bob
200 ms: handled 3 of alice
300 ms: dead-lettered 4 of alice
400 ms: handled 5 of bob
"
    );
}
