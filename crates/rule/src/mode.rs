//! Whether a rule is enforced.

use std::{fmt, str::FromStr};

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

impl Mode {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Shadow, Self::Off];

    /// What it is called, where rules are declared.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let named = Self::ALL.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

/// A word that is no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode `{0}`; use one of enforce, shadow, off")]
pub struct UnknownMode(String);
