//! What a program says of its limits when it starts.

use tidegate_rule::{Connect, Rules, Settings, SettingsError};

/// Has all rules of this program follow these settings: where state lives, what is on, other numbers than those in the
/// code. May be called again, and without it all is counted in memory, by the numbers in the code.
///
/// ```
/// use tidegate::Settings;
///
/// tidegate::init(Settings::new().quota("login", "5/min")?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// From a file, which can be read again while the program runs, or from the environment:
///
/// ```no_run
/// # use tidegate::Settings;
/// tidegate::init(Settings::from_file("tidegate.toml")?)?;
/// tidegate::init(Settings::from_env()?)?;
/// # Ok::<(), tidegate::SettingsError>(())
/// ```
///
/// An address that is none is an error. A server that is not there is not: until it comes, what the settings say of an
/// outage decides.
pub fn init(settings: Settings) -> Result<(), SettingsError> {
    connected(Rules::global()).apply(settings)
}

/// Reads the file that the settings come from again, now. If there is anything wrong with it, nothing changes.
#[cfg(feature = "file")]
pub fn reload() -> Result<tidegate_rule::Reloaded, SettingsError> {
    Rules::global().reload()
}

/// How it went with the settings so far: how often they were applied, and why the last ones were not.
#[cfg(feature = "file")]
pub fn settings_status() -> tidegate_rule::SettingsStatus {
    Rules::global().status()
}

/// Rules apart from those of the program, which can connect to stores as those can: for tests, and for a program that
/// serves several others.
pub fn rules() -> Rules {
    let rules = Rules::new();
    connected(&rules);
    rules
}

fn connected(rules: &Rules) -> &Rules {
    if let Some(connect) = CONNECT {
        rules.connect_by(connect);
    }
    rules
}

#[cfg(not(feature = "redis"))]
const CONNECT: Option<Connect> = None;

#[cfg(feature = "redis")]
const CONNECT: Option<Connect> = Some(|connection| {
    // The thread of stores ends with the process.
    let mut builder = tidegate_redis::RedisStore::builder().resident();
    if let Some(prefix) = connection.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(deadline) = connection.deadline {
        builder = builder.deadline(deadline);
    }
    Ok(std::sync::Arc::new(builder.open(connection.url)?))
});
