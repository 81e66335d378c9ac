//! Requests per second: without rules, with a limit, with many rules, with quotas in Redis.

use crate::{BenchResult, Measurement};
use tidegate_bench::proxy::{BenchServer, ExpectedStatus, compare_throughput};

pub(crate) const PLAIN_ABOUT: &str = "requests/s of plain proxying, 64 keep-alive connections, over nginx";

pub(crate) fn measure_plain() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, Default::default())?;
    compare_throughput(&BenchServer::start_gateway(&backend, "")?, &nginx, ExpectedStatus::Ok)
}

pub(crate) const ALLOWED_ABOUT: &str = "one limit per client IP, all allowed, over nginx with limit_req";

pub(crate) fn measure_limit_allowed() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, limit_req("1000000r/s", "burst=100000 nodelay"))?;
    let gateway = BenchServer::start_gateway(&backend, &one_rule("1000000/s burst 100000"))?;
    compare_throughput(&gateway, &nginx, ExpectedStatus::Ok)
}

pub(crate) const REJECTED_ABOUT: &str = "one limit per client IP, most rejected, over nginx with limit_req";

pub(crate) fn measure_limit_rejected() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, limit_req("1r/m", ""))?;
    let gateway = BenchServer::start_gateway(&backend, &one_rule("1/min burst 1"))?;
    compare_throughput(&gateway, &nginx, ExpectedStatus::TooManyRequests)
}

pub(crate) const RULES_ABOUT: &str = "1,000 rules loaded, one matches, over 10 rules";

pub(crate) fn measure_rules_1000() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let few = BenchServer::start_gateway(&backend, &many_rules(10))?;
    compare_throughput(&BenchServer::start_gateway(&backend, &many_rules(1_000))?, &few, ExpectedStatus::Ok)
}

pub(crate) const GUARDS_ABOUT: &str = "a limit with breaker, adaptive limit, priority, load shedding, scaling and feature, over the limit alone";

pub(crate) fn measure_all_guards() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let limit = "name: each, key: ip, quota: 1000000/s burst 100000";
    let guards = "breaker: { failure-rate: 50% }, adaptive: { target: 1s, min: 1000, max: 10000 }, feature: search, \
        priority: { key: header x-priority, default: normal }, shed: { low: 99.8%, normal: 99.9% }, \
        scale: { high: 99%, low: 60% }";
    let alone = BenchServer::start_gateway(&backend, &format!("headers: none\nrules: {{ {limit} }}"))?;
    let policy = format!(
        "headers: none\nload: [memory]\nfeatures: {{ search: {{}} }}\nrules: {{ {limit}, {guards} }}"
    );
    compare_throughput(&BenchServer::start_gateway(&backend, &policy)?, &alone, ExpectedStatus::Ok)
}

pub(crate) const REDIS_ABOUT: &str = "three quotas in Redis, strict, all allowed, over the same in memory";

pub(crate) fn measure_redis_three() -> BenchResult<Measurement> {
    let (backend, redis) = (BenchServer::start_backend()?, BenchServer::start_redis()?);
    let rule = "rules: { name: each, key: ip, quotas: [1000000/s, 50000000/min, 2000000000/h] }";
    let memory = BenchServer::start_gateway(&backend, &format!("headers: none\n{rule}"))?;
    let store = format!(
        "store: redis://{}\ndeadline: 20ms\nfailure-mode: closed\nheaders: none\n{rule}",
        redis.address
    );
    compare_throughput(&BenchServer::start_gateway(&backend, &store)?, &memory, ExpectedStatus::MostlyOk)
}

/// The zone of nginx and the directives that use it.
fn limit_req(rate: &str, options: &str) -> (String, String) {
    (
        format!("limit_req_zone $binary_remote_addr zone=each:10m rate={rate};"),
        format!("limit_req zone=each {options}; limit_req_status 429;"),
    )
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
