use super::*;
use std::{
    fs,
    os::unix::{fs as unix, fs::PermissionsExt as _},
    thread,
};
use tempfile::TempDir;

const POLICY: &str = "\
include: more.yaml
rules:
  - { name: a, quota: 5/min }   # mine
  - { name: b, quota: 5/min, mode: shadow }
";
const INCLUDED_POLICY: &str = "rules:\n  - name: c\n    quota: 5/min\n";

struct PolicyFolder {
    folder: TempDir,
    file: PolicyFile,
}

impl PolicyFolder {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("policy.yaml"), POLICY).unwrap();
        fs::write(folder.path().join("more.yaml"), INCLUDED_POLICY).unwrap();
        let file = PolicyFile::new(folder.path().join("policy.yaml"));
        Self { folder, file }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn file_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn set_mode(&self, rule: &str, to: &str) -> RuleChange {
        match self.file.set_mode(rule, &to.parse().unwrap()).unwrap() {
            ChangeResult::Changed(change) => change,
            ChangeResult::Unchanged => panic!("{rule} is in mode {to}"),
        }
    }

    fn change_texts(&self) -> Vec<String> {
        self.file.changes().unwrap().iter().map(ToString::to_string).collect()
    }
}

#[test]
fn changes_are_listed_and_rolled_back_in_order() {
    let fixture = PolicyFolder::new();
    fs::set_permissions(fixture.folder.path().join("policy.yaml"), fs::Permissions::from_mode(0o640))
        .unwrap();
    assert_eq!(
        fixture.file.roll_back(None).unwrap_err().to_string(),
        PolicyFileError::NothingToRevert.to_string()
    );
    fixture.set_mode("b", "enforce 10%");
    fixture.set_mode("c", "off");
    fixture.set_mode("b", "enforce");
    assert_eq!(fixture.file.set_mode("b", &"enforce".parse().unwrap()).unwrap(), ChangeResult::Unchanged);
    assert_eq!(fixture.text("policy.yaml"), POLICY.replace("mode: shadow", "mode: enforce"));
    assert_eq!(fixture.text("more.yaml"), "rules:\n  - name: c\n    mode: off\n    quota: 5/min\n");
    let mode = fs::metadata(fixture.folder.path().join("policy.yaml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(fixture.file_names(), ["more.yaml", "policy.yaml", "policy.yaml.changes"]);
    assert_eq!(
        fixture.change_texts(),
        [
            "rule b: mode enforce 10% → enforce (policy.yaml)",
            "rule c: mode enforce → off (more.yaml)",
            "rule b: mode shadow → enforce 10% (policy.yaml)",
        ]
    );
    assert!(matches!(fixture.file.roll_back(Some(1)), Err(PolicyFileError::NotLastChange(3))));
    assert_eq!(fixture.file.last_change().unwrap().id, 3);
    let back = fixture.file.roll_back(Some(3)).unwrap();
    assert_eq!(back.to_string(), "rule b: mode enforce → enforce 10% (policy.yaml), reverts change 3");
    for expected in [2, 1] {
        assert_eq!(fixture.file.roll_back(None).unwrap().reverts, Some(expected));
    }
    assert_eq!(
        (fixture.text("policy.yaml").as_str(), fixture.text("more.yaml").as_str()),
        (POLICY, INCLUDED_POLICY)
    );
    assert!(matches!(fixture.file.roll_back(None), Err(PolicyFileError::NothingToRevert)));
    assert_eq!(fixture.change_texts().len(), 6);
    let ids: Vec<u64> = fixture.file.changes().unwrap().iter().map(|change| change.id).collect();
    assert_eq!(ids, [6, 5, 4, 3, 2, 1]);
}

fn setting(rule: &str, key: &str, value: &str) -> RuleSetting {
    let [rule, key, value] = [rule, key, value].map(str::to_owned);
    RuleSetting { rule, key, value, from: ExpectedValue::Any }
}

#[test]
fn numbers_are_set_and_rolled_back() {
    let fixture = PolicyFolder::new();
    let set = |rule: &str, key: &str, value: &str| fixture.file.set(&setting(rule, key, value));
    assert!(matches!(set("c", "quota", "8/min").unwrap(), ChangeResult::Changed(_)));
    assert!(matches!(set("a", "wait", "2s").unwrap(), ChangeResult::Changed(_)));
    assert_eq!(set("a", "wait", "2000ms").unwrap(), ChangeResult::Unchanged);
    assert_eq!(fixture.text("more.yaml"), INCLUDED_POLICY.replace("5/min", "8/min"));
    assert_eq!(fixture.text("policy.yaml"), POLICY.replace("{ name: a,", "{ name: a, wait: 2s,"));
    assert_eq!(
        fixture.change_texts(),
        ["rule a: wait default → 2s (policy.yaml)", "rule c: quota 5/min → 8/min (more.yaml)",]
    );
    let values = fixture.file.values_of("a").unwrap();
    let values: Vec<_> = values.iter().map(|value| (value.key.as_str(), value.value.as_str())).collect();
    assert_eq!(values, [("quota", "5/min"), ("wait", "2s")]);
    let back = fixture.file.roll_back(None).unwrap();
    assert_eq!((back.from.as_deref(), back.to.as_deref(), back.modes()), (Some("2s"), None, None));
    fixture.file.roll_back(None).unwrap();
    assert_eq!(
        (fixture.text("policy.yaml").as_str(), fixture.text("more.yaml").as_str()),
        (POLICY, INCLUDED_POLICY)
    );
    let invalid = set("a", "quota", "8/mni").unwrap_err();
    assert!(matches!(&invalid, PolicyFileError::Edit(EditError::Value(_))), "{invalid}");
    assert_eq!(fixture.text("policy.yaml"), POLICY);
}

/// Two operators read the same value; the second change is refused and names the first one.
#[test]
fn change_of_another_value_than_expected_is_refused() {
    let fixture = PolicyFolder::new();
    let from = |value: &str, from: Option<&str>| RuleSetting {
        from: ExpectedValue::Only(from.map(str::to_owned)),
        ..setting("a", "quota", value)
    };
    fixture.file.clone().with_author("first").set(&from("8/min", Some("5/min"))).unwrap();
    let after = fixture.text("policy.yaml");
    let error = fixture.file.set(&from("9/min", Some("5/min"))).unwrap_err().to_string();
    assert!(error.starts_with("`quota` of rule `a` is `8/min`, not `5/min` (change 1 of 20"), "{error}");
    assert!(error.ends_with(", by first); check it, then set it again"), "{error}");
    let wait = RuleSetting { from: ExpectedValue::Only(Some("1s".to_owned())), ..setting("a", "wait", "2s") };
    assert_eq!(
        fixture.file.set(&wait).unwrap_err().to_string(),
        "`wait` of rule `a` is the default, not `1s`; check it, then set it again"
    );
    assert_eq!(fixture.text("policy.yaml"), after);
    assert!(fixture.file.set(&from("9/min", Some("8/min"))).is_ok());
    assert!(fixture.file.set(&RuleSetting { from: ExpectedValue::Only(None), ..wait }).is_ok());
}

/// Histories that an earlier version wrote have no key.
#[test]
fn history_without_keys_is_of_modes() {
    let fixture = PolicyFolder::new();
    fixture.set_mode("b", "enforce");
    let path = fixture.folder.path().join("policy.yaml.changes");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(r#""key":"mode","#), "{text}");
    fs::write(&path, text.replace(r#""key":"mode","#, "")).unwrap();
    assert_eq!(fixture.file.roll_back(None).unwrap().key, "mode");
    assert_eq!(fixture.text("policy.yaml"), POLICY);
}

#[test]
fn killed_writer_leaves_whole_policy_file() {
    for killed in [WriteStep::Prepared, WriteStep::HistoryWritten] {
        let fixture = PolicyFolder::new();
        fixture.set_mode("a", "shadow");
        let before = fixture.text("policy.yaml");
        let stop = |step| if step == killed { Err(PolicyFileError::GatewayStopped) } else { Ok(()) };
        let outcome = fixture.file.set_in_steps(&setting("b", "mode", "enforce"), stop);
        assert!(matches!(outcome, Err(PolicyFileError::GatewayStopped)));
        assert_eq!(fixture.text("policy.yaml"), before, "{killed:?}");
        assert!(fixture.file_names().contains(&".policy.yaml.new".to_owned()), "{killed:?}");

        // A change that was not applied is not reverted.
        let again = |fixture: &PolicyFolder| fixture.set_mode("b", "enforce").id;
        match killed {
            WriteStep::Prepared => assert_eq!(again(&fixture), 2),
            WriteStep::HistoryWritten => assert_eq!(again(&fixture), 3),
        }
        assert_eq!(fixture.file_names(), ["more.yaml", "policy.yaml", "policy.yaml.changes"]);
        // The same applies to a killed rollback.
        let after = fixture.text("policy.yaml");
        assert!(fixture.file.roll_back_in_steps(None, stop).is_err());
        assert_eq!(fixture.text("policy.yaml"), after, "{killed:?}");
        assert_eq!(fixture.file.roll_back(None).unwrap().rule, "b");
        assert_eq!(fixture.text("policy.yaml"), before);
        assert_eq!(fixture.file.roll_back(None).unwrap().rule, "a", "{killed:?}");
        assert_eq!(fixture.text("policy.yaml"), POLICY);
    }
}

#[test]
fn concurrent_edit_is_not_overwritten() {
    let fixture = PolicyFolder::new();
    let path = fixture.folder.path().join("policy.yaml");
    let edited = format!("{POLICY}  - {{ name: d, quota: 1/s }}\n");
    let save = |step| {
        if step == WriteStep::Prepared {
            fs::write(&path, &edited).unwrap();
        }
        Ok(())
    };
    let outcome = fixture.file.set_in_steps(&setting("a", "mode", "off"), save);
    let message = outcome.unwrap_err().to_string();
    assert!(
        message.ends_with("was changed in the meantime; check it, then edit it manually or try again"),
        "{message}"
    );
    assert_eq!(fixture.text("policy.yaml"), edited);
    assert_eq!(fixture.file_names(), ["more.yaml", "policy.yaml"]);

    // The same if it changed after the gateway read it.
    let served = fixture.file.clone().if_unchanged(Policy::from_file(&path).unwrap());
    fs::write(&path, POLICY).unwrap();
    assert!(matches!(
        served.set_mode("a", &"off".parse().unwrap()),
        Err(PolicyFileError::ConcurrentChange(_))
    ));
    // The same if it is not what the last change wrote; a comment counts.
    fixture.set_mode("a", "off");
    fs::write(&path, format!("{}# mine\n", fixture.text("policy.yaml"))).unwrap();
    assert!(matches!(fixture.file.roll_back(None), Err(PolicyFileError::ConcurrentChange(_))));
}

#[test]
fn unwritable_policy_file_error_names_the_fix() {
    let fixture = PolicyFolder::new();
    let (path, elsewhere) = (fixture.folder.path().join("policy.yaml"), fixture.folder.path().join("data"));
    let message = || fixture.file.set_mode("a", &"off".parse().unwrap()).unwrap_err().to_string();
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(&path, elsewhere.join("policy.yaml")).unwrap();
    unix::symlink("data/policy.yaml", &path).unwrap();
    assert!(message().contains("policy.yaml is a symbolic link"), "{}", message());
    assert!(message().contains("ConfigMap"));
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    fs::remove_file(&path).unwrap();
    fs::rename(elsewhere.join("policy.yaml"), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(message().contains("is read-only; make it writable (`chmod u+w`)"), "{}", message());
    assert_eq!(fixture.text("policy.yaml"), POLICY);
    assert_eq!(fixture.file_names(), ["data", "more.yaml", "policy.yaml"]);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(fixture.folder.path().join("policy.yaml.changes"), "{}\n").unwrap();
    let line = "policy.yaml.changes:1: invalid line in the change history";
    assert!(message().contains(line), "{}", message());
    let nowhere = PolicyFile::new(fixture.folder.path().join("nowhere/policy.yaml"));
    let message = nowhere.set_mode("a", &"off".parse().unwrap()).unwrap_err().to_string();
    assert!(message.contains("check that the directory exists"), "{message}");
}

#[test]
fn concurrent_writers_are_serialized() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("policy.yaml");
    let rules: Vec<String> = (0..8).map(|rule| format!("  - {{ name: r{rule}, quota: 5/min }}\n")).collect();
    fs::write(&path, format!("rules:\n{}", rules.concat())).unwrap();
    let writers: Vec<_> = (0..8)
        .map(|rule| {
            let file = PolicyFile::new(&path).with_author(format!("writer {rule}"));
            thread::spawn(move || {
                for to in ["shadow", "enforce 5%", "off"] {
                    let to: RuleEnforcement = to.parse().unwrap();
                    file.set_mode(&format!("r{rule}"), &to).unwrap();
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("mode: off").count(), 8, "{text}");
    let ids: Vec<u64> = PolicyFile::new(&path).changes().unwrap().iter().map(|change| change.id).collect();
    assert_eq!(ids, (1..=24).rev().collect::<Vec<u64>>());
}

#[test]
fn history_keeps_last_hundred_changes() {
    let fixture = PolicyFolder::new();
    fixture.set_mode("a", "shadow");
    let path = fixture.folder.path().join("policy.yaml");
    let mut history = ChangeHistory::read(&path).unwrap();
    let first = history.active_changes(|_| Ok(false)).unwrap().next().unwrap().clone();
    for id in 2..=105 {
        let change = RuleChange { id, ..first.change.clone() };
        history.push(HistoryRecord { change, ..first.clone() });
    }
    history.prepare().unwrap().commit().unwrap();
    assert_eq!(ChangeHistory::read(&path).unwrap().next_id(), 106);
    let changes = fixture.file.changes().unwrap();
    assert_eq!((changes.len(), changes[0].id, changes[99].id), (100, 105, 6));
}

/// The file changes while the gateway checks the new policy.
#[test]
fn failed_restore_is_reported() {
    let fixture = PolicyFolder::new();
    let path = fixture.folder.path().join("policy.yaml");
    let change = fixture.set_mode("b", "enforce");
    assert!(
        matches!(fixture.file.restore(&change, "no".to_owned()), PolicyFileError::Rejected(why) if why == "no")
    );
    assert_eq!(fixture.text("policy.yaml"), POLICY);

    let change = fixture.set_mode("b", "enforce");
    let edited_text = format!("{}  - {{ name: d, quota: 1/min }}\n", fixture.text("policy.yaml"));
    fs::write(&path, &edited_text).unwrap();
    let left = fixture.file.restore(&change, "no such list".to_owned()).to_string();
    let changed = PolicyFileError::ConcurrentChange(path.clone()).to_string();
    let expected = format!("the file is not restored ({changed}); restore it manually");
    assert!(left.contains(&expected) && left.ends_with("no such list"), "{left}");
    assert_eq!(fixture.text("policy.yaml"), edited_text, "the concurrent edit is preserved");

    fs::remove_file(&path).unwrap();
    let left = fixture.file.restore(&change, "no".to_owned());
    assert!(
        matches!(&left, PolicyFileError::RestoreFailed { source, .. } if matches!(**source, PolicyFileError::Io { .. })),
        "{left:?}"
    );
}
