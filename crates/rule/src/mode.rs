//! The mode of a rule.

use std::{fmt, str::FromStr};

/// Whether a rule is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Rejects what exceeds the limit.
    #[default]
    Enforce,
    /// Counts, and rejects nothing.
    Shadow,
    /// Neither counts nor rejects.
    Off,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Shadow, Self::Off];

    /// The name in declarations and policies.
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

/// An invalid name of a [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode `{0}`; use one of enforce, shadow, off")]
pub struct UnknownMode(String);
