//! Requests per second and processor time: without rules, over TLS and HTTP/2, with a limit, with many rules, with quotas in Redis.

use crate::{BenchResult, Measurement};
use std::process::{Command, Stdio};
use tidegate_bench::proxy::{
    BenchServer, CIPHER_SUITE, ClientProtocol, ExpectedStatus, NginxSettings, compare_servers,
    compare_throughput, run_h2load, run_wrk,
};

pub(crate) const PLAIN_ABOUT: &str = "requests/s of plain proxying, 64 keep-alive connections, over nginx";

pub(crate) fn measure_plain() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Http, &NginxSettings::default())?;
    compare_throughput(
        &BenchServer::start_gateway(&backend, ClientProtocol::Http, "")?,
        &nginx,
        ExpectedStatus::Ok,
    )
}

pub(crate) const CPU_ABOUT: &str = "processor time per request of plain proxying, over nginx";

pub(crate) fn measure_cpu_plain() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Http, &NginxSettings::default())?;
    compare_cpu_time(
        &BenchServer::start_gateway(&backend, ClientProtocol::Http, "")?,
        &nginx,
        ExpectedStatus::Ok,
    )
}

fn compare_cpu_time(
    gateway: &BenchServer,
    nginx: &BenchServer,
    expected: ExpectedStatus,
) -> BenchResult<Measurement> {
    compare_servers(gateway, nginx, "ns per request", |server| {
        let before = server.cpu_time()?;
        let requests = run_wrk(server, expected)?.requests;
        Ok((server.cpu_time()? - before) as f64 / requests)
    })
}

pub(crate) const TLS_ABOUT: &str =
    "requests/s over TLS 1.3 with one cipher suite, 64 keep-alive connections, over nginx";

pub(crate) fn measure_tls() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Https, &NginxSettings::default())?;
    let gateway = BenchServer::start_gateway(&backend, ClientProtocol::Https, "")?;
    for server in [&nginx, &gateway] {
        check_cipher_suite(server)?;
    }
    compare_throughput(&gateway, &nginx, ExpectedStatus::Ok)
}

/// Fails if a client gets another version or cipher suite.
fn check_cipher_suite(server: &BenchServer) -> BenchResult<()> {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &server.address.to_string()])
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains(&format!("TLSv1.3, Cipher is {CIPHER_SUITE}")) {
        Ok(())
    } else {
        Err(format!("{} does not use TLS 1.3 with {CIPHER_SUITE}: {text}", server.address).into())
    }
}

pub(crate) const HTTP2_ABOUT: &str =
    "requests/s of HTTP/2 clients without TLS, 8 connections of 8 streams, over nginx";

pub(crate) fn measure_http2() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Http2, &NginxSettings::default())?;
    let gateway = BenchServer::start_gateway(&backend, ClientProtocol::Http2, "")?;
    compare_servers(&gateway, &nginx, "requests/s", run_h2load)
}

pub(crate) const ALLOWED_ABOUT: &str = "one limit per client IP, all allowed, over nginx with limit_req";

pub(crate) fn measure_limit_allowed() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(
        &backend,
        ClientProtocol::Http,
        &limit_req("1000000r/s", "burst=100000 nodelay"),
    )?;
    let gateway =
        BenchServer::start_gateway(&backend, ClientProtocol::Http, &one_rule("1000000/s burst 100000"))?;
    compare_throughput(&gateway, &nginx, ExpectedStatus::Ok)
}

pub(crate) const REJECTED_ABOUT: &str = "one limit per client IP, most rejected, over nginx with limit_req";

pub(crate) fn measure_limit_rejected() -> BenchResult<Measurement> {
    let [_backend, gateway, nginx] = start_rejecting()?;
    compare_throughput(&gateway, &nginx, ExpectedStatus::TooManyRequests)
}

pub(crate) const CPU_REJECTED_ABOUT: &str = "processor time per rejected request, over nginx with limit_req";

