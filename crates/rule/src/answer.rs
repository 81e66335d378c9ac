//! What to answer instead, in words that every wire can translate.

use crate::Limited;
use std::borrow::Cow;

/// An answer to a request that was not let through: a status, headers and a body, for a surface to translate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status, such as 429.
    pub status: u16,
    /// Headers, by names in lower case.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// The body.
    pub body: String,
}

impl From<&Limited> for Answer {
    fn from(limited: &Limited) -> Self {
        Self { status: 429, headers: Vec::new(), body: limited.to_string() }
    }
}
