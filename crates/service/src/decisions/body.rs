//! What a body asks: one thing, a list of things, or several that belong together.

use crate::reservations::{DEFAULT_EXPIRY, MAX_EXPIRY};
use std::{fmt, time::Duration};
use tidegate_core::{LARGEST_EXACT, suggest};
use tidegate_http_server::{ApiError, shortened};
use tidegate_policy::compile::{JsonObject, JsonValue};

/// What a body asks.
#[derive(Debug, PartialEq)]
pub struct Asked<'a> {
    pub(super) form: Form,
    pub(super) members: Vec<Members<'a>>,
}

/// How it is asked, and so how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `{…}`: one answer.
    One,
    /// `[…]`: a list of answers.
    List,
    /// `{"asks": […]}`: a list of answers, each on its own.
    Asks,
    /// `{"asks": […], "all-or-nothing": true}`: all are charged, or none.
    Together,
}

/// The members of one thing that is asked.
#[derive(Debug, PartialEq)]
pub struct Members<'a> {
    pub(super) place: Place,
    each: JsonObject<'a>,
}

/// Where it stands in the body, for whoever reads what is wrong; nothing if it is the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(Form, usize);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(form, index) = self;
        match form {
            Form::One => Ok(()),
            Form::List => write!(f, "[{index}]: "),
            Form::Asks | Form::Together => write!(f, "asks[{index}]: "),
        }
    }
}

/// The most that can be asked at once.
pub(super) const MOST: usize = 1_000;

impl<'a> Asked<'a> {
    /// Reads it. Each thing may have these members and no others.
    pub fn read(body: &'a [u8], known: &[&'static str]) -> Result<Self, ApiError> {
        let given = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad(format!("the body is not JSON: {error}; send an object or a list"))
        })?;
        let (form, list) = match given {
            JsonValue::Object(members) if members.contains_key("asks") => together(members)?,
            JsonValue::Array(list) => (Form::List, list),
            one => {
                let members = vec![Members::of(one, Place(Form::One, 0), known)?];
                return Ok(Self { form: Form::One, members });
            }
        };
        if list.len() > MOST {
            let problem = format!("{} things are asked at once; ask for {MOST} at most", list.len());
            return Err(ApiError::bad(problem));
        }
        let members =
            list.into_iter().enumerate().map(|(index, given)| Members::of(given, Place(form, index), known));
        Ok(Self { form, members: members.collect::<Result<_, _>>()? })
    }
}

fn together(members: JsonObject<'_>) -> Result<(Form, Vec<JsonValue<'_>>), ApiError> {
    let (mut form, mut asks) = (Form::Asks, JsonValue::Null);
    for (name, given) in members.into_vec() {
        match (&*name, given) {
            ("asks", given) => asks = given,
            ("all-or-nothing", JsonValue::Bool(true)) => form = Form::Together,
            ("all-or-nothing", JsonValue::Bool(false)) => form = Form::Asks,
            ("all-or-nothing", _) => {
                return Err(ApiError::bad("`all-or-nothing` is no answer to yes or no; say true or false"));
            }
            (name, _) => return Err(unknown(Place(Form::One, 0), name, &["asks", "all-or-nothing"])),
        }
    }
    match asks {
        JsonValue::Array(list) => Ok((form, list)),
        _ => Err(ApiError::bad("`asks` is no list; say what is asked in `[…]`")),
    }
}

impl<'a> Asked<'a> {
    /// What is said of each thing.
    pub fn each(&self) -> &[Members<'a>] {
        &self.members
    }
}

/// Whether a caller has confirmed what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// It has.
    Given,
    /// It has not.
    Missing,
}