pub(crate) fn measure_cpu_rejected() -> BenchResult<Measurement> {
    let [_backend, gateway, nginx] = start_rejecting()?;
    compare_cpu_time(&gateway, &nginx, ExpectedStatus::TooManyRequests)
}

/// A backend, the gateway and nginx, with a limit that rejects almost all requests.
fn start_rejecting() -> BenchResult<[BenchServer; 3]> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Http, &limit_req("1r/m", ""))?;
    let gateway = BenchServer::start_gateway(&backend, ClientProtocol::Http, &one_rule("1/min burst 1"))?;
    Ok([backend, gateway, nginx])
}

pub(crate) const RULES_ABOUT: &str = "1,000 rules loaded, one matches, over 10 rules";

pub(crate) fn measure_rules_1000() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let few = BenchServer::start_gateway(&backend, ClientProtocol::Http, &many_rules(10))?;
    compare_throughput(
        &BenchServer::start_gateway(&backend, ClientProtocol::Http, &many_rules(1_000))?,
        &few,
        ExpectedStatus::Ok,
    )
}

pub(crate) const GUARDS_ABOUT: &str = "a limit with breaker, adaptive limit, priority, load shedding, scaling and feature, over the limit alone";

pub(crate) fn measure_all_guards() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let limit = "name: each, key: ip, quota: 1000000/s burst 100000";
    let guards = "breaker: { failure-rate: 50% }, adaptive: { target: 1s, min: 1000, max: 10000 }, feature: search, \
        priority: { key: header x-priority, default: normal }, shed: { low: 99.8%, normal: 99.9% }, \
        scale: { high: 99%, low: 60% }";
    let alone = BenchServer::start_gateway(
        &backend,
        ClientProtocol::Http,
        &format!("headers: none\nrules: {{ {limit} }}"),
    )?;
    let policy = format!(
        "headers: none\nload: [memory]\nfeatures: {{ search: {{}} }}\nrules: {{ {limit}, {guards} }}"
    );
    compare_throughput(
        &BenchServer::start_gateway(&backend, ClientProtocol::Http, &policy)?,
        &alone,
        ExpectedStatus::Ok,
    )
}

pub(crate) const REDIS_ABOUT: &str = "three quotas in Redis, strict, all allowed, over the same in memory";

pub(crate) fn measure_redis_three() -> BenchResult<Measurement> {
    let (backend, redis) = (BenchServer::start_backend()?, BenchServer::start_redis()?);
    let rule = "rules: { name: each, key: ip, quotas: [1000000/s, 50000000/min, 2000000000/h] }";
    let memory =
        BenchServer::start_gateway(&backend, ClientProtocol::Http, &format!("headers: none\n{rule}"))?;
    let store = format!(
        "store: redis://{}\ndeadline: 20ms\nfailure-mode: closed\nheaders: none\n{rule}",
        redis.address
    );
    compare_throughput(
        &BenchServer::start_gateway(&backend, ClientProtocol::Http, &store)?,
        &memory,
        ExpectedStatus::MostlyOk,
    )
}

/// The zone of nginx and the directives that use it.
fn limit_req(rate: &str, options: &str) -> NginxSettings {
    NginxSettings {
        zone: format!("limit_req_zone $binary_remote_addr zone=each:10m rate={rate};"),
        directives: format!("limit_req zone=each {options}; limit_req_status 429;"),
        ..Default::default()
    }
}

/// The equivalent rule of the gateway, without rate limit headers, like nginx.
fn one_rule(quota: &str) -> String {
    format!("headers: none\nrules: {{ name: each, key: ip, quota: {quota} }}")
}

/// Rules for unused paths, and one for the requested path.
fn many_rules(count: usize) -> String {
    let rule = |number: usize| {
        let path = if number == count / 2 { "/".to_owned() } else { format!("/{number}/**") };
        format!(
            "\n  - {{ name: rule-{number}, match: {{ path: {path} }}, key: ip, quota: 1000000/s burst 100000 }}"
        )
    };
    format!("headers: none\nrules:{}", (0..count).map(rule).collect::<String>())
}
