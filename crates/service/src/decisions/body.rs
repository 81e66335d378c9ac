//! What a body asks: one thing, a list of things, or several that belong together.

use crate::reservations::{DEFAULT_EXPIRY, MAX_EXPIRY};
use std::{fmt, time::Duration};
use tidegate_core::{LARGEST_EXACT, suggest};
use tidegate_http_server::{ApiError, truncate};
use tidegate_policy::compile::{JsonObject, JsonValue};

/// What a body asks.
#[derive(Debug, PartialEq)]
pub struct QueryBatch<'a> {
    pub(super) form: BatchForm,
    pub(super) items: Vec<JsonMembers<'a>>,
}

/// How it is asked, and so how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchForm {
    /// `{…}`: one answer.
    Single,
    /// `[…]`: a list of answers.
    List,
    /// `{"asks": […]}`: a list of answers, each on its own.
    Batch,
    /// `{"asks": […], "all-or-nothing": true}`: all are charged, or none.
    AllOrNothing,
}

/// The members of one thing that is asked.
#[derive(Debug, PartialEq)]
pub struct JsonMembers<'a> {
    pub(super) position: QueryPosition,
    object: JsonObject<'a>,
}

/// Where it stands in the body, for whoever reads what is wrong; nothing if it is the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryPosition(BatchForm, usize);

impl fmt::Display for QueryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(form, index) = self;
        match form {
            BatchForm::Single => Ok(()),
            BatchForm::List => write!(f, "[{index}]: "),
            BatchForm::Batch | BatchForm::AllOrNothing => write!(f, "asks[{index}]: "),
        }
    }
}

/// The most that can be asked at once.
pub(super) const MAX_QUERIES: usize = 1_000;

impl<'a> QueryBatch<'a> {
    /// Reads it. Each thing may have these members and no others.
    pub fn parse(body: &'a [u8], known: &[&'static str]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(format!("the body is not JSON: {error}; send an object or a list"))
        })?;
        let (form, items) = match value {
            JsonValue::Object(members) if members.contains_key("asks") => parse_batch(members)?,
            JsonValue::Array(list) => (BatchForm::List, list),
            one => {
                let members = vec![JsonMembers::from_value(one, QueryPosition(BatchForm::Single, 0), known)?];
                return Ok(Self { form: BatchForm::Single, items: members });
            }
        };
        if items.len() > MAX_QUERIES {
            let problem = format!("{} things are asked at once; ask for {MAX_QUERIES} at most", items.len());
            return Err(ApiError::bad_request(problem));
        }
        let members = items
            .into_iter()
            .enumerate()
            .map(|(index, given)| JsonMembers::from_value(given, QueryPosition(form, index), known));
        Ok(Self { form, items: members.collect::<Result<_, _>>()? })
    }
}

fn parse_batch(members: JsonObject<'_>) -> Result<(BatchForm, Vec<JsonValue<'_>>), ApiError> {
    let (mut form, mut items) = (BatchForm::Batch, JsonValue::Null);
    for (name, value) in members.into_vec() {
        match (&*name, value) {
            ("asks", given) => items = given,
            ("all-or-nothing", JsonValue::Bool(true)) => form = BatchForm::AllOrNothing,
            ("all-or-nothing", JsonValue::Bool(false)) => form = BatchForm::Batch,
            ("all-or-nothing", _) => {
                return Err(ApiError::bad_request(
                    "`all-or-nothing` is no answer to yes or no; say true or false",
                ));
            }
            (name, _) => {
                return Err(unknown_member(
                    QueryPosition(BatchForm::Single, 0),
                    name,
                    &["asks", "all-or-nothing"],
                ));
            }
        }
    }
    match items {
        JsonValue::Array(list) => Ok((form, list)),
        _ => Err(ApiError::bad_request("`asks` is no list; say what is asked in `[…]`")),
    }
}

impl<'a> QueryBatch<'a> {
    /// What is said of each thing.
    pub fn items(&self) -> &[JsonMembers<'a>] {
        &self.items
    }
}

/// Whether a caller has confirmed what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// It has.
    Confirmed,
    /// It has not.
    Missing,
}

