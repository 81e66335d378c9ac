//! Parses request bodies: one query, a list of queries, or a batch.

use crate::reservations::{DEFAULT_EXPIRY, MAX_EXPIRY};
use std::{fmt, time::Duration};
use tidegate_core::{LARGEST_EXACT, suggest};
use tidegate_http_server::{ApiError, truncate};
use tidegate_policy::compile::{JsonObject, JsonValue};

/// The queries of a request body.
#[derive(Debug, PartialEq)]
pub struct QueryBatch<'a> {
    pub(super) form: BodyForm,
    pub(super) items: Vec<JsonMembers<'a>>,
}

/// The form of the body, which decides the form of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    /// `{…}`: one result.
    SingleQuery,
    /// `[…]`: a list of results.
    QueryList,
    /// `{"queries": […]}`: a list of independent results.
    Batch,
    /// `{"queries": […], "all-or-nothing": true}`: all queries are charged, or none.
    AllOrNothing,
}

/// The members of one query.
#[derive(Debug, PartialEq)]
pub struct JsonMembers<'a> {
    pub(super) position: QueryPosition,
    object: JsonObject<'a>,
}

/// The position of a query in the body, as the prefix of an error; empty for a single query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryPosition(BodyForm, usize);

impl fmt::Display for QueryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(form, index) = self;
        match form {
            BodyForm::SingleQuery => Ok(()),
            BodyForm::QueryList => write!(f, "[{index}]: "),
            BodyForm::Batch | BodyForm::AllOrNothing => write!(f, "queries[{index}]: "),
        }
    }
}

/// The maximum number of queries in one body.
pub(super) const MAX_QUERIES: usize = 1_000;

impl<'a> QueryBatch<'a> {
    /// Parses a body. Each query may have the members in `known` and no others.
    pub fn parse(body: &'a [u8], known: &[&'static str]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(format!("invalid JSON body: {error}; send an object or a list"))
        })?;
        let (form, items) = match value {
            JsonValue::Object(members) if members.contains_key("queries") => parse_batch(members)?,
            JsonValue::Array(list) => (BodyForm::QueryList, list),
            value => {
                let members =
                    vec![JsonMembers::from_value(value, QueryPosition(BodyForm::SingleQuery, 0), known)?];
                return Ok(Self { form: BodyForm::SingleQuery, items: members });
            }
        };
        if items.len() > MAX_QUERIES {
            let problem = format!("too many queries: {}; send at most {MAX_QUERIES}", items.len());
            return Err(ApiError::bad_request(problem));
        }
        let members = items
            .into_iter()
            .enumerate()
            .map(|(index, value)| JsonMembers::from_value(value, QueryPosition(form, index), known));
        Ok(Self { form, items: members.collect::<Result<_, _>>()? })
    }
}

fn parse_batch(members: JsonObject<'_>) -> Result<(BodyForm, Vec<JsonValue<'_>>), ApiError> {
    let (mut form, mut items) = (BodyForm::Batch, JsonValue::Null);
    for (name, value) in members.into_vec() {
        match (&*name, value) {
            ("queries", value) => items = value,
            ("all-or-nothing", JsonValue::Bool(true)) => form = BodyForm::AllOrNothing,
            ("all-or-nothing", JsonValue::Bool(false)) => form = BodyForm::Batch,
            ("all-or-nothing", _) => {
                return Err(ApiError::bad_request("`all-or-nothing` is not a boolean; use true or false"));
            }
            (name, _) => {
                return Err(unknown_member(
                    QueryPosition(BodyForm::SingleQuery, 0),
                    name,
                    &["queries", "all-or-nothing"],
                ));
            }
        }
    }
    match items {
        JsonValue::Array(list) => Ok((form, list)),
        _ => Err(ApiError::bad_request("`queries` is not a list; put the queries in `[…]`")),
    }
}

impl<'a> QueryBatch<'a> {
    /// The members of each query.
    pub fn items(&self) -> &[JsonMembers<'a>] {
        &self.items
    }
}

/// Whether the body confirms a risky operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// `confirm` is `true`.
    Confirmed,
    /// `confirm` is absent or `false`.
    Missing,
}

