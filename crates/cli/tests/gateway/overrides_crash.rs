//! A gateway that is killed while operators change overrides under load: every confirmed change is there, and none is half done.

use crate::common::{BackgroundLoad, GatewayProcess, TEST_TIMEOUT};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    sync::Arc,
    thread,
    time::Instant,
};
use tempfile::TempDir;
use tidegate_testkit::servers::RedisServer;

const POLICY: &str = "\
listen: 127.0.0.1:0
admin: 127.0.0.1:0
routes: { respond: { status: 200 } }
rules:
  - { name: api, key: query user, quota: 1000000/min }
";

const WRITERS: usize = 3;
const KEYS: usize = 20;
const ROUNDS: u64 = 8;
/// The file is rewritten after about a thousand changes.
const MIN_REWRITES: usize = 1;
const MAX_ROUNDS: u64 = 60;

/// What a key has: its quota; `None` without an override.
type Setting = Option<String>;

/// The settings of a key that the gateway may have after a crash: the last confirmed one, and those that were requested since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeyHistory {
    confirmed: Setting,
    requested: Vec<Setting>,
}

type Histories = BTreeMap<String, KeyHistory>;

/// Returns the status and the response; `None` if the gateway was killed.
fn send(admin: &str, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let exchange = || -> io::Result<String> {
        let mut stream = TcpStream::connect(admin)?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    let response = exchange().ok()?;
    let status = response.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(response.split_once("\r\n\r\n")?.1).ok()?))
}

/// Sets and removes overrides of its own keys, until the gateway does not respond.
fn change_until_killed(admin: &str, writer: usize, mut histories: Histories) -> Histories {
    for number in 0.. {
        let key = format!("writer-{writer}-{}", number % KEYS);
        let history = histories.entry(key.clone()).or_default();
        let id = history.confirmed.as_ref().filter(|_| number % 7 == 0).and_then(|_| {
            let found = send(admin, "GET", &format!("/api/v1/overrides?rule=api&key={key}"), "")?.1;
            found["overrides"][0]["id"].as_str().map(str::to_owned)
        });
        let (next, sent) = match id {
            Some(id) => (None, send(admin, "DELETE", &format!("/api/v1/overrides/{id}"), "")),
            None => {
                let quota = format!("{}/min", 2_000_000 + number % 20);
                let body = json!({ "rule": "api", "key": key, "quota": quota, "seconds": 3_600 }).to_string();
                (Some(quota), send(admin, "PUT", "/api/v1/overrides", &body))
            }
        };
        history.requested.push(next.clone());
        match sent {
            None => break,
            // A store that did not respond in time may have made the change.
            Some((503, _)) => {}
            Some((status, reply)) => {
                assert_eq!(status, 200, "{reply}");
                *history = KeyHistory { confirmed: next, requested: Vec::new() };
            }
        }
    }
    histories
}

/// Compares the overrides of a restarted gateway, and continues from them.
fn check_overrides(admin: &str, histories: &Histories) -> Result<Histories, String> {
    let (_, listed) = send(admin, "GET", "/api/v1/overrides?limit=1000", "").unwrap();
    let listed: BTreeMap<&str, &str> = listed["overrides"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["key"].as_str().unwrap(), it["quota"].as_str().unwrap()))
        .collect();
    if let Some(unknown) = listed.keys().find(|key| !histories.contains_key(**key)) {
        return Err(format!("unknown key {unknown}"));
    }
    let continued = histories.iter().map(|(key, history)| {
        let found = listed.get(key.as_str()).map(|quota| (*quota).to_owned());
        match found == history.confirmed || history.requested.contains(&found) {
            true => Ok((key.clone(), KeyHistory { confirmed: found, requested: Vec::new() })),
            false => Err(format!("{key} has {found:?} after {history:?}")),
        }
    });
    continued.collect()
}

