//! Ignores one key in all policies, for `scripts/keys`, which finds the tests that fail without that key.
//!
//! The hook is compiled only if `TIDEGATE_KEY_HOOK` is set while this crate is built.

use std::{env, fs::OpenOptions, io::Write};

/// Whether a key is ignored. Also adds the key to the file that `TIDEGATE_READ_KEYS` names.
pub(super) fn is_ignored(map: &str, key: &str) -> bool {
    if option_env!("TIDEGATE_KEY_HOOK").is_none() {
        return false;
    }
    let name = format!("{map}.{key}");
    if let Some(path) = env::var_os("TIDEGATE_READ_KEYS")
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        // An incomplete record shows as a key without a test.
        drop(writeln!(file, "{name}"));
    }
    env::var("TIDEGATE_IGNORED_KEY").is_ok_and(|ignored| ignored == name)
}
