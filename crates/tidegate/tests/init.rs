//! The settings of a whole program. All in one story: there is one program.

#![cfg(feature = "file")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use tidegate::{Declaration, Mode, Reloaded, Rules, Settings};

#[test]
fn a_program_starts_and_is_told_otherwise() {
    // Without a word all is in memory, as the code says.
    let login = Rules::global().rule(Declaration::of("login").quota("3 per 52w").unwrap()).unwrap();
    let admitted = || (0..9).filter(|_| login.admit_blocking("alice", 1).is_ok()).count();
    assert_eq!(admitted(), 3);
    assert_eq!((tidegate::settings_status().applied(), tidegate::reload().unwrap()), (0, Reloaded::NoFile));

    tidegate::init(Settings::new().quota("login", "4 per 52w").unwrap()).unwrap();
    assert_eq!(admitted(), 1);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    fs::write(&path, "[rules]\nlogin = \"6 per 52w\"").unwrap();
    tidegate::init(Settings::from_file(&path).unwrap()).unwrap();
    assert_eq!(admitted(), 2);

    fs::write(&path, "mode = \"off\"").unwrap();
    assert_eq!(tidegate::reload().unwrap(), Reloaded::Applied);
    assert_eq!((login.mode(), admitted()), (Mode::Off, 9));

    fs::write(&path, "mode = \"on\"").unwrap();
    assert!(tidegate::reload().unwrap_err().to_string().contains(":1:9: unknown mode `on`"));
    let status = tidegate::settings_status();
    assert_eq!((login.mode(), status.applied(), status.path()), (Mode::Off, 3, Some(&*path)));
    assert!(status.error().is_some());

    // What cannot be is an error, and nothing changes.
    let wrong = if cfg!(feature = "redis") { "http://db" } else { "redis://db" };
    assert!(tidegate::init(Settings::new().store_at(wrong)).is_err());
    assert_eq!(login.mode(), Mode::Off);
}
