//! Files and variables that make no sense: a complaint, and never a panic or a password.

#![cfg(feature = "file")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use proptest::prelude::*;
use std::fs;
use tidegate_rule::{Rules, Settings, SettingsError};

const SECRET: &str = "hunter2";

/// Whatever comes of it, what is said of it can be shown.
fn look_at(settings: Result<Settings, SettingsError>) -> String {
    match settings {
        Err(error) => format!("{error} {error:?} {error:#?}"),
        Ok(settings) => {
            let shown = format!("{settings:?} {settings:#?}");
            let outcome = Rules::new().apply(settings);
            format!(
                "{shown} {}",
                outcome.map_or_else(|error| format!("{error} {error:?}"), |()| String::new())
            )
        }
    }
}

fn read(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    fs::write(&path, bytes).unwrap();
    look_at(Settings::from_file(&path))
}

/// Pieces of which files are made, rightly and wrongly put together.
fn piece() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "mode",
        "store",
        "prefix",
        "deadline",
        "on-outage",
        "reload",
        "quota",
        "quotas",
        "wait",
        "message",
        "[stores]",
        "[rules]",
        "[rules.login]",
        "[[rules]]",
        "=",
        ".",
        ",",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\"\"\"",
        "'",
        "\n",
        "\r\n",
        " ",
        "#",
        "\\",
        "\\u00e9",
        "é",
        "\u{feff}",
        "\"off\"",
        "\"5/min\"",
        "\"local 4\"",
        "\"1s\"",
        "\"99999999999999999999/s\"",
        "5",
        "1.5",
        "true",
        "1979-05-27",
        "$",
        "${",
        "$HOME",
    ]);
    prop_oneof![6 => known.prop_map(str::to_owned), 1 => "[a-z]{1,6}", 1 => any::<char>().prop_map(String::from)]
}

/// An address with a password, as it may be written.
fn address() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        format!("redis://:{SECRET}@db"),
        format!("redis://user:{SECRET}@db:6379/1?x=y"),
        format!("rediss://:{SECRET}@[::1]"),
        format!("redis+cluster://:{SECRET}@a,b"),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn bytes_are_no_settings(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read(&bytes);
    }

    #[test]
    fn pieces_of_settings(pieces in prop::collection::vec(piece(), 0..40)) {
        read(pieces.concat().as_bytes());
    }

    /// Wherever an address stands, it is not told.
    #[test]
    fn an_address_among_pieces(
        before in prop::collection::vec(piece(), 0..12),
        quote in prop::sample::select(vec!["\"", "'", "\"\"\"", ""]),
        address in address(),
        after in prop::collection::vec(piece(), 0..12),
    ) {
        let text = format!("{}{quote}{address}{quote}{}", before.concat(), after.concat());
        let said = read(text.as_bytes());
        prop_assert!(!said.contains(SECRET), "{text}\n{said}");
    }

    #[test]
    fn variables_that_make_no_sense(name in 0_usize..6, value in ".{0,40}", address in address(), is_address: bool) {
        let names = ["MODE", "STORE", "PREFIX", "DEADLINE", "ON_OUTAGE", "RULES"];
        let name = format!("TIDEGATE_{}", names[name]);
        let value = if is_address { format!("{value}{address}") } else { value };
        let said = look_at(Settings::from_variables(&|asked| (asked == name).then(|| value.clone())));
        prop_assert!(name == "TIDEGATE_PREFIX" || !said.contains(SECRET), "{name}={value}\n{said}");
    }
}