impl<'a> JsonMembers<'a> {
    /// Parses a body with exactly one query.
    pub fn parse(body: &'a [u8], known: &[&'static str]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("invalid JSON body: {error}; send an object")))?;
        Self::from_value(value, QueryPosition(BodyForm::SingleQuery, 0), known)
    }

    fn from_value(
        value: JsonValue<'a>,
        position: QueryPosition,
        known: &[&'static str],
    ) -> Result<Self, ApiError> {
        let JsonValue::Object(object) = value else {
            return Err(ApiError::bad_request(format!(
                "{position}expected an object; write {{\"{}\": …}}",
                known[0]
            )));
        };
        if let Some(name) = object.keys().find(|name| !known.contains(name)) {
            return Err(unknown_member(position, name, known));
        }
        Ok(Self { position, object })
    }

    /// Returns the value of a member; the last value if the member is duplicated.
    pub fn get(&self, name: &str) -> Option<&JsonValue<'a>> {
        self.object.as_vec().iter().rev().find(|(member, _)| **member == *name).map(|(_, value)| value)
    }

    /// Returns a required string.
    pub fn text(&self, name: &str) -> Result<&str, ApiError> {
        match self.optional_text(name)? {
            Some(text) => Ok(text),
            None => Err(self.invalid(name, "is missing; add it")),
        }
    }

    /// Returns an optional string.
    pub fn optional_text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.get(name) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::Str(text)) => Ok(Some(text)),
            Some(_) => Err(self.invalid(name, "is not a string; put it in quotes")),
        }
    }

    /// Returns an optional whole number.
    pub fn whole_number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.get(name) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(number) => match whole_number(number) {
                Some(number) => Ok(Some(number)),
                None => Err(self.invalid(name, "is not a whole number; write one, 0 or more")),
            },
        }
    }

    /// Returns whether `confirm` is `true`. Operations that weaken protection or deny many clients require it.
    pub fn confirmation(&self) -> Result<Confirmation, ApiError> {
        match self.get("confirm") {
            None | Some(JsonValue::Null | JsonValue::Bool(false)) => Ok(Confirmation::Missing),
            Some(JsonValue::Bool(true)) => Ok(Confirmation::Confirmed),
            Some(_) => Err(self.invalid("confirm", "is not `true` or `false`; write one of them")),
        }
    }

    /// Returns the cost; `default` if it is absent. Without a default the cost is required.
    pub(super) fn cost(&self, default: Option<u64>) -> Result<u64, ApiError> {
        let cost = match self.get("cost") {
            None | Some(JsonValue::Null) => {
                default.ok_or_else(|| self.invalid("cost", "is missing; add it"))?
            }
            Some(cost) => whole_number(cost)
                .filter(|cost| *cost <= LARGEST_EXACT)
                .ok_or_else(|| self.invalid("cost", "is not a whole number; write one, 0 or more"))?,
        };
        Ok(cost)
    }

    /// Returns how long an unsettled reservation or permit lives.
    pub(super) fn expires(&self) -> Result<Duration, ApiError> {
        let time = self.seconds("expires", DEFAULT_EXPIRY, |seconds| seconds > 0.0);
        time.ok_or_else(|| {
            self.invalid("expires", "is out of range; write seconds, more than 0 and at most 3600")
        })
    }

    /// Returns how long the caller accepts to wait for capacity.
    pub(super) fn max_wait(&self) -> Result<Duration, ApiError> {
        let time = self.seconds("max-wait", Duration::ZERO, |seconds| seconds >= 0.0);
        time.ok_or_else(|| self.invalid("max-wait", "is out of range; write seconds, from 0 to 3600"))
    }

    /// Parses seconds; `default` if the member is absent, `None` if the value is invalid.
    fn seconds(&self, name: &str, default: Duration, is_valid: impl Fn(f64) -> bool) -> Option<Duration> {
        let seconds = match self.get(name) {
            None | Some(JsonValue::Null) => return Some(default),
            Some(JsonValue::Number(seconds)) => seconds.as_f64().filter(|seconds| is_valid(*seconds))?,
            Some(_) => return None,
        };
        Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= MAX_EXPIRY)
    }

    fn invalid(&self, name: &str, problem: &str) -> ApiError {
        ApiError::bad_request(format!("{}`{name}` {problem}", self.position))
    }
}

/// Converts a JSON number to a whole number; 2.0 is one too.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is whole and within bounds"
)]
fn whole_number(value: &JsonValue<'_>) -> Option<u64> {
    let JsonValue::Number(number) = value else { return None };
    const MAX: f64 = LARGEST_EXACT as f64;
    let rounded = || number.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=MAX).contains(number));
    number.as_u64().or_else(|| rounded().map(|number| number as u64))
}

fn unknown_member(position: QueryPosition, name: &str, known: &[&'static str]) -> ApiError {
    let fix = match suggest::closest(name, known.iter().copied()) {
        Some(closest) => format!("did you mean `{closest}`?"),
        None => format!("use one of `{}`", known.join("`, `")),
    };
    ApiError::bad_request(format!("{position}unknown member `{}`; {fix}", truncate(name)))
}
