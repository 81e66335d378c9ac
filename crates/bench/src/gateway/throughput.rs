//! Requests per second: without rules, with a limit, with many rules, with quotas in Redis.

use crate::{Measured, Result};
use tidegate_bench::proxy::{Answers, Server, compare};

pub(crate) const PLAIN: &str = "requests/s of plain proxying, 64 keep-alive connections, over nginx";

pub(crate) fn plain() -> Result<Measured> {
    let backend = Server::backend()?;
    let nginx = Server::nginx_before(&backend, Default::default())?;
    compare(&Server::gateway_before(&backend, "")?, &nginx, Answers::Ok)
}

pub(crate) const ALLOWED: &str = "one limit per client IP, all allowed, over nginx with limit_req";

pub(crate) fn limit_allowed() -> Result<Measured> {
    let backend = Server::backend()?;
    let nginx = Server::nginx_before(&backend, limit_req("1000000r/s", "burst=100000 nodelay"))?;
    let gateway = Server::gateway_before(&backend, &one_rule("1000000/s burst 100000"))?;
    compare(&gateway, &nginx, Answers::Ok)
}

pub(crate) const REJECTED: &str = "one limit per client IP, most rejected, over nginx with limit_req";

pub(crate) fn limit_rejected() -> Result<Measured> {
    let backend = Server::backend()?;
    let nginx = Server::nginx_before(&backend, limit_req("1r/m", ""))?;
    let gateway = Server::gateway_before(&backend, &one_rule("1/min burst 1"))?;
    compare(&gateway, &nginx, Answers::Refusals)
}

pub(crate) const RULES: &str = "1,000 rules loaded, one matches, over 10 rules";

pub(crate) fn rules_1000() -> Result<Measured> {
    let backend = Server::backend()?;
    let few = Server::gateway_before(&backend, &many_rules(10))?;
    compare(&Server::gateway_before(&backend, &many_rules(1_000))?, &few, Answers::Ok)
}

pub(crate) const REDIS: &str = "three quotas in Redis, strict, all allowed, over the same in memory";

pub(crate) fn redis_three() -> Result<Measured> {
    let (backend, redis) = (Server::backend()?, Server::redis()?);
    let rule = "rules: { name: each, key: ip, quotas: [1000000/s, 50000000/min, 2000000000/h] }";
    let memory = Server::gateway_before(&backend, &format!("headers: none\n{rule}"))?;
    let store =
        format!("store: redis://{}\ndeadline: 20ms\non-outage: closed\nheaders: none\n{rule}", redis.address);
    compare(&Server::gateway_before(&backend, &store)?, &memory, Answers::MostlyOk)
}

/// What nginx says of its zone, and where it applies it.
fn limit_req(rate: &str, how: &str) -> (String, String) {
    (
        format!("limit_req_zone $binary_remote_addr zone=each:10m rate={rate};"),
        format!("limit_req zone=each {how}; limit_req_status 429;"),
    )
}

/// The same for the gateway. Like nginx, it tells nobody what is left.
fn one_rule(quota: &str) -> String {
    format!("headers: none\nrules: {{ name: each, key: ip, quota: {quota} }}")
}

/// Rules for paths that nobody asks for, and one for the path that everybody does.
fn many_rules(count: usize) -> String {
    let rule = |number: usize| {
        let path = if number == count / 2 { "/".to_owned() } else { format!("/{number}/**") };
        format!(
            "\n  - {{ name: rule-{number}, match: {{ path: {path} }}, key: ip, quota: 1000000/s burst 100000 }}"
        )
    };
    format!("headers: none\nrules:{}", (0..count).map(rule).collect::<String>())
}
