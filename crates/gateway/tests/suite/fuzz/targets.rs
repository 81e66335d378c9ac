//! Fuzz targets. Each accepts any bytes, and must not panic, hang or return an undocumented response.
//!
//! The tests in this directory call them with a bounded number of mutated inputs; `scripts/fuzz` runs them with libFuzzer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic reports a finding")]

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, LazyLock},
    thread,
    time::Duration,
};
use tidegate_gateway::{Gateway, PolicySource};
use tidegate_policy::descriptors::{DescriptorFile, DescriptorSet, DomainMerge};
use tidegate_rule::Rules;
use tidegate_service::descriptors::{DescriptorService, ServiceSettings, transport::JsonHandler};
use tokio::runtime::Builder;

/// A name, and a function that accepts any bytes.
type DecisionFuzzTarget = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: [DecisionFuzzTarget; 2] = [("decisions", decision_api), ("json", envoy_json)];

/// The maximum input size. Longer inputs find nothing new.
const MAX_INPUT_SIZE: usize = 1 << 16;
/// Longer than any response takes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

const POLICY: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: login, key: header x-user, quota: 3/h }
  - { name: pair, key: [header x-tenant, ip], quota: 2/h }
  - { name: either, key: { first: [header x-user, ip] }, quota: 2/h }
  - { name: plans, key: ip, tiers: { key: header x-plan, quotas: { gold: 5/h }, default: 1/h } }
  - { name: jobs, key: header x-user, quota: 2 at once }
  - { name: both, key: header x-user, quota: [3/h, 2 at once] }
  - { name: all, quota: 2/h }
  - { name: watched, key: ip, quota: 1/h, mode: shadow }
";

/// `CALL?QUERY` in the first line, followed by a body: every response of `/v1` is JSON and matches the document.
pub(crate) fn decision_api(bytes: &[u8]) {
    static ADDRESS: LazyLock<SocketAddr> = LazyLock::new(gateway_address);
    static DOCUMENT: LazyLock<Value> =
        LazyLock::new(|| serde_json::from_str(include_str!("../../../../../docs/openapi.json")).unwrap());
    let bytes = &bytes[..bytes.len().min(MAX_INPUT_SIZE)];
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let is_plain = |byte: &u8| matches!(byte, b'!'..=b'~') && *byte != b'#';
    let path: String =
        bytes[..end].iter().filter(|byte| is_plain(byte)).map(|byte| char::from(*byte)).collect();
    let body = bytes.get(end + 1..).unwrap_or_default();
    let mut stream = TcpStream::connect(*ADDRESS).unwrap();
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).unwrap();
    let head = format!(
        "POST /v1/{path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut response = String::new();
    if stream.read_to_string(&mut response).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset) {
        // The server responded and closed the connection before it read all of the request.
        return;
    }
    let (head, reply) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    if matches!(status, "414" | "431") || status == "400" && reply.is_empty() {
        // The request line is too long or invalid.
        return;
    }
    let Some(call) = DOCUMENT["paths"].get(format!("/v1/{}", path.split('?').next().unwrap_or_default()))
    else {
        // An unknown or invalid path.
        return assert!(matches!(status, "400" | "404"), "{response}");
    };
    if call.get("post").is_none() {
        return;
    }
    let responses = &call["post"]["responses"];
    let range = format!("{}XX", &status[..1]);
    assert!(responses.get(status).or_else(|| responses.get(&range)).is_some(), "{response}");
    assert_ne!(status, "500", "{response}");
    let reply: Value = serde_json::from_str(reply).unwrap_or_else(|error| panic!("{error}: {response}"));
    if status != "200" {
        assert_eq!(reply["status"].to_string(), status, "{response}");
        assert!(reply["detail"].as_str().is_some_and(|detail| detail.len() < 1_000), "{response}");
    }
}

/// The address of a gateway that runs until the process ends.
fn gateway_address() -> SocketAddr {
    let gateway = Gateway::open(PolicySource::inline(POLICY.parse().unwrap()), Rules::new()).unwrap();
    let address = gateway.decisions_address().unwrap();
    thread::spawn(|| {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(gateway.run(std::future::pending())).unwrap();
    });
    address
}

/// A body of `/json`: the status is one of five.
pub(crate) fn envoy_json(bytes: &[u8]) {
    static WIRE: LazyLock<JsonHandler<Arc<DescriptorService>>> = LazyLock::new(|| {
        let text = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: hour, requests_per_unit: 3 }\n  \
                    - key: path\n    rate_limit: { quotas: [3/h burst 2, 9/d sliding-window] }\n";
        let file = DescriptorFile { name: "shop.yaml".to_owned(), text: text.to_owned() };
        let service = DescriptorService::new(ServiceSettings::default()).unwrap();
        service.load(Arc::new(DescriptorSet::read(&[file], DomainMerge::Reject).unwrap()));
        JsonHandler::new(service.into())
    });
    let body = Bytes::copy_from_slice(&bytes[..bytes.len().min(MAX_INPUT_SIZE)]);
    let request = Request::post("/json").body(Full::new(body)).unwrap();
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let response = runtime.block_on(WIRE.handle(request));
    match response.status().as_u16() {
        200 | 429 => drop(serde_json::from_slice::<Value>(response.body()).unwrap()),
        400 => assert!(response.headers().contains_key("tidegate-reason")),
        status => panic!("{status}"),
    }
}
