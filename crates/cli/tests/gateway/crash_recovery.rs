//! A gateway that is killed while it promotes rules: the policy is whole, and the history is read.

use crate::common::{GatewayProcess, TEST_TIMEOUT};
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

/// What is waited for before the process is killed: something that happens within each promotion.
#[derive(Clone, Copy, Debug)]
enum KillPoint {
    /// This file of the folder comes to be.
    FileCreated(&'static str),
    /// It is another one than it was.
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
/// More, should nobody have been killed in the midst of anything by then.
const MAX_ROUNDS: usize = 200;

impl KillPoint {
    /// Waits for it, without rest: it is short.
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
            assert!(began.elapsed() < TEST_TIMEOUT, "{self:?} is never seen");
            thread::yield_now();
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "only for how long a story may take")]
fn now() -> Instant {
    Instant::now()
}

/// What a client was promised, one after the other, and what it wants next.
struct PromotionLog {
    confirmed: Vec<String>,
    requested: String,
}

impl PromotionLog {
    /// The number of the change that was promised last; none is number zero.
    fn last_id(&self) -> u64 {
        self.confirmed.len() as u64 - 1
    }
}

/// Gives the rule one mode after another, until nobody answers.
fn promote_until_killed(admin: &str) -> PromotionLog {
    let mut heard = PromotionLog { confirmed: vec!["shadow".to_owned()], requested: String::new() };
    for percent in (1..=99).cycle() {
        heard.requested = format!("enforce {percent}%");
        let Some(told) = post_mode(admin, &json!({ "mode": "enforce", "percent": percent, "confirm": true }))
        else {
            break;
        };
        heard.confirmed.push(heard.requested.clone());
        assert_eq!(told["change"]["id"], heard.last_id(), "{told}");
    }
    heard
}

/// A whole answer; nothing, where whoever was asked has ended.
fn post_mode(admin: &str, body: &Value) -> Option<Value> {
    let body = body.to_string();
    let asked = || -> io::Result<String> {
        let mut stream = TcpStream::connect(admin)?;
        write!(
            stream,
            "POST /api/v1/rules/watched/mode HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = asked().ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// What the command line says of a file.
fn run_tidegate(args: &[&str], file: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).args(["--json", "--policy", file.to_str().unwrap()]);
    let output = command.env_remove("TIDEGATE_ADMIN").output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The file is what was promised last, or what was asked for then; the history tells of it; and others go on from there.
fn check_files(file: &Path, heard: &PromotionLog, round: &str) {
    let (found, last) = (fs::read_to_string(file).unwrap(), &heard.confirmed[heard.confirmed.len() - 1]);
    let is_next = found == policy_text(&heard.requested);
    assert!(is_next || found == policy_text(last), "{round}: {found}");
    let history = run_tidegate(&["changes"], file);
    let of = |id: u64| {
        let change = history["changes"].as_array().unwrap().iter().find(|change| change["id"] == id);
        change.map(|change| format!("enforce {}%", change["to"]["percent"].as_f64().unwrap()))
    };
    if heard.last_id() > 0 {
        assert_eq!(of(heard.last_id()).as_ref(), Some(last), "{round}");
    }
    let (made, before) = match is_next {
        true => (heard.last_id() + 1, last),
        false => (heard.last_id(), &heard.confirmed[heard.confirmed.len() - 2]),
    };
    // What was noted and never made is no last change.
    assert!(of(made).is_some() && of(heard.last_id() + 2).is_none(), "{round}: {history}");
    assert_eq!(history["last"], made, "{round}");
    assert_eq!(run_tidegate(&["rollback", "--yes"], file)["change"]["undoes"], made, "{round}");
    assert_eq!(fs::read_to_string(file).unwrap(), policy_text(before), "{round}");
}

#[tokio::test]
async fn killed_writer_leaves_whole_policy_file_and_history() {
    let mut midst = 0;
    for (round, moment) in KILL_POINTS.into_iter().cycle().take(MAX_ROUNDS).enumerate() {
        if round >= ROUNDS && midst > 0 {
            return;
        }
        let gateway = GatewayProcess::start(POLICY).await;
        let admin = gateway.wait_for_line("admin").await;
        let client = thread::spawn(move || promote_until_killed(admin.strip_prefix("http://").unwrap()));
        let killing = tokio::task::spawn_blocking(move || {
            // The first of them are made in peace.
            for _ in 0..=round / KILL_POINTS.len() % 4 {
                KillPoint::FileChanged("policy.yaml").wait(gateway.directory.path());
            }
            moment.wait(gateway.directory.path());
            gateway.kill()
        });
        let folder = killing.await.unwrap();
        let left = [".policy.yaml.new", ".policy.yaml.changes.new"].map(|name| folder.path().join(name));
        midst += usize::from(left.iter().any(|file| file.exists()));
        let heard = client.join().unwrap();
        check_files(&folder.path().join("policy.yaml"), &heard, &format!("round {round}, {moment:?}"));
    }
    panic!("nobody was killed in the midst of anything");
}
