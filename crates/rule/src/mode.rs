//! Whether a rule is enforced.

use std::{error, fmt, str::FromStr};

/// What a rule does with what it decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refuses what is over the limit.
    #[default]
    Enforce,
    /// Counts, and refuses nothing.
    Shadow,
    /// Neither counts nor refuses.
    Off,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        })
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        [Self::Enforce, Self::Shadow, Self::Off]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

/// A word that is no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown mode `{}`; use one of enforce, shadow, off", self.0)
    }
}

impl error::Error for UnknownMode {}
