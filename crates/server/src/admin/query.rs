//! What stands behind the `?` of a question.

use crate::api_error::{ApiError, shortened};
use http::Uri;
use std::{collections::BTreeMap, ops::RangeInclusive};
use tidegate_core::spelling;
use tidegate_rule::request::{Plus, decoded};

/// Parameters by their names.
pub(super) struct Query(BTreeMap<&'static str, String>);

impl Query {
    /// Reads them; only these are known.
    pub(super) fn read(uri: &Uri, known: &[&'static str]) -> Result<Self, ApiError> {
        let mut found = BTreeMap::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(known) = known.iter().find(|known| **known == name) else {
                let fix = match spelling::meant(name, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if known.is_empty() => "leave it out".to_owned(),
                    None => format!("use one of `{}`", known.join("`, `")),
                };
                return Err(ApiError::bad(format!("unknown parameter `{}`; {fix}", shortened(name))));
            };
            let value = decoded(value.as_bytes(), Plus::IsSpace);
            found.insert(*known, String::from_utf8_lossy(&value).into_owned());
        }
        Ok(Self(found))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A number within a range; `usual` where it is left out.
    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<usize>,
        usual: usize,
    ) -> Result<usize, ApiError> {
        let Some(text) = self.text(name) else { return Ok(usual) };
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            let (first, last) = range.into_inner();
            let text = shortened(text);
            ApiError::bad(format!("`{name}` is `{text}`; use a number from {first} to {last}"))
        })
    }
}
