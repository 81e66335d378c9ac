//! `tidegate apikey`.

use crate::common::{run_tidegate, utf8_text};
use serde_json::Value;
use std::{fs, thread};
use tidegate_identity::api_key::ApiKeyFile;

/// Runs the command with a file in this folder. Returns its output, or its error.
fn apikey(folder: &tempfile::TempDir, args: &[&str]) -> Result<String, String> {
    let file = folder.path().join("keys.json");
    let output = run_tidegate(&[&["apikey"], args, &["--file", file.to_str().unwrap()]].concat());
    match output.status.code() {
        Some(0) => Ok(utf8_text(&output.stdout)),
        Some(2) => Err(utf8_text(&output.stderr)),
        other => panic!("{other:?}: {}", utf8_text(&output.stderr)),
    }
}

#[test]
fn keys_are_added_listed_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let error = apikey(&folder, &["list"]).unwrap_err();
    assert!(error.contains("does not exist: `tidegate apikey add NAME` creates it"), "{error}");
    let secret = apikey(&folder, &["add", "acme", "--tier", "gold", "--expires", "2199-01-31"]).unwrap();
    assert!(secret.starts_with("tg_") && secret.len() == 47, "{secret}");
    let added: Value =
        serde_json::from_str(&apikey(&folder, &["add", "other", "--expires", "90d", "--json"]).unwrap())
            .unwrap();
    assert!(added["key"].as_str().unwrap().starts_with("tg_"), "{added}");
    let content = fs::read_to_string(folder.path().join("keys.json")).unwrap();
    assert!(!content.contains(secret.trim()) && content.contains("\"sha256\""), "{content}");

    let list = apikey(&folder, &["list"]).unwrap();
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["id", "name", "tier", "created", "expires"]);
    assert_eq!((rows[1][1], rows[1][2], rows[1][4]), ("acme", "gold", "2199-01-31"));
    assert_eq!(rows.len(), 3);
    let listed: Value = serde_json::from_str(&apikey(&folder, &["list", "--json"]).unwrap()).unwrap();
    assert_eq!(listed["api-keys"][1]["id"], added["id"]);

    assert_eq!(
        apikey(&folder, &["revoke", rows[1][0]]).unwrap(),
        format!("revoked {} of acme\n", rows[1][0])
    );
    let error = apikey(&folder, &["revoke", "acme"]).unwrap_err();
    assert!(error.contains("no key of") && error.contains("`tidegate apikey list` lists them"), "{error}");
    assert_eq!(apikey(&folder, &["list"]).unwrap().lines().count(), 2);
}

#[test]
fn invalid_arguments_name_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["add", ""][..], "invalid name: use 1 to 256 bytes of text"),
        (&["add", "a\u{1b}b"], "invalid name: use 1 to 256 bytes of text"),
        (&["add", "acme", "--tier", ""], "invalid tier: use 1 to 256 bytes of text"),
        (
            &["add", "acme", "--expires", "soon"],
            "invalid time `soon`: write `90d`, or a date such as `2027-01-31`",
        ),
        (&["add", "acme", "--expires", "2027-02-30"], "invalid time `2027-02-30`"),
        (&["add", "acme", "--expires", "2001-01-01"], "`2001-01-01` has passed: use a later date"),
    ] {
        let error = apikey(&folder, args).unwrap_err();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    assert!(!folder.path().join("keys.json").exists());
    fs::write(folder.path().join("keys.json"), "{}").unwrap();
    let error = apikey(&folder, &["add", "acme"]).unwrap_err();
    assert!(error.contains("keys.json: file of API keys without `api-keys`"), "{error}");
}

#[test]
fn concurrent_commands_lose_no_key() {
    let folder = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for number in 0..8 {
            let folder = &folder;
            scope.spawn(move || apikey(folder, &["add", &format!("client-{number}")]).unwrap());
        }
    });
    let content = fs::read(folder.path().join("keys.json")).unwrap();
    assert_eq!(ApiKeyFile::parse(&content).unwrap().keys().len(), 8);
}
