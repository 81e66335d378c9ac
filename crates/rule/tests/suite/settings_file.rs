//! Files of settings: what they can say, and what is said of those that are wrong.

#![cfg(feature = "file")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use std::{fs, path::PathBuf};
use tempfile::TempDir;
use tidegate_engine::{Clock, Outage};
use tidegate_rule::{Declaration, FileProblem, Mode, Reloaded, RuleSettings, Rules, Settings, SettingsError};
use tidegate_testkit::servers::until;

/// A file that a test writes.
struct File {
    _folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("tidegate.toml");
        let file = Self { _folder: folder, path };
        file.write(text);
        file
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        fs::write(&self.path, text).unwrap();
    }

    fn settings(&self) -> Result<Settings, SettingsError> {
        Settings::from_file(&self.path)
    }

    /// What is said of it, without the folder that it happens to be in.
    fn complaint(&self) -> String {
        self.shown(&self.settings().unwrap_err())
    }

    fn shown(&self, error: &SettingsError) -> String {
        error.to_string().replace(self.path.to_str().unwrap(), "tidegate.toml")
    }
}

fn rules() -> Rules {
    Rules::new()
}

fn quotas(rules: &Rules, name: &'static str) -> String {
    let rule = rules.rule(Declaration::of(name)).unwrap();
    rule.quotas().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_file_says_what_rules_do() {
    let file = File::new(
        r#"
        mode = "shadow"
        store = "memory"
        prefix = "shop"
        on-outage = "local 4"
        deadline = "20ms"

        [stores]
        sessions = "memory"

        [rules]
        signup = "3/h"

        [rules.login]
        quotas = ["5/min", "20/h"]
        mode = "enforce"
        store = "sessions"
        on-outage = "closed"
        wait = "50ms"
        message = "slow down"

        [rules."shop::api::search"]
        quota = "7/s burst 9"
        "#,
    );
    let rules = rules();
    let declaration = Declaration::of("login").quota("1/s").unwrap().quota("2/s").unwrap();
    let login = rules.rule(declaration).unwrap();
    rules.apply(file.settings().unwrap()).unwrap();
    assert_eq!(quotas(&rules, "login"), "5/min, 20/h");
    assert_eq!((login.mode(), login.wait().as_millis()), (Mode::Enforce, 50));
    assert_eq!(login.message().as_deref(), Some("slow down"));
    assert_eq!(quotas(&rules, "signup"), "3/h");
    let search = rules.rule(Declaration::of("shop::api::search")).unwrap();
    assert_eq!((search.mode(), search.quotas()[0].to_string()), (Mode::Shadow, "7/s burst 9".to_owned()));
}

#[test]
fn problems_have_a_place_and_a_fix() {
    let table = [
        (
            "mode = \"of\"",
            "tidegate.toml:1:9: unknown mode `of`\n  mode = \"of\"\n          ^^\ndid you mean `off`? use one of enforce, shadow, off",
        ),
        (
            "[rules.login]\nquota = \"10/parsec\"",
            "tidegate.toml:2:13: unknown period `parsec`\n  quota = \"10/parsec\"\n              ^^^^^^\n",
        ),
        (
            "[rules]\nlogin = [\"10/s\", \"10/parsec\"]",
            "tidegate.toml:2:22: unknown period `parsec`\n  login = [\"10/s\", \"10/parsec\"]\n                       ^^^^^^\n",
        ),
        (
            "[rules]\nlogin = \"10\\u002fparsec\"",
            "tidegate.toml:2:9: unknown period `parsec`\n  login = \"10\\u002fparsec\"\n          ^^^^^^^^^^^^^^^^",
        ),
        (
            "on_outage = \"open\"",
            "tidegate.toml:1:1: unknown key `on_outage`\n  on_outage = \"open\"\n  ^^^^^^^^^\ndid you mean `on-outage`?",
        ),
        (
            "[rules.login]\nbanana = 1",
            "tidegate.toml:2:1: unknown key `banana`\n  banana = …\n  ^^^^^^\nthere are: quota, quotas, mode, store, on-outage, wait, message",
        ),
        (
            "[rules.login]\nquota = 5",
            "tidegate.toml:2:9: a text is needed here, not an integer\n  quota = 5\n          ^\nput it in quotes",
        ),
        (
            "rules = 5",
            "tidegate.toml:1:9: a table is needed here, not an integer\n  rules = 5\n          ^\n",
        ),
        (
            "[rules.login]\nquotas = []",
            "tidegate.toml:2:10: no quota\n  quotas = []\n           ^^\ngive at least one, or leave the key out",
        ),
        (
            "[rules.login]\nquota = \"5/s\"\nquotas = [\"5/s\"]",
            "tidegate.toml:3:1: both `quota` and `quotas`\n  quotas = [\"5/s\"]\n  ^^^^^^\nput them all into `quotas`",
        ),
        ("reload = \"1ms\"", "tidegate.toml:1:11: `1ms` is too often\n  reload = \"1ms\"\n            ^^^\n"),
        (
            "store = \"redis://:$TIDEGATE_NO_SUCH_VARIABLE@db\"",
            "tidegate.toml:1:9: the variable TIDEGATE_NO_SUCH_VARIABLE is not set\n  store = …\n          ^\nset TIDEGATE_NO_SUCH_VARIABLE in the environment",
        ),
    ];
    for (text, expected) in table {
        let complaint = File::new(text).complaint();
        assert!(complaint.starts_with(expected), "{text}\n--- said\n{complaint}\n--- expected\n{expected}");
    }
}

#[test]
fn all_problems_are_told_at_once_in_their_order() {
    let file = File::new(
        "mode = \"of\"\nprefx = \"a\"\n[rules.b]\nquota = \"5/mni\"\nwait = 5/min\n[rules.a]\nmode = \"shadwo\"\n",
    );
    let Err(SettingsError::File(error)) = file.settings() else { panic!("no complaint") };
    let lines: Vec<_> = error.problems().iter().map(FileProblem::line).collect();
    assert_eq!(lines, [1, 2, 4, 5, 7], "{error}");
    assert!(error.problems()[3].fix().contains("text in quotes"), "{error}");
}

#[test]
fn files_that_are_none() {
    let file = File::new("");
    assert!(file.settings().is_ok());
    file.write([b'm', b'o', 0xff, 0xfe]);
    assert!(file.complaint().starts_with("tidegate.toml:1:3: not UTF-8\n"), "{}", file.complaint());
    file.write("\u{feff}mode = \"off\"\r\n");
    assert!(file.settings().is_ok(), "{}", file.complaint());
    file.write(vec![b'#'; 2_000_000]);
    assert!(file.complaint().contains("more than a megabyte"), "{}", file.complaint());
    file.write("[[[[[[[[[[");
    assert!(file.complaint().starts_with("tidegate.toml:1:"), "{}", file.complaint());
    file.write(format!("a = {}", "[".repeat(100_000)));
    assert!(file.complaint().starts_with("tidegate.toml:1:"), "{}", file.complaint());
    fs::remove_file(&file.path).unwrap();
    assert!(file.complaint().starts_with("tidegate.toml: cannot be read: "), "{}", file.complaint());
}

/// Whatever is wrong with the line of an address, what it holds is not shown.
#[test]
fn passwords_are_never_shown() {
    let lines = [
        "store = \"redis://:hunter2@db",
        "stroe = \"redis://:hunter2@db\"",
        "store = \"user:hunter2@db\" x",
        "store = \"hunter2$NOT_SET_ANYWHERE\"",
        "store = [\"redis://:hunter2@db\"]",
        "store = \"redis://u:hunter2@db\"\nstore = \"redis://u:hunter2@db\"",
        "[stores]\na = \"redis+unix:///s?pass=hunter2\" \"",
        "mode = \"redis://:hunter2@db\"",
        "on-outage = \"local hunter2@db\"",
        "[rules]\nlogin = \"redis://:hunter2@db\"",
        "[rules.login]\nstore = \"redis://:hunter2@db\"\nmode = 5",
        "store = \"\"\"\nredis://:hunter2@db\n\"\"",
        "store = \"redis://:a$hunter2@db\"",
        "password = \"hunter2\"",
        "password = hunter2",
        "redis_pw = \"hunter2\"",
        "redis.pw = \"hunter2\"",
        "\"redis://:hunter2@db\" = 1",
        "[stores]\na = { url = \"db\", key = \"hunter2\" }",
        "[stores]\n\"redis://:hunter2@db\" = \"sessions\"",
        "[rules.login]\npw = \"hunter2\"",
    ];
    for line in lines {
        let error = File::new(line).settings().unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(!said.contains("hunter2"), "{line}: {said}");
    }
    let fine = File::new("store = \"redis://:hunter2@db\"\n[stores]\na = \"redis://:hunter2@db\"")
        .settings()
        .unwrap();
    assert!(!format!("{fine:?} {fine:#?}").contains("hunter2"));
    let misplaced = Settings::new().rule("login", RuleSettings::new().store("redis://:hunter2@db"));
    assert!(!format!("{}", rules().apply(misplaced).unwrap_err()).contains("hunter2"));
    // Nobody can connect here: that is told without the address, too.
    let error = rules().apply(fine).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

#[test]
fn what_is_wrong_only_in_use_still_has_its_place() {
    let rules = rules();
    let tiers = ["1/s".parse().unwrap(), "2/s".parse().unwrap()];
    let _api = rules.rule(Declaration::of("api").tiers(tiers)).unwrap();
    let _jobs = rules.rule(Declaration::of("jobs").quota("3 at once").unwrap()).unwrap();
    let table = [
        ("[rules.api]\nquotas = [\"1/s\"]", "tidegate.toml:2:10: rule `api`: 1 quotas for a rule of 2 tiers"),
        (
            "[rules.api]\nquotas = [\"1/s\", \"1/s sliding-log\"]",
            "tidegate.toml:2:10: rule `api`: tiers `1/s` and `1/s sliding-log` count by different algorithms",
        ),
        (
            "[rules.jobs]\nquota = \"3/s\"",
            "tidegate.toml:2:9: rule `jobs`: `3/s` counts calls, but the rule (`3 at once`) counts those in flight",
        ),
        (
            "[stores]\nsessions = \"memory\"\n[rules.jobs]\nstore = \"session\"",
            "tidegate.toml:4:9: rule `jobs` names the store `session`, but there are only `sessions`",
        ),
    ];
    for (text, expected) in table {
        let file = File::new(text);
        let said = file.shown(&rules.apply(file.settings().unwrap()).unwrap_err());
        assert!(said.starts_with(expected), "{said}");
    }
    assert_eq!((rules.status().applied(), quotas(&rules, "jobs").as_str()), (0, "3 at once"));
    assert!(rules.status().error().unwrap().contains("session"));
}

#[test]
fn a_file_is_read_again_and_a_wrong_one_changes_nothing() {
    let file = File::new("[rules]\nlogin = \"5/min\"");
    let rules = rules();
    let login = rules.rule(Declaration::of("login").quota("1/min").unwrap()).unwrap();
    assert_eq!(rules.reload().unwrap(), Reloaded::NoFile);
    rules.apply(file.settings().unwrap().clock(Clock::manual().0)).unwrap();
    for _ in 0..5 {
        login.admit_blocking("alice", 1).unwrap();
    }
    assert_eq!(rules.reload_if_changed().unwrap(), Reloaded::Unchanged);

    file.write("[rules]\nlogin = \"8/min\"");
    assert_eq!(rules.reload_if_changed().unwrap(), Reloaded::Applied);
    assert_eq!(quotas(&rules, "login"), "8/min");
    let left = (0..10).filter(|_| login.admit_blocking("alice", 1).is_ok()).count();
    assert_eq!(left, 3, "what was used stays used");

    file.write("[rules]\nlogin = \"8/mni\"");
    assert!(rules.reload_if_changed().is_err());
    assert_eq!(rules.reload_if_changed().unwrap(), Reloaded::Unchanged, "the same mistake is told once");
    assert!(rules.reload().is_err(), "whoever asks hears of it again");
    assert_eq!(quotas(&rules, "login"), "8/min");
    let status = rules.status();
    assert_eq!((status.applied(), status.path()), (2, Some(&*file.path)));
    assert!(status.error().unwrap().contains(":2:12: "), "{status}");

    fs::remove_file(&file.path).unwrap();
    assert!(matches!(rules.reload_if_changed(), Err(SettingsError::Unreadable { .. })));
    assert_eq!(rules.reload_if_changed().unwrap(), Reloaded::Unchanged);

    // As editors do, and Kubernetes: another file by the same name.
    let other = file.path.with_extension("new");
    fs::write(&other, "[rules]\nlogin = \"9/min\"").unwrap();
    fs::rename(&other, &file.path).unwrap();
    assert_eq!(rules.reload_if_changed().unwrap(), Reloaded::Applied);
    assert_eq!((quotas(&rules, "login").as_str(), rules.status().error()), ("9/min", None));
}

#[test]
fn what_code_says_holds_over_the_file_also_when_it_is_read_again() {
    let file = File::new("mode = \"off\"\n[rules.login]\nquota = \"5/min\"\nmessage = \"slow down\"");
    let rules = rules();
    let login = rules.rule(Declaration::of("login")).unwrap();
    let over = RuleSettings::new().quota("7/min").unwrap();
    rules.apply(file.settings().unwrap().mode(Mode::Shadow).rule("login", over)).unwrap();
    let now = || (quotas(&rules, "login"), login.mode(), login.message().unwrap().to_string());
    assert_eq!(now(), ("7/min".to_owned(), Mode::Shadow, "slow down".to_owned()));
    file.write("[rules.login]\nquota = \"6/min\"\nmessage = \"slower\"");
    rules.reload().unwrap();
    assert_eq!(now(), ("7/min".to_owned(), Mode::Shadow, "slower".to_owned()));
}

#[test]
fn the_environment_names_a_file_and_holds_over_it() {
    let file = File::new("mode = \"off\"\n[rules]\nlogin = \"5/min\"\nsignup = \"6/min\"");
    let path = file.path.to_str().unwrap().to_owned();
    let variables = move |name: &str| match name {
        "TIDEGATE_SETTINGS" => Some(path.clone()),
        "TIDEGATE_RULES" => Some("login = 7/min".to_owned()),
        _ => None,
    };
    let rules = rules();
    let login = rules.rule(Declaration::of("login")).unwrap();
    rules.apply(Settings::from_variables(&variables).unwrap()).unwrap();
    assert_eq!(login.mode(), Mode::Off);
    assert_eq!((quotas(&rules, "login"), quotas(&rules, "signup")), ("7/min".to_owned(), "6/min".to_owned()));
}

/// The thread that looks is told by the file itself how often, and ends with the rules.
#[test]
fn a_file_that_says_so_is_followed() {
    let file = File::new("reload = \"100ms\"\n[rules]\nlogin = \"5/min\"");
    let rules = rules();
    let login = rules.rule(Declaration::of("login")).unwrap();
    rules.apply(file.settings().unwrap()).unwrap();
    for quota in ["6/min", "7/min"] {
        file.write(format!("reload = \"100ms\"\n[rules]\nlogin = \"{quota}\""));
        until("the new quota holds", || match login.quotas()[0].to_string() {
            now if now == quota => Ok(()),
            now => Err(now),
        })
        .unwrap();
    }
    file.write("[rules]\nlogin = \"8/min\"");
    until("the last one holds", || (login.quotas()[0].limit() == 8).then_some(()).ok_or_else(String::new))
        .unwrap();
    assert_eq!(rules.status().error(), None);
}

#[test]
fn settings_for_rules_that_come_later() {
    let file = File::new("[rules]\nlogin = \"5/min\"\napi = [\"1/s\"]");
    let rules = rules();
    rules.apply(file.settings().unwrap().on_outage(Outage::Closed)).unwrap();
    assert_eq!(quotas(&rules, "login"), "5/min");
    // What does not fit is told, and the rule limits by the numbers in the code.
    let tiers = ["1/s".parse().unwrap(), "2/s".parse().unwrap()];
    let api = rules.rule(Declaration::of("api").tiers(tiers)).unwrap();
    assert_eq!(api.quotas().len(), 2);
}
