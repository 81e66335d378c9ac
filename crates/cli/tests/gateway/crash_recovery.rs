//! A gateway that is killed while it changes modes or numbers: the policy file and the history stay intact.

use crate::common::{BackgroundLoad, GatewayProcess, TEST_TIMEOUT};
use serde_json::{Value, json};
use std::{
    fs, io,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    thread,
    time::Instant,
};

const POLICY: &str = "\
# Ours.
listen: 127.0.0.1:0
admin: 127.0.0.1:0
upstreams: { app: http://127.0.0.1:9 }
routes: app
rules:
  - { name: watched, key: ip, quota: 5/min, mode: shadow }   # for now
";

fn policy_text(mode: &str) -> String {
    POLICY.replace("mode: shadow", &format!("mode: {mode}"))
}

/// The event after which the process is killed; it occurs within each promotion.
#[derive(Clone, Copy, Debug)]
enum KillPoint {
    /// This file is created.
    FileCreated(&'static str),
    /// This file changes.
    FileChanged(&'static str),
}

const KILL_POINTS: [KillPoint; 5] = [
    KillPoint::FileCreated(".policy.yaml.new"),
    KillPoint::FileCreated(".policy.yaml.changes.new"),
    KillPoint::FileChanged("policy.yaml.changes"),
    KillPoint::FileChanged("policy.yaml"),
    KillPoint::FileChanged(".policy.yaml.new"),
];
const ROUNDS: usize = 20;
/// The maximum, if no process was killed during a write by then.
const MAX_ROUNDS: usize = 200;

impl KillPoint {
    /// Waits for the event in a busy loop, since it is short.
    fn wait(self, folder: &Path) {
        let of = |name| fs::metadata(folder.join(name)).and_then(|it| it.modified()).ok();
        let start = match self {
            Self::FileCreated(name) | Self::FileChanged(name) => of(name),
        };
        let began = now();
        while match self {
            Self::FileCreated(name) => of(name).is_none(),
            Self::FileChanged(name) => of(name) == start,
        } {
            assert!(began.elapsed() < TEST_TIMEOUT, "{self:?} does not occur");
            thread::yield_now();
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "only for the timeout of the test")]
fn now() -> Instant {
    Instant::now()
}

/// The modes that the gateway confirmed, in order, and the last requested mode.
struct PromotionLog {
    confirmed: Vec<String>,
    requested: String,
}

impl PromotionLog {
    /// The id of the last confirmed change, or zero.
    fn last_id(&self) -> u64 {
        self.confirmed.len() as u64 - 1
    }
}

/// Changes the mode of the rule repeatedly, until the gateway does not respond.
fn promote_until_killed(admin: &str) -> PromotionLog {
    let mut log = PromotionLog { confirmed: vec!["shadow".to_owned()], requested: String::new() };
    for percent in (1..=99).cycle() {
        log.requested = format!("enforce {percent}%");
        let Some(reply) =
            post(admin, "mode", &json!({ "mode": "enforce", "percent": percent, "confirm": true }))
        else {
            break;
        };
        log.confirmed.push(log.requested.clone());
        assert_eq!(reply["change"]["id"], log.last_id(), "{reply}");
    }
    log
}

/// Returns the response; `None` if the gateway was killed.
fn post(admin: &str, operation: &str, body: &Value) -> Option<Value> {
    let body = body.to_string();
    let exchange = || -> io::Result<String> {
        let mut stream = TcpStream::connect(admin)?;
        write!(
            stream,
            "POST /api/v1/rules/watched/{operation} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    let response = exchange().ok()?;
    serde_json::from_str(response.split_once("\r\n\r\n")?.1).ok()
}

/// Runs a command on a policy file. Returns its JSON output.
fn run_tidegate(args: &[&str], file: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).args(["--json", "--policy", file.to_str().unwrap()]);
    let output = command.env_remove("TIDEGATE_ADMIN").output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that the file contains the last confirmed or the requested mode, that the history matches, and that a rollback works.
fn check_files(file: &Path, log: &PromotionLog, round: &str) {
    let (found, last) = (fs::read_to_string(file).unwrap(), &log.confirmed[log.confirmed.len() - 1]);
    let is_next = found == policy_text(&log.requested);
    assert!(is_next || found == policy_text(last), "{round}: {found}");
    let history = run_tidegate(&["changes"], file);
    let of = |id: u64| {
        let change = history["changes"].as_array().unwrap().iter().find(|change| change["id"] == id);
        change.map(|change| change["to"].as_str().unwrap().to_owned())
    };
    if log.last_id() > 0 {
        assert_eq!(of(log.last_id()).as_ref(), Some(last), "{round}");
    }
    let (applied, before) = match is_next {
        true => (log.last_id() + 1, last),
        false => (log.last_id(), &log.confirmed[log.confirmed.len() - 2]),
    };
    // A change that was recorded but not applied is not the last change.
    assert!(of(applied).is_some() && of(log.last_id() + 2).is_none(), "{round}: {history}");
    assert_eq!(history["last"], applied, "{round}");
    assert_eq!(run_tidegate(&["rollback", "--yes"], file)["change"]["reverts"], applied, "{round}");
    assert_eq!(fs::read_to_string(file).unwrap(), policy_text(before), "{round}");
}

#[tokio::test]
async fn killed_writer_leaves_whole_policy_file_and_history() {
    let mut interrupted = 0;
    for (round, kill_point) in KILL_POINTS.into_iter().cycle().take(MAX_ROUNDS).enumerate() {
        if round >= ROUNDS && interrupted > 0 {
            return;
        }
        let gateway = GatewayProcess::start(POLICY).await;
        let admin = gateway.wait_for_line("admin").await;
        let client = thread::spawn(move || promote_until_killed(admin.strip_prefix("http://").unwrap()));
        let killing = tokio::task::spawn_blocking(move || {
            // The first changes complete.
            for _ in 0..=round / KILL_POINTS.len() % 4 {
                KillPoint::FileChanged("policy.yaml").wait(gateway.directory.path());
            }
            kill_point.wait(gateway.directory.path());
            gateway.kill()
        });
        let folder = killing.await.unwrap();
        let left = [".policy.yaml.new", ".policy.yaml.changes.new"].map(|name| folder.path().join(name));
        interrupted += usize::from(left.iter().any(|file| file.exists()));
        let log = client.join().unwrap();
        check_files(&folder.path().join("policy.yaml"), &log, &format!("round {round}, {kill_point:?}"));
    }
    panic!("no process was killed during a write");
}

/// A rule with numbers in a map and by tier, in a file that the policy includes. `{gold}` and `{max}` are its numbers.
const INCLUDED_RULES: [(&str, &str); 3] = [
    (
        "rules.yaml",
        "rules:\n  - name: watched   # for now\n    key: ip\n    tiers: { key: header x-plan, quotas: { gold: {gold}/min }, default: 9/min }\n\
         \x20   wait: 1ms\n    queue: { max: {max} }   # short\n",
    ),
    (
        "rules.toml",
        "[[rules]]\nname = 'watched' # for now\nkey = 'ip'\nwait = '1ms'\n[rules.tiers]\nkey = 'header x-plan'\ndefault = '9/min'\n\
         quotas = { gold = \"{gold}/min\" }\n[rules.queue]\nmax = {max} # short\n",
    ),
    (
        "rules.json",
        "{\"rules\": [{ \"name\": \"watched\", \"key\": \"ip\", \"wait\": \"1ms\", \"queue\": {\"max\": {max}},\n\
         \"tiers\": {\"key\": \"header x-plan\", \"quotas\": {\"gold\": \"{gold}/min\"}, \"default\": \"9/min\"}}]}\n",
    ),
];

/// The numbers that one operator has set: the confirmed ones with the ids of their changes, and the last requested one.
struct NumberLog {
    key: &'static str,
    confirmed: Vec<(u64, String)>,
    requested: String,
}

/// Sets a number repeatedly, until the gateway does not respond. Each change states the number before it.
fn set_until_killed(admin: &str, key: &'static str, unit: &str) -> NumberLog {
    let mut log = NumberLog { key, confirmed: vec![(0, format!("1{unit}"))], requested: String::new() };
    for number in 2_u64.. {
        log.requested = format!("{number}{unit}");
        let (_, from) = &log.confirmed[log.confirmed.len() - 1];
        let Some(reply) =
            post(admin, "settings", &json!({ "key": key, "value": log.requested, "from": from }))
        else {
            break;
        };
        assert_eq!(reply["changed"], true, "{reply}");
        log.confirmed.push((reply["change"]["id"].as_u64().unwrap(), log.requested.clone()));
    }
    log
}

/// Checks that each number is the last confirmed or the requested one, that nothing else changed, that the history has each confirmed
/// change, and that a rollback works.
fn check_numbers(file: &Path, (name, template): (&str, &str), logs: &[NumberLog], round: &str) {
    let included = file.with_file_name(name);
    let number = |key: &str| {
        let settings = run_tidegate(&["set", "watched"], file);
        let settings = settings["settings"].as_array().unwrap().clone();
        let value = settings.iter().find(|value| value["key"] == key).unwrap()["value"].clone();
        value.as_str().unwrap().to_owned()
    };
    let text = |gold: &str, max: &str| {
        template.replace("{gold}", gold.strip_suffix("/min").unwrap()).replace("{max}", max)
    };
    let found = logs.iter().map(|log| number(log.key)).collect::<Vec<_>>();
    assert_eq!(fs::read_to_string(&included).unwrap(), text(&found[0], &found[1]), "{round}");
    let history = run_tidegate(&["changes"], file);
    let changes = history["changes"].as_array().unwrap();
    let oldest = changes.last().map_or(0, |change| change["id"].as_u64().unwrap());
    for (log, found) in logs.iter().zip(&found) {
        let (_, last) = &log.confirmed[log.confirmed.len() - 1];
        assert!(found == last || *found == log.requested, "{round}: {} is {found}, not {last}", log.key);
        for (id, value) in log.confirmed.iter().filter(|(id, _)| *id >= oldest && *id > 0) {
            let is_recorded =
                |change: &Value| change["id"] == *id && change["key"] == log.key && change["to"] == **value;
            assert!(changes.iter().any(is_recorded), "{round}: change {id} is lost\n{history}");
        }
    }
    let Some(last) = history["last"].as_u64() else { return assert_eq!(oldest, 0, "{round}: {history}") };
    let last = changes.iter().find(|change| change["id"] == last).unwrap();
    let rollback = run_tidegate(&["rollback", "--yes"], file);
    assert_eq!(rollback["change"]["reverts"], last["id"], "{round}");
    assert_eq!(number(last["key"].as_str().unwrap()), last["from"].as_str().unwrap(), "{round}");
}

#[tokio::test]
async fn numbers_survive_a_kill_while_two_operators_set_them_under_load() {
    let mut interrupted = 0;
    for round in 0..MAX_ROUNDS {
        if round >= ROUNDS && interrupted > 0 {
            return;
        }
        let (name, template) = INCLUDED_RULES[round % INCLUDED_RULES.len()];
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), template.replace("{gold}", "1").replace("{max}", "1"))
            .unwrap();
        let pending = ["yaml", "toml", "json"].map(|format| format!(".rules.{format}.new"));
        let policy = format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nroutes: {{ respond: {{ status: 200 }} }}\ninclude: {name}\n"
        );
        let gateway = GatewayProcess::start_in(directory, &policy).await;
        let load = BackgroundLoad::start(gateway.address, "/", 2);
        let admin = gateway.wait_for_line("admin").await;
        let admin = admin.strip_prefix("http://").unwrap().to_owned();
        let operator = |key, unit| {
            let admin = admin.clone();
            thread::spawn(move || set_until_killed(&admin, key, unit))
        };
        let operators = [operator("tiers.quotas.gold", "/min"), operator("queue.max", "")];
        let kill_point = match round % 4 {
            0 => KillPoint::FileChanged(name),
            1 => KillPoint::FileCreated(".policy.yaml.changes.new"),
            2 => KillPoint::FileChanged("policy.yaml.changes"),
            _ => KillPoint::FileCreated(pending[round % INCLUDED_RULES.len()].clone().leak()),
        };
        let killing = tokio::task::spawn_blocking(move || {
            // The first changes complete.
            for _ in 0..=round % 5 {
                KillPoint::FileChanged(name).wait(gateway.directory.path());
            }
            kill_point.wait(gateway.directory.path());
            gateway.kill()
        });
        let folder = killing.await.unwrap();
        let left = pending.iter().map(String::as_str).chain([".policy.yaml.changes.new"]);
        interrupted += usize::from(left.map(|name| folder.path().join(name)).any(|file| file.exists()));
        let logs = operators.map(|operator| operator.join().unwrap());
        drop(load);
        check_numbers(
            &folder.path().join("policy.yaml"),
            (name, template),
            &logs,
            &format!("round {round}, {kill_point:?}"),
        );
    }
    panic!("no process was killed during a write");
}
