//! The query parameters of an API request.

use crate::{ApiError, truncate};
use http::Uri;
use std::{fmt::Display, ops::RangeInclusive, str::FromStr};
use tidegate_core::suggest;
use tidegate_rule::request::{PlusDecoding, percent_decode, query_parameters};

/// Parameters by name.
pub struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Parses the query of a URI. Parameters other than `known` are an error.
    pub fn parse(uri: &Uri, known: &[&'static str]) -> Result<Self, ApiError> {
        let mut parsed = Vec::new();
        for (name, value) in query_parameters(uri.query().unwrap_or_default()) {
            if name.is_empty() && value.is_empty() {
                continue;
            }
            let name = String::from_utf8_lossy(&name);
            let known =
                known.iter().find(|known| **known == name).ok_or_else(|| unknown_parameter(&name, known))?;
            let value = percent_decode(value, PlusDecoding::Space);
            parsed.push((*known, String::from_utf8_lossy(&value).into_owned()));
        }
        Ok(Self(parsed))
    }

    /// The last value of a parameter.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rfind(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// A number within a range; `default` if the parameter is absent.
    pub fn number<N>(&self, name: &str, range: RangeInclusive<N>, default: N) -> Result<N, ApiError>
    where
        N: PartialOrd + FromStr + Display,
    {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            let (first, last) = range.into_inner();
            let text = truncate(text);
            ApiError::bad_request(format!("`{name}` is `{text}`; use a number from {first} to {last}"))
        })
    }
}

fn unknown_parameter(name: &str, known: &[&'static str]) -> ApiError {
    let fix = match suggest::closest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "remove it".to_owned(),
        None => format!("use one of `{}`", known.join("`, `")),
    };
    ApiError::bad_request(format!("unknown parameter `{}`; {fix}", truncate(name)))
}
