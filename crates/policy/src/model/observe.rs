//! What is kept of single requests, for operators.

use tidegate_core::Share;

/// `observe: { denials: 10000, keys: hashed, history: 10000, share: 10% }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observe {
    /// `denials`: how many of the last ones are kept, each with an id; none where it is left out.
    pub denials: u64,
    /// `keys`: what is shown of keys, addresses and users.
    pub keys: KeysShown,
    /// `history`: how many of the last requests are kept; none where it is left out.
    pub history: u64,
    /// `share`: of the clients of which requests are kept; all where it is left out.
    pub share: Share,
}

/// What operators see of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeysShown {
    /// `plain`: the keys.
    #[default]
    Plain,
    /// `hashed`: a number that stands for a key; the key itself is not kept.
    Hashed,
}

impl Default for Observe {
    fn default() -> Self {
        Self { denials: 0, keys: KeysShown::Plain, history: 0, share: Share::ALL }
    }
}
