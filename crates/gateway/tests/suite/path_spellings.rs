//! Property test with random spellings of requests and real servers: a server serves what the rules have checked.
//!
//! Rules deny `/secret/**`, a host, and a header value. No spelling may reach a server that would serve one of these, and the
//! forwarded path is the normalized one.

use crate::harness::{TEST_TIMEOUT, open_gateway};
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};
use tempfile::TempDir;
use tidegate_gateway::PolicySource;
use tidegate_policy::{matching::normalize_path, model::EscapedSlashes};
use tidegate_rule::Rules;
use tidegate_testkit::servers::{AppServer, NginxServer, skip_without};
use tokio::{runtime::Runtime, sync::oneshot};

/// Responds with the request target, and with Node's interpretations of it.
const NODE_SERVER: &str = r#"
const path = require('node:path');
const decode = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
require('node:http').createServer((request, response) => {
  const raw = request.url.split('?')[0];
  const url = decode(new URL(request.url, 'http://base').pathname);
  response.end(JSON.stringify({
    raw, resolved: [raw, url, path.posix.normalize(url), path.posix.normalize(decode(raw))],
    host: request.headers.host ?? '', user: [request.headers['x-user'] ?? ''],
  }));
}).listen(Number(process.argv[2]), '127.0.0.1');
"#;

/// The same for WSGI.
const FLASK_SERVER: &str = r#"
import posixpath
from flask import Flask, jsonify, request
app = Flask(__name__, static_folder=None)
@app.before_request
def show():
    path = request.environ["PATH_INFO"]
    return jsonify(raw=request.environ["REQUEST_URI"].split("?")[0],
                   resolved=[path, posixpath.normpath(path), request.path],
                   host=request.host, user=request.environ.get("HTTP_X_USER", "").split(","))
"#;

/// The same for nginx.
const NGINX_CONFIG: &str = r#"
server { listen 127.0.0.1:PORT; merge_slashes on; location / { return 200 "nginx\n$request_uri\n$host\n$http_x_user\n$uri\n"; } }
"#;