impl<'a> Members<'a> {
    /// Those of a body that asks one thing.
    pub fn one(body: &'a [u8], known: &[&'static str]) -> Result<Self, ApiError> {
        let given = serde_json::from_slice(body)
            .map_err(|error| ApiError::bad(format!("the body is not JSON: {error}; send an object")))?;
        Self::of(given, Place(Form::One, 0), known)
    }

    fn of(given: JsonValue<'a>, place: Place, known: &[&'static str]) -> Result<Self, ApiError> {
        let JsonValue::Object(each) = given else {
            return Err(ApiError::bad(format!(
                "{place}an object is needed here; write {{\"{}\": …}}",
                known[0]
            )));
        };
        if let Some(name) = each.keys().find(|name| !known.contains(name)) {
            return Err(unknown(place, name, known));
        }
        Ok(Self { place, each })
    }

    /// What is said of it; the last, where it is said twice.
    pub fn given(&self, name: &str) -> Option<&JsonValue<'a>> {
        self.each.as_vec().iter().rev().find(|(said, _)| **said == *name).map(|(_, given)| given)
    }

    /// A text that must be there.
    pub fn text(&self, name: &str) -> Result<&str, ApiError> {
        match self.optional_text(name)? {
            Some(text) => Ok(text),
            None => Err(self.wrong(name, "is missing; say it")),
        }
    }

    /// A text, if it is there.
    pub fn optional_text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.given(name) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::Str(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "is not a text; put it in quotes")),
        }
    }

    /// A whole number, where there is one.
    pub fn whole(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.given(name) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(number) => match whole(number) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(name, "is not a whole number; write one, 0 or more")),
            },
        }
    }

    /// A cost; `otherwise` where it is not said, if it need not be.
    /// Whether `confirm` is `true`: what weakens protection, or cuts off very many, has to be meant.
    pub fn confirmation(&self) -> Result<Confirmation, ApiError> {
        match self.given("confirm") {
            None | Some(JsonValue::Null | JsonValue::Bool(false)) => Ok(Confirmation::Missing),
            Some(JsonValue::Bool(true)) => Ok(Confirmation::Given),
            Some(_) => Err(self.wrong("confirm", "is not `true` or `false`; write one of them")),
        }
    }

    pub(super) fn cost(&self, otherwise: Option<u64>) -> Result<u64, ApiError> {
        let cost = match self.given("cost") {
            None | Some(JsonValue::Null) => {
                otherwise.ok_or_else(|| self.wrong("cost", "is missing; say it"))?
            }
            Some(cost) => whole(cost)
                .filter(|cost| *cost <= LARGEST_EXACT)
                .ok_or_else(|| self.wrong("cost", "is not a whole number; write one, 0 or more"))?,
        };
        Ok(cost)
    }

    /// How long something is held that nobody settles.
    pub(super) fn expires(&self) -> Result<Duration, ApiError> {
        let time = self.time("expires", DEFAULT_EXPIRY, |seconds| seconds > 0.0);
        time.ok_or_else(|| {
            self.wrong("expires", "is no such time; write seconds, more than 0 and 3600 at most")
        })
    }

    /// How long whoever asks would wait for its turn.
    pub(super) fn within(&self) -> Result<Duration, ApiError> {
        let time = self.time("within", Duration::ZERO, |seconds| seconds >= 0.0);
        time.ok_or_else(|| self.wrong("within", "is no such time; write seconds, from 0 to 3600"))
    }

    /// Seconds, `otherwise` where they are not said; `None` if that is no time.
    fn time(&self, name: &str, otherwise: Duration, is_meant: impl Fn(f64) -> bool) -> Option<Duration> {
        let seconds = match self.given(name) {
            None | Some(JsonValue::Null) => return Some(otherwise),
            Some(JsonValue::Number(seconds)) => seconds.as_f64().filter(|seconds| is_meant(*seconds))?,
            Some(_) => return None,
        };
        Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= MAX_EXPIRY)
    }

    fn wrong(&self, name: &str, what: &str) -> ApiError {
        ApiError::bad(format!("{}`{name}` {what}", self.place))
    }
}

/// A whole number, however it is written: 2.0 is one.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is whole, and in these bounds"
)]
fn whole(given: &JsonValue<'_>) -> Option<u64> {
    let JsonValue::Number(number) = given else { return None };
    const MOST: f64 = LARGEST_EXACT as f64;
    let rounded = || number.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=MOST).contains(number));
    number.as_u64().or_else(|| rounded().map(|number| number as u64))
}

fn unknown(place: Place, name: &str, known: &[&'static str]) -> ApiError {
    let fix = match suggest::closest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("use one of `{}`", known.join("`, `")),
    };
    ApiError::bad(format!("{place}unknown member `{}`; {fix}", shortened(name)))
}
