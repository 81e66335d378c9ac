//! The Grafana board, evaluated by a Prometheus that scrapes two gateways.

use crate::common::{GatewayProcess, TEST_TIMEOUT, TestUpstream, get, run_curl};
use serde_json::Value;
use std::collections::BTreeSet;
use tidegate_testkit::servers::{AppServer, RedisServer, skip_without};
use tokio::time::timeout;

/// A policy with everything that has metrics.
fn policy(server: &TestUpstream, store: &str) -> String {
    format!(
        "listen: 127.0.0.1:0
admin: 127.0.0.1:0
observe: {{ denials: 100 }}
stores: {{ shared: '{store}' }}
traces: http://127.0.0.1:9
load: {{ signals: [memory] }}
features: {{ similar: manual }}
upstreams: {{ app: {{ servers: 'http://{}', breaker: {{ failure-rate: 50% }} }} }}
routes: app
rules:
  - {{ name: everybody, key: ip, quota: 100000/s, priority: {{ key: header x-priority, default: low }}, shed: {{ low: 99% }} }}
  - {{ name: login, match: {{ path: /login }}, quota: 2/h }}
  - {{ name: watched, mode: shadow, match: {{ path: /watched }}, quota: 1/h }}
  - {{ name: queued, match: {{ path: /queued }}, quota: 100/s burst 1, wait: 5s, queue: 10 }}
  - {{ name: guarded, match: {{ path: /guarded }}, breaker: {{ failure-rate: 50% }}, adaptive: {{ target: 1s }} }}
  - {{ name: far, match: {{ path: /far }}, store: shared, quota: 100000/s }}
  - {{ name: similar, match: {{ path: /similar }}, feature: similar }}
  - {{ name: articles, match: {{ path: /articles }}, quota: 1/h, on-limit: {{ fallback: {{ cache: 10min }} }} }}
",
        server.address
    )
}

const PATHS: [&str; 8] = ["/", "/login", "/watched", "/queued", "/guarded", "/far", "/similar", "/articles"];

/// Panels that are empty without a fault: no expression of the policy fails.
const EMPTY_PANELS: [&str; 1] = ["Failed expressions"];

/// The panels of the board, each with an expression whose variables are replaced.
fn expressions() -> Vec<(String, String)> {
    let board: Value = serde_json::from_str(include_str!("../../../../docs/grafana.json")).unwrap();
    let mut all = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "30s");
            let expression = expression.replace("$instance", ".*").replace("$rule", ".*");
            assert!(!expression.contains('$'), "unknown variable: {expression}");
            all.push((panel["title"].as_str().unwrap().to_owned(), expression));
        }
    }
    all
}

/// Evaluates an expression. Returns what is missing in its result.
async fn evaluate(server: &AppServer, expression: &str, instances: &BTreeSet<String>) -> Result<(), String> {
    let url = format!("http://{}/api/v1/query", server.address());
    let (code, text) = run_curl(&["--get", "--data-urlencode", &format!("query={expression}"), &url]).await;
    let result: Value =
        serde_json::from_str(&text).map_err(|error| format!("exit code {code}, {error}: {text}"))?;
    assert_eq!(result["status"], "success", "{expression}: {text}");
    let series = result["data"]["result"].as_array().unwrap();
    let is_number = |one: &&Value| one["value"][1].as_str().is_some_and(|value| value != "NaN");
    let known: Vec<&Value> = series.iter().filter(is_number).collect();
    if known.is_empty() {
        return Err(format!("no data: {text}"));
    }
    let found: BTreeSet<String> =
        known.iter().filter_map(|one| one["metric"]["instance"].as_str().map(str::to_owned)).collect();
    if !found.is_empty() && found != *instances {
        return Err(format!("only instances {found:?}"));
    }
    Ok(())
}

async fn send_requests(gateways: &[GatewayProcess]) {
    for gateway in gateways {
        for path in PATHS {
            for _ in 0..3 {
                get(gateway.address, path).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grafana_board_has_data_of_two_gateways() {
    let server = TestUpstream::start_ok().await;
    let store = RedisServer::start().unwrap();
    let mut gateways = Vec::new();
    let mut instances = BTreeSet::new();
    for _ in 0..2 {
        let gateway = GatewayProcess::start(&policy(&server, &store.url())).await;
        let admin = gateway.wait_for_line("admin").await;
        instances.insert(admin.trim_start_matches("http://").trim_end_matches('/').to_owned());
        gateways.push(gateway);
    }
    let targets: Vec<&str> = instances.iter().map(String::as_str).collect();
    let config = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs: [{{ job_name: tidegate, static_configs: [{{ targets: {targets:?} }}] }}]\n"
    );
    let Some(prometheus) = AppServer::start_prometheus(&config).unwrap() else {
        return skip_without("prometheus");
    };

    let mut pending = expressions();
    assert!(pending.len() >= 50, "{}", pending.len());
    let mut problems = Vec::new();
    let evaluated = timeout(TEST_TIMEOUT, async {
        while !pending.is_empty() {
            send_requests(&gateways).await;
            problems.clear();
            let mut next = Vec::new();
            for (panel, expression) in std::mem::take(&mut pending) {
                match evaluate(&prometheus, &expression, &instances).await {
                    Err(_) if EMPTY_PANELS.contains(&panel.as_str()) => {}
                    Err(problem) => {
                        problems.push(format!("{panel}: {expression}: {problem}"));
                        next.push((panel, expression));
                    }
                    Ok(()) => {}
                }
            }
            pending = next;
        }
    })
    .await;
    assert!(evaluated.is_ok(), "{}\n{}", problems.join("\n"), prometheus.log());
}