impl<'a> JsonMembers<'a> {
    /// Those of a body that asks one thing.
    pub fn parse(body: &'a [u8], known: &[&'static str]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(format!("the body is not JSON: {error}; send an object"))
        })?;
        Self::from_value(value, QueryPosition(BatchForm::Single, 0), known)
    }

    fn from_value(
        value: JsonValue<'a>,
        position: QueryPosition,
        known: &[&'static str],
    ) -> Result<Self, ApiError> {
        let JsonValue::Object(object) = value else {
            return Err(ApiError::bad_request(format!(
                "{position}an object is needed here; write {{\"{}\": …}}",
                known[0]
            )));
        };
        if let Some(name) = object.keys().find(|name| !known.contains(name)) {
            return Err(unknown_member(position, name, known));
        }
        Ok(Self { position, object })
    }

    /// What is said of it; the last, where it is said twice.
    pub fn get(&self, name: &str) -> Option<&JsonValue<'a>> {
        self.object.as_vec().iter().rev().find(|(said, _)| **said == *name).map(|(_, given)| given)
    }

    /// A text that must be there.
    pub fn text(&self, name: &str) -> Result<&str, ApiError> {
        match self.optional_text(name)? {
            Some(text) => Ok(text),
            None => Err(self.invalid(name, "is missing; say it")),
        }
    }

    /// A text, if it is there.
    pub fn optional_text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.get(name) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::Str(text)) => Ok(Some(text)),
            Some(_) => Err(self.invalid(name, "is not a text; put it in quotes")),
        }
    }

    /// A whole number, where there is one.
    pub fn whole_number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.get(name) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(number) => match whole_number(number) {
                Some(number) => Ok(Some(number)),
                None => Err(self.invalid(name, "is not a whole number; write one, 0 or more")),
            },
        }
    }

    /// A cost; `otherwise` where it is not said, if it need not be.
    /// Whether `confirm` is `true`: what weakens protection, or cuts off very many, has to be meant.
    pub fn confirmation(&self) -> Result<Confirmation, ApiError> {
        match self.get("confirm") {
            None | Some(JsonValue::Null | JsonValue::Bool(false)) => Ok(Confirmation::Missing),
            Some(JsonValue::Bool(true)) => Ok(Confirmation::Confirmed),
            Some(_) => Err(self.invalid("confirm", "is not `true` or `false`; write one of them")),
        }
    }

    pub(super) fn cost(&self, default: Option<u64>) -> Result<u64, ApiError> {
        let cost = match self.get("cost") {
            None | Some(JsonValue::Null) => {
                default.ok_or_else(|| self.invalid("cost", "is missing; say it"))?
            }
            Some(cost) => whole_number(cost)
                .filter(|cost| *cost <= LARGEST_EXACT)
                .ok_or_else(|| self.invalid("cost", "is not a whole number; write one, 0 or more"))?,
        };
        Ok(cost)
    }

    /// How long something is held that nobody settles.
    pub(super) fn expires(&self) -> Result<Duration, ApiError> {
        let time = self.seconds("expires", DEFAULT_EXPIRY, |seconds| seconds > 0.0);
        time.ok_or_else(|| {
            self.invalid("expires", "is no such time; write seconds, more than 0 and 3600 at most")
        })
    }

    /// How long whoever asks would wait for its turn.
    pub(super) fn max_wait(&self) -> Result<Duration, ApiError> {
        let time = self.seconds("within", Duration::ZERO, |seconds| seconds >= 0.0);
        time.ok_or_else(|| self.invalid("within", "is no such time; write seconds, from 0 to 3600"))
    }

    /// Seconds, `otherwise` where they are not said; `None` if that is no time.
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

/// A whole number, however it is written: 2.0 is one.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is whole, and in these bounds"
)]
fn whole_number(value: &JsonValue<'_>) -> Option<u64> {
    let JsonValue::Number(number) = value else { return None };
    const MAX: f64 = LARGEST_EXACT as f64;
    let rounded = || number.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=MAX).contains(number));
    number.as_u64().or_else(|| rounded().map(|number| number as u64))
}

fn unknown_member(position: QueryPosition, name: &str, known: &[&'static str]) -> ApiError {
    let fix = match suggest::closest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("use one of `{}`", known.join("`, `")),
    };
    ApiError::bad_request(format!("{position}unknown member `{}`; {fix}", truncate(name)))
}