/// Lets operators change overrides, and kills the gateway when this is true.
async fn kill_during_changes(
    gateway: GatewayProcess,
    admin: String,
    histories: Histories,
    is_due: impl Fn(&Path) -> bool + Send + 'static,
) -> (TempDir, Histories) {
    let load = BackgroundLoad::start(gateway.address, "/?user=writer-0-1", 1);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let prefix = format!("writer-{writer}-");
            let own = histories.iter().filter(|(key, _)| key.starts_with(&prefix));
            let own = own.map(|(key, history)| (key.clone(), history.clone())).collect();
            let admin = admin.clone();
            thread::spawn(move || change_until_killed(&admin, writer, own))
        })
        .collect();
    let killing = tokio::task::spawn_blocking(move || {
        let began = now();
        while !is_due(gateway.directory.path()) || load.sent_count() == 0 {
            assert!(began.elapsed() < TEST_TIMEOUT, "no changes");
            thread::yield_now();
        }
        gateway.kill()
    });
    let folder = killing.await.unwrap();
    (folder, writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect())
}

#[allow(clippy::disallowed_methods, reason = "only for the timeout of the test")]
fn now() -> Instant {
    Instant::now()
}

async fn start(folder: TempDir, policy: &str) -> (GatewayProcess, String) {
    let gateway = GatewayProcess::start_in(folder, policy).await;
    let admin = gateway.wait_for_line("admin").await;
    let admin = admin.strip_prefix("http://").unwrap().to_owned();
    (gateway, admin)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_gateway_has_every_confirmed_override() {
    let policy = format!("overrides: {{ file: overrides.jsonl }}\n{POLICY}");
    let mut folder = TempDir::new().unwrap();
    let (mut histories, mut rewrites) = (Histories::new(), 0);
    for round in 0..MAX_ROUNDS {
        if round >= ROUNDS && rewrites >= MIN_REWRITES {
            return;
        }
        let (gateway, admin) = start(folder, &policy).await;
        histories = check_overrides(&admin, &histories).unwrap_or_else(|error| panic!("{round}: {error}"));
        let size = |folder: &Path| fs::metadata(folder.join("overrides.jsonl")).map_or(0, |file| file.len());
        let end = size(gateway.directory.path()) + 3_000 + 60_000 * (round % 4);
        let is_due = move |folder: &Path| size(folder) >= end || folder.join(".overrides.jsonl.new").exists();
        (folder, histories) = kill_during_changes(gateway, admin, histories, is_due).await;
        let file = fs::read_to_string(folder.path().join("overrides.jsonl")).unwrap();
        let first = file.lines().next().and_then(|line| serde_json::from_str::<Value>(line).ok()).unwrap();
        rewrites = rewrites.max(usize::from(first["change"] != 1));
    }
    panic!("the file was not rewritten");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_gateway_finds_every_confirmed_override_in_the_store() {
    let redis = Arc::new(RedisServer::start().unwrap());
    let policy = format!("store: {}\noverrides: store\n{POLICY}", redis.url());
    let (mut folder, mut histories) = (TempDir::new().unwrap(), Histories::new());
    for round in 0..=ROUNDS {
        let (gateway, admin) = start(folder, &policy).await;
        // The gateway serves without its store, and fetches the overrides when it is connected.
        let began = now();
        histories = loop {
            match check_overrides(&admin, &histories) {
                Ok(continued) => break continued,
                Err(error) => assert!(began.elapsed() < TEST_TIMEOUT, "{round}: {error}"),
            }
        };
        if round == ROUNDS {
            return;
        }
        let last_change = {
            let redis = redis.clone();
            move || -> u64 {
                let last = redis.command(&["HGET", "tidegate:{overrides}:counters", "last"]).unwrap();
                last.text().map_or(0, |number| number.parse().unwrap())
            }
        };
        let end = last_change() + 5 + 40 * (round % 4);
        let is_due = move |_: &Path| last_change() >= end;
        (folder, histories) = kill_during_changes(gateway, admin, histories, is_due).await;
    }
}