const DENY_RULES: &str = "
rules:
  - { name: path, match: { path: /secret/** }, deny: all }
  - { name: host, match: { host: secret.example }, deny: all }
  - { name: user, match: { header: { x-user: mallory } }, deny: all }
";

/// A request with a random spelling.
#[derive(Clone, Debug)]
struct SpelledRequest {
    path: String,
    host: String,
    headers: Vec<(&'static str, &'static str)>,
}

fn any_spelling() -> impl Strategy<Value = SpelledRequest> {
    let piece = select(vec![
        "secret",
        "s%65cret",
        "%73ecret",
        "SECRET",
        "a",
        "b.c",
        "..",
        ".",
        "...",
        "%2e%2e",
        ".%2E",
        "%2e",
        "..;",
        "..;v=1",
        "secret;v=1",
        "%2f",
        "%2F..",
        "..%2f",
        "%5c",
        "\\",
        "..\\",
        "..%5c",
        "%00",
        "%zz",
        "%25",
        "%252e%252e",
        ";",
        ";x",
        "",
        "%20",
        "%3b",
        "%3f",
        "*",
        "@",
        ":",
        "+",
        "~",
        "%7e",
        "é",
        "%c3%a9",
    ]);
    let slash = select(vec!["/", "/", "/", "//", "", "%2f"]);
    let path = proptest::collection::vec((slash, piece), 1..6).prop_map(|parts| {
        let path: String = parts.iter().flat_map(|(slash, piece)| [*slash, *piece]).collect();
        if path.starts_with('/') { path } else { format!("/{path}") }
    });
    let host = select(vec![
        "app.example",
        "secret.example",
        "SECRET.example",
        "secret.example.",
        "secret.example:80",
        "Secret.Example.:8080",
        "notsecret.example",
        "",
    ]);
    let header = select(vec![
        ("x-user", "alice"),
        ("X-User", "mallory"),
        ("x_user", "mallory"),
        ("X_USER", "mallory"),
        ("x-user", " mallory "),
        ("x-user", "mallory\t"),
        ("x-user", "MALLORY"),
        ("x-users", "mallory"),
        ("connection", "x-user"),
        ("connection", "x-user, x-users, host"),
    ]);
    (path, host, proptest::collection::vec(header, 0..3)).prop_map(|(path, host, headers)| SpelledRequest {
        path,
        host: host.to_owned(),
        headers,
    })
}

impl SpelledRequest {
    /// Sends the request; returns the status and body of the response.
    fn send(&self, address: SocketAddr) -> (u16, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut request =
            format!("GET {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.path, self.host);
        for (name, value) in &self.headers {
            request += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut response = Vec::new();
        // A reset after the response is fine.
        let _ = stream.read_to_end(&mut response);
        let response = String::from_utf8_lossy(&response).into_owned();
        let status = response.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }
}

/// Returns a denied resource that the server served, if any.
fn find_bypass(request: &SpelledRequest, body: &str, slashes: EscapedSlashes) -> Option<String> {
    let served: Value = match body.lines().collect::<Vec<_>>()[..] {
        ["nginx", raw, host, user, path] => {
            json!({ "raw": raw.split('?').next(), "resolved": [path], "host": host, "user": [user] })
        }
        _ => match serde_json::from_str(body) {
            Ok(served) => served,
            Err(error) => return Some(format!("no JSON ({error}): {body}")),
        },
    };
    let texts = |name: &str| -> Vec<String> {
        let all = served[name].as_array().cloned().unwrap_or_default();
        all.iter().filter_map(Value::as_str).map(|text| text.trim().to_owned()).collect()
    };
    let is_secret = |path: &String| path == "/secret" || path.starts_with("/secret/");
    if let Some(path) = texts("resolved").iter().find(|path| is_secret(path)) {
        return Some(format!("served {path}"));
    }
    if texts("user").iter().any(|user| user == "mallory") {
        return Some("served mallory".to_owned());
    }
    let host = served["host"].as_str().unwrap_or_default().to_ascii_lowercase();
    let host = host.rsplit_once(':').map_or(&*host, |(host, _)| host).trim_end_matches('.');
    if host == "secret.example" {
        return Some("served the host".to_owned());
    }
    let decided =
        normalize_path(&request.path, slashes).map(std::borrow::Cow::into_owned).unwrap_or_default();
    let raw = served["raw"].as_str().unwrap_or_default();
    let escaped: String = raw.chars().map(|sign| if sign.is_ascii() { sign } else { '?' }).collect();
    let expected: String = decided.chars().map(|sign| if sign.is_ascii() { sign } else { '?' }).collect();
    // Node and WSGI decode bytes beyond ASCII as Latin-1, so only ASCII is compared.
    let plain =
        |text: &str| text.split('?').map(str::to_owned).filter(|part| !part.is_empty()).collect::<Vec<_>>();
    (plain(&escaped) != plain(&expected)).then(|| format!("got {raw}, decided on {decided}"))
}

/// Starts a gateway in front of this server, with these rules.
fn start_gateway(
    runtime: &Runtime,
    server: SocketAddr,
    mode: &str,
) -> (SocketAddr, oneshot::Sender<()>, TempDir) {
    let folder = TempDir::new().unwrap();
    let policy = format!(
        "listen: 127.0.0.1:0\nconnections: {{ escaped-slashes: {mode} }}\nupstreams: {{ app: http://{server} }}\nroutes: app\n{DENY_RULES}"
    );
    fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    let source = PolicySource::file(folder.path().join("policy.yaml"));
    let _guard = runtime.enter();
    let gateway = open_gateway(source, Rules::new());
    let address = gateway.addresses()[0];
    let (stop, stopped) = oneshot::channel::<()>();
    runtime.spawn(gateway.run(async {
        let _ = stopped.await;
    }));
    (address, stop, folder)
}

fn assert_no_bypass(name: &str, server: SocketAddr) {
    let runtime = Runtime::new().unwrap();
    for (mode, slashes) in [("reject", EscapedSlashes::Reject), ("unescape", EscapedSlashes::Unescape)] {
        let (address, _stop, _folder) = start_gateway(&runtime, server, mode);
        let served = std::cell::Cell::new(0_u32);
        TestRunner::new(Config { failure_persistence: None, ..Config::default() })
            .run(&any_spelling(), |spelling| {
                let (status, body) = spelling.send(address);
                match status {
                    200 => {
                        served.set(served.get() + 1);
                        let broken = find_bypass(&spelling, &body, slashes);
                        prop_assert!(broken.is_none(), "{name}, {mode}: {spelling:?} {broken:?}");
                    }
                    400 | 403 => {}
                    other => prop_assert!(false, "{name}, {mode}: {spelling:?} got {other} {body}"),
                }
                Ok(())
            })
            .unwrap();
        println!("{name}, {mode}: {} served", served.get());
        assert!(served.get() > 0, "{name} served nothing");
    }
}

#[test]
fn nginx_serves_no_denied_request() {
    let server = NginxServer::start(NGINX_CONFIG).unwrap();
    assert_no_bypass("nginx", server.address());
}

#[test]
fn node_serves_no_denied_request() {
    match AppServer::start_node(NODE_SERVER).unwrap() {
        Some(server) => assert_no_bypass("Node", server.address()),
        None => skip_without("node"),
    }
}

#[test]
fn flask_serves_no_denied_request() {
    match AppServer::start_flask(FLASK_SERVER).unwrap() {
        Some(server) => assert_no_bypass("Flask", server.address()),
        None => skip_without("flask"),
    }
}
