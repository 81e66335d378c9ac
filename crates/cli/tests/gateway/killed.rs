//! A gateway that is killed while it promotes rules: the policy is whole, and the history is read.

use crate::stage::{Gateway, LONG};
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

fn text(mode: &str) -> String {
    POLICY.replace("mode: shadow", &format!("mode: {mode}"))
}

/// What is waited for before the process is killed: something that happens within each promotion.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// This file of the folder comes to be.
    Comes(&'static str),
    /// It is another one than it was.
    Changes(&'static str),
}

const MOMENTS: [Moment; 5] = [
    Moment::Comes(".policy.yaml.new"),
    Moment::Comes(".policy.yaml.changes.new"),
    Moment::Changes("policy.yaml.changes"),
    Moment::Changes("policy.yaml"),
    Moment::Changes(".policy.yaml.new"),
];
const ROUNDS: usize = 20;
/// More, should nobody have been killed in the midst of anything by then.
const MOST_ROUNDS: usize = 200;

impl Moment {
    /// Waits for it, without rest: it is short.
    fn wait(self, folder: &Path) {
        let of = |name| fs::metadata(folder.join(name)).and_then(|it| it.modified()).ok();
        let start = match self {
            Self::Comes(name) | Self::Changes(name) => of(name),
        };
        let began = now();
        while match self {
            Self::Comes(name) => of(name).is_none(),
            Self::Changes(name) => of(name) == start,
        } {
            assert!(began.elapsed() < LONG, "{self:?} is never seen");
            thread::yield_now();
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "only for how long a story may take")]
fn now() -> Instant {
    Instant::now()
}

/// What a client was promised, one after the other, and what it wants next.
struct Heard {
    promised: Vec<String>,
    next: String,
}

impl Heard {
    /// The number of the change that was promised last; none is number zero.
    fn last(&self) -> u64 {
        self.promised.len() as u64 - 1
    }
}

/// Gives the rule one mode after another, until nobody answers.
fn promote(admin: &str) -> Heard {
    let mut heard = Heard { promised: vec!["shadow".to_owned()], next: String::new() };
    for percent in (1..=99).cycle() {
        heard.next = format!("enforce {percent}%");
        let Some(told) = ask(admin, &json!({ "mode": "enforce", "percent": percent, "confirm": true }))
        else {
            break;
        };
        heard.promised.push(heard.next.clone());
        assert_eq!(told["change"]["id"], heard.last(), "{told}");
    }
    heard
}

/// A whole answer; nothing, where whoever was asked has ended.
fn ask(admin: &str, body: &Value) -> Option<Value> {
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
fn tidegate(args: &[&str], file: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).args(["--json", "--policy", file.to_str().unwrap()]);
    let output = command.env_remove("TIDEGATE_ADMIN").output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The file is what was promised last, or what was asked for then; the history tells of it; and others go on from there.
fn look(file: &Path, heard: &Heard, round: &str) {
    let (found, last) = (fs::read_to_string(file).unwrap(), &heard.promised[heard.promised.len() - 1]);
    let is_next = found == text(&heard.next);
    assert!(is_next || found == text(last), "{round}: {found}");
    let history = tidegate(&["changes"], file);
    let of = |id: u64| {
        let change = history["changes"].as_array().unwrap().iter().find(|change| change["id"] == id);
        change.map(|change| format!("enforce {}%", change["to"]["percent"].as_f64().unwrap()))
    };
    if heard.last() > 0 {
        assert_eq!(of(heard.last()).as_ref(), Some(last), "{round}");
    }
    let (made, before) = match is_next {
        true => (heard.last() + 1, last),
        false => (heard.last(), &heard.promised[heard.promised.len() - 2]),
    };
    // What was noted and never made is no last change.
    assert!(of(made).is_some() && of(heard.last() + 2).is_none(), "{round}: {history}");
    assert_eq!(history["last"], made, "{round}");
    assert_eq!(tidegate(&["rollback", "--yes"], file)["change"]["undoes"], made, "{round}");
    assert_eq!(fs::read_to_string(file).unwrap(), text(before), "{round}");
}

#[tokio::test]
async fn who_is_killed_leaves_a_whole_policy_and_a_history() {
    let mut midst = 0;
    for (round, moment) in MOMENTS.into_iter().cycle().take(MOST_ROUNDS).enumerate() {
        if round >= ROUNDS && midst > 0 {
            return;
        }
        let gateway = Gateway::serve(POLICY).await;
        let admin = gateway.told_behind("admin").await;
        let client = thread::spawn(move || promote(admin.strip_prefix("http://").unwrap()));
        let killing = tokio::task::spawn_blocking(move || {
            // The first of them are made in peace.
            for _ in 0..=round / MOMENTS.len() % 4 {
                Moment::Changes("policy.yaml").wait(gateway.directory.path());
            }
            moment.wait(gateway.directory.path());
            gateway.killed()
        });
        let folder = killing.await.unwrap();
        let left = [".policy.yaml.new", ".policy.yaml.changes.new"].map(|name| folder.path().join(name));
        midst += usize::from(left.iter().any(|file| file.exists()));
        let heard = client.join().unwrap();
        look(&folder.path().join("policy.yaml"), &heard, &format!("round {round}, {moment:?}"));
    }
    panic!("nobody was killed in the midst of anything");
}
