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

    fn set_mode(&self, rule: &str, to: &str) -> ModeChange {
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
    let stage = PolicyFolder::new();
    fs::set_permissions(stage.folder.path().join("policy.yaml"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        stage.file.roll_back(None).unwrap_err().to_string(),
        PolicyFileError::NothingToUndo.to_string()
    );
    stage.set_mode("b", "enforce 10%");
    stage.set_mode("c", "off");
    stage.set_mode("b", "enforce");
    assert_eq!(stage.file.set_mode("b", &"enforce".parse().unwrap()).unwrap(), ChangeResult::Unchanged);
    assert_eq!(stage.text("policy.yaml"), POLICY.replace("mode: shadow", "mode: enforce"));
    assert_eq!(stage.text("more.yaml"), "rules:\n  - name: c\n    mode: off\n    quota: 5/min\n");
    let mode = fs::metadata(stage.folder.path().join("policy.yaml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(stage.file_names(), ["more.yaml", "policy.yaml", "policy.yaml.changes"]);
    assert_eq!(
        stage.change_texts(),
        [
            "rule b: enforce 10% → enforce (policy.yaml)",
            "rule c: enforce → off (more.yaml)",
            "rule b: shadow → enforce 10% (policy.yaml)",
        ]
    );
    assert!(matches!(stage.file.roll_back(Some(1)), Err(PolicyFileError::NotLastChange(3))));
    assert_eq!(stage.file.last_change().unwrap().id, 3);
    let back = stage.file.roll_back(Some(3)).unwrap();
    assert_eq!(back.to_string(), "rule b: enforce → enforce 10% (policy.yaml), which takes back change 3");
    for expected in [2, 1] {
        assert_eq!(stage.file.roll_back(None).unwrap().undoes, Some(expected));
    }
    assert_eq!(
        (stage.text("policy.yaml").as_str(), stage.text("more.yaml").as_str()),
        (POLICY, INCLUDED_POLICY)
    );
    assert!(matches!(stage.file.roll_back(None), Err(PolicyFileError::NothingToUndo)));
    assert_eq!(stage.change_texts().len(), 6);
    let ids: Vec<u64> = stage.file.changes().unwrap().iter().map(|change| change.id).collect();
    assert_eq!(ids, [6, 5, 4, 3, 2, 1]);
}

#[test]
fn killed_writer_leaves_whole_policy_file() {
    for killed in [WriteStep::Prepared, WriteStep::HistoryWritten] {
        let stage = PolicyFolder::new();
        stage.set_mode("a", "shadow");
        let before = stage.text("policy.yaml");
        let stop = |step| if step == killed { Err(PolicyFileError::GatewayStopped) } else { Ok(()) };
        let outcome = stage.file.set_mode_in_steps("b", &"enforce".parse().unwrap(), stop);
        assert!(matches!(outcome, Err(PolicyFileError::GatewayStopped)));
        assert_eq!(stage.text("policy.yaml"), before, "{killed:?}");
        assert!(stage.file_names().contains(&".policy.yaml.new".to_owned()), "{killed:?}");

        // What was not made is not taken back; what was made before is.
        let again = |stage: &PolicyFolder| stage.set_mode("b", "enforce").id;
        match killed {
            WriteStep::Prepared => assert_eq!(again(&stage), 2),
            WriteStep::HistoryWritten => assert_eq!(again(&stage), 3),
        }
        assert_eq!(stage.file_names(), ["more.yaml", "policy.yaml", "policy.yaml.changes"]);
        // The same of whoever is killed while it takes something back.
        let after = stage.text("policy.yaml");
        assert!(stage.file.roll_back_in_steps(None, stop).is_err());
        assert_eq!(stage.text("policy.yaml"), after, "{killed:?}");
        assert_eq!(stage.file.roll_back(None).unwrap().rule, "b");
        assert_eq!(stage.text("policy.yaml"), before);
        assert_eq!(stage.file.roll_back(None).unwrap().rule, "a", "{killed:?}");
        assert_eq!(stage.text("policy.yaml"), POLICY);
    }
}

#[test]
fn concurrent_edit_is_not_overwritten() {
    let stage = PolicyFolder::new();
    let path = stage.folder.path().join("policy.yaml");
    let edited = format!("{POLICY}  - {{ name: d, quota: 1/s }}\n");
    let save = |step| {
        if step == WriteStep::Prepared {
            fs::write(&path, &edited).unwrap();
        }
        Ok(())
    };
    let outcome = stage.file.set_mode_in_steps("a", &"off".parse().unwrap(), save);
    let told = outcome.unwrap_err().to_string();
    assert!(
        told.ends_with("by hand or by somebody else: look at it, and change it there, or try again"),
        "{told}"
    );
    assert_eq!(stage.text("policy.yaml"), edited);
    assert_eq!(stage.file_names(), ["more.yaml", "policy.yaml"]);

    // The same where it was changed since it was read by whoever serves it.
    let served = stage.file.clone().if_unchanged(Policy::from_file(&path).unwrap());
    fs::write(&path, POLICY).unwrap();
    assert!(matches!(
        served.set_mode("a", &"off".parse().unwrap()),
        Err(PolicyFileError::ConcurrentChange(_))
    ));
    // And where it is no longer what the change left; a remark counts.
    stage.set_mode("a", "off");
    fs::write(&path, format!("{}# mine\n", stage.text("policy.yaml"))).unwrap();
    assert!(matches!(stage.file.roll_back(None), Err(PolicyFileError::ConcurrentChange(_))));
}

#[test]
fn unwritable_policy_file_error_names_the_fix() {
    let stage = PolicyFolder::new();
    let (path, elsewhere) = (stage.folder.path().join("policy.yaml"), stage.folder.path().join("data"));
    let told = || stage.file.set_mode("a", &"off".parse().unwrap()).unwrap_err().to_string();
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(&path, elsewhere.join("policy.yaml")).unwrap();
    unix::symlink("data/policy.yaml", &path).unwrap();
    assert!(told().contains("policy.yaml is a link"), "{}", told());
    assert!(told().contains("ConfigMap"));
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    fs::remove_file(&path).unwrap();
    fs::rename(elsewhere.join("policy.yaml"), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(told().contains("is read-only; allow writing (`chmod u+w`)"), "{}", told());
    assert_eq!(stage.text("policy.yaml"), POLICY);
    assert_eq!(stage.file_names(), ["data", "more.yaml", "policy.yaml"]);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(stage.folder.path().join("policy.yaml.changes"), "{}\n").unwrap();
    let line = "policy.yaml.changes:1: this line of the history is not understood";
    assert!(told().contains(line), "{}", told());
    let nowhere = PolicyFile::new(stage.folder.path().join("nowhere/policy.yaml"));
    let told = nowhere.set_mode("a", &"off".parse().unwrap()).unwrap_err().to_string();
    assert!(told.contains("see that the folder is there"), "{told}");
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
    let stage = PolicyFolder::new();
    stage.set_mode("a", "shadow");
    let path = stage.folder.path().join("policy.yaml");
    let mut history = ChangeHistory::read(&path).unwrap();
    let first = history.active_changes(|_| Ok(false)).unwrap().next().unwrap().clone();
    for id in 2..=105 {
        let change = ModeChange { id, ..first.change.clone() };
        history.push(HistoryRecord { change, ..first.clone() });
    }
    history.prepare().unwrap().commit().unwrap();
    assert_eq!(ChangeHistory::read(&path).unwrap().next_id(), 106);
    let changes = stage.file.changes().unwrap();
    assert_eq!((changes.len(), changes[0].id, changes[99].id), (100, 105, 6));
}

/// Somebody was at the file while the gateway looked at it.
#[test]
fn failed_restore_is_reported() {
    let stage = PolicyFolder::new();
    let path = stage.folder.path().join("policy.yaml");
    let change = stage.set_mode("b", "enforce");
    assert!(
        matches!(stage.file.restore(&change, "no".to_owned()), PolicyFileError::Rejected(why) if why == "no")
    );
    assert_eq!(stage.text("policy.yaml"), POLICY);

    let change = stage.set_mode("b", "enforce");
    let by_hand = format!("{}  - {{ name: d, quota: 1/min }}\n", stage.text("policy.yaml"));
    fs::write(&path, &by_hand).unwrap();
    let left = stage.file.restore(&change, "no such list".to_owned()).to_string();
    let changed = PolicyFileError::ConcurrentChange(path.clone()).to_string();
    let wanted = format!("the file was not put back ({changed}); put it back by hand");
    assert!(left.contains(&wanted) && left.ends_with("no such list"), "{left}");
    assert_eq!(stage.text("policy.yaml"), by_hand, "what is not understood is left alone");

    fs::remove_file(&path).unwrap();
    let left = stage.file.restore(&change, "no".to_owned());
    assert!(
        matches!(&left, PolicyFileError::RestoreFailed { source, .. } if matches!(**source, PolicyFileError::Io { .. })),
        "{left:?}"
    );
}
