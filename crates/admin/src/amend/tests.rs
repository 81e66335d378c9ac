use super::*;
use std::{
    fs,
    os::unix::{fs as unix, fs::PermissionsExt as _},
    thread,
};
use tempfile::TempDir;

const TEXT: &str = "\
include: more.yaml
rules:
  - { name: a, quota: 5/min }   # mine
  - { name: b, quota: 5/min, mode: shadow }
";
const MORE: &str = "rules:\n  - name: c\n    quota: 5/min\n";

struct Stage {
    folder: TempDir,
    file: PolicyFile,
}

impl Stage {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("policy.yaml"), TEXT).unwrap();
        fs::write(folder.path().join("more.yaml"), MORE).unwrap();
        let file = PolicyFile::at(folder.path().join("policy.yaml"));
        Self { folder, file }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn set(&self, rule: &str, to: &str) -> Change {
        match self.file.set_mode(rule, &to.parse().unwrap()).unwrap() {
            Amended::Changed(change) => change,
            Amended::Same => panic!("{rule} is in mode {to}"),
        }
    }

    fn told(&self) -> Vec<String> {
        self.file.changes().unwrap().iter().map(ToString::to_string).collect()
    }
}

#[test]
fn changes_are_written_told_and_taken_back_one_by_one() {
    let stage = Stage::new();
    fs::set_permissions(stage.folder.path().join("policy.yaml"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(stage.file.roll_back(None).unwrap_err().to_string(), AmendError::Nothing.to_string());
    stage.set("b", "enforce 10%");
    stage.set("c", "off");
    stage.set("b", "enforce");
    assert_eq!(stage.file.set_mode("b", &"enforce".parse().unwrap()).unwrap(), Amended::Same);
    assert_eq!(stage.text("policy.yaml"), TEXT.replace("mode: shadow", "mode: enforce"));
    assert_eq!(stage.text("more.yaml"), "rules:\n  - name: c\n    mode: off\n    quota: 5/min\n");
    let mode = fs::metadata(stage.folder.path().join("policy.yaml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(stage.names(), ["more.yaml", "policy.yaml", "policy.yaml.changes"]);
    assert_eq!(
        stage.told(),
        [
            "rule b: enforce 10% → enforce (policy.yaml)",
            "rule c: enforce → off (more.yaml)",
            "rule b: shadow → enforce 10% (policy.yaml)",
        ]
    );
    assert!(matches!(stage.file.roll_back(Some(1)), Err(AmendError::NotLast(3))));
    assert_eq!(stage.file.last_change().unwrap().id, 3);
    let back = stage.file.roll_back(Some(3)).unwrap();
    assert_eq!(back.to_string(), "rule b: enforce → enforce 10% (policy.yaml), which takes back change 3");
    for expected in [2, 1] {
        assert_eq!(stage.file.roll_back(None).unwrap().undoes, Some(expected));
    }
    assert_eq!((stage.text("policy.yaml").as_str(), stage.text("more.yaml").as_str()), (TEXT, MORE));
    assert!(matches!(stage.file.roll_back(None), Err(AmendError::Nothing)));
    assert_eq!(stage.told().len(), 6);
    let ids: Vec<u64> = stage.file.changes().unwrap().iter().map(|change| change.id).collect();
    assert_eq!(ids, [6, 5, 4, 3, 2, 1]);
}

#[test]
fn whoever_is_killed_in_between_leaves_a_whole_file() {
    for killed in [Step::Prepared, Step::Noted] {
        let stage = Stage::new();
        stage.set("a", "shadow");
        let before = stage.text("policy.yaml");
        let stop = |step| if step == killed { Err(AmendError::Gone) } else { Ok(()) };
        let outcome = stage.file.set_mode_by_steps("b", &"enforce".parse().unwrap(), stop);
        assert!(matches!(outcome, Err(AmendError::Gone)));
        assert_eq!(stage.text("policy.yaml"), before, "{killed:?}");
        assert!(stage.names().contains(&".policy.yaml.new".to_owned()), "{killed:?}");

        // What was not made is not taken back; what was made before is.
        let again = |stage: &Stage| stage.set("b", "enforce").id;
        match killed {
            Step::Prepared => assert_eq!(again(&stage), 2),
            Step::Noted => assert_eq!(again(&stage), 3),
        }
        assert_eq!(stage.names(), ["more.yaml", "policy.yaml", "policy.yaml.changes"]);
        // The same of whoever is killed while it takes something back.
        let after = stage.text("policy.yaml");
        assert!(stage.file.roll_back_by_steps(None, stop).is_err());
        assert_eq!(stage.text("policy.yaml"), after, "{killed:?}");
        assert_eq!(stage.file.roll_back(None).unwrap().rule, "b");
        assert_eq!(stage.text("policy.yaml"), before);
        assert_eq!(stage.file.roll_back(None).unwrap().rule, "a", "{killed:?}");
        assert_eq!(stage.text("policy.yaml"), TEXT);
    }
}

#[test]
fn what_an_editor_saves_meanwhile_stays() {
    let stage = Stage::new();
    let path = stage.folder.path().join("policy.yaml");
    let edited = format!("{TEXT}  - {{ name: d, quota: 1/s }}\n");
    let save = |step| {
        if step == Step::Prepared {
            fs::write(&path, &edited).unwrap();
        }
        Ok(())
    };
    let outcome = stage.file.set_mode_by_steps("a", &"off".parse().unwrap(), save);
    let told = outcome.unwrap_err().to_string();
    assert!(
        told.ends_with("by hand or by somebody else: look at it, and change it there, or try again"),
        "{told}"
    );
    assert_eq!(stage.text("policy.yaml"), edited);
    assert_eq!(stage.names(), ["more.yaml", "policy.yaml"]);

    // The same where it was changed since it was read by whoever serves it.
    let served = stage.file.clone().if_still(Policy::from_file(&path).unwrap());
    fs::write(&path, TEXT).unwrap();
    assert!(matches!(served.set_mode("a", &"off".parse().unwrap()), Err(AmendError::Changed(_))));
    // And where it is no longer what the change left; a remark counts.
    stage.set("a", "off");
    fs::write(&path, format!("{}# mine\n", stage.text("policy.yaml"))).unwrap();
    assert!(matches!(stage.file.roll_back(None), Err(AmendError::Changed(_))));
}

#[test]
fn what_may_not_be_replaced_says_what_to_do() {
    let stage = Stage::new();
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
    assert_eq!(stage.text("policy.yaml"), TEXT);
    assert_eq!(stage.names(), ["data", "more.yaml", "policy.yaml"]);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(stage.folder.path().join("policy.yaml.changes"), "{}\n").unwrap();
    let line = "policy.yaml.changes:1: this line of the history is not understood";
    assert!(told().contains(line), "{}", told());
    let nowhere = PolicyFile::at(stage.folder.path().join("nowhere/policy.yaml"));
    let told = nowhere.set_mode("a", &"off".parse().unwrap()).unwrap_err().to_string();
    assert!(told.contains("see that the folder is there"), "{told}");
}

#[test]
fn writers_wait_for_each_other() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("policy.yaml");
    let rules: Vec<String> = (0..8).map(|rule| format!("  - {{ name: r{rule}, quota: 5/min }}\n")).collect();
    fs::write(&path, format!("rules:\n{}", rules.concat())).unwrap();
    let writers: Vec<_> = (0..8)
        .map(|rule| {
            let file = PolicyFile::at(&path).by(format!("writer {rule}"));
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
    let ids: Vec<u64> = PolicyFile::at(&path).changes().unwrap().iter().map(|change| change.id).collect();
    assert_eq!(ids, (1..=24).rev().collect::<Vec<u64>>());
}

#[test]
fn only_the_last_hundred_changes_are_kept() {
    let stage = Stage::new();
    stage.set("a", "shadow");
    let path = stage.folder.path().join("policy.yaml");
    let mut history = History::read(&path).unwrap();
    let first = history.standing(|_| Ok(false)).unwrap().next().unwrap().clone();
    for id in 2..=105 {
        let change = Change { id, ..first.change.clone() };
        history.push(Entry { change, ..first.clone() });
    }
    history.prepare().unwrap().put_in_place().unwrap();
    assert_eq!(History::read(&path).unwrap().next_id(), 106);
    let changes = stage.file.changes().unwrap();
    assert_eq!((changes.len(), changes[0].id, changes[99].id), (100, 105, 6));
}

/// Somebody was at the file while the gateway looked at it.
#[test]
fn what_cannot_be_put_back_is_told() {
    let stage = Stage::new();
    let path = stage.folder.path().join("policy.yaml");
    let change = stage.set("b", "enforce");
    assert!(
        matches!(stage.file.take_back(&change, "no".to_owned()), AmendError::Refused(why) if why == "no")
    );
    assert_eq!(stage.text("policy.yaml"), TEXT);

    let change = stage.set("b", "enforce");
    let by_hand = format!("{}  - {{ name: d, quota: 1/min }}\n", stage.text("policy.yaml"));
    fs::write(&path, &by_hand).unwrap();
    let left = stage.file.take_back(&change, "no such list".to_owned()).to_string();
    let changed = AmendError::Changed(path.clone()).to_string();
    let wanted = format!("the file was not put back ({changed}); put it back by hand");
    assert!(left.contains(&wanted) && left.ends_with("no such list"), "{left}");
    assert_eq!(stage.text("policy.yaml"), by_hand, "what is not understood is left alone");

    fs::remove_file(&path).unwrap();
    let left = stage.file.take_back(&change, "no".to_owned());
    assert!(
        matches!(&left, AmendError::Left { source, .. } if matches!(**source, AmendError::Disk { .. })),
        "{left:?}"
    );
}
