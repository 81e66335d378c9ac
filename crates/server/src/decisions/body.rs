//! What a body asks: one thing, a list of things, or several that belong together.

use super::problem::{Problem, shortened};
use serde_json::{Map, Value};
use std::time::Duration;
use tidegate_core::{LARGEST_EXACT, spelling};

/// What a body asks.
#[derive(Debug, PartialEq)]
pub(crate) struct Asked {
    pub(super) form: Form,
    pub(super) members: Vec<Members>,
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
pub(crate) struct Members {
    /// Where it stands in the body, for whoever reads what is wrong; nothing if it is the only one.
    pub(super) place: String,
    map: Map<String, Value>,
}

/// The most that can be asked at once.
pub(super) const MOST: usize = 1_000;
/// How long something is held, unless told otherwise.
const USUAL: Duration = Duration::from_secs(60);
/// The longest that anything is held.
const LONGEST: Duration = Duration::from_secs(3_600);

impl Asked {
    /// Reads it. Each thing may have these members and no others.
    pub(crate) fn read(body: &[u8], known: &[&'static str]) -> Result<Self, Problem> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            Problem::bad(format!("the body is not JSON: {error}; send an object or a list"))
        })?;
        let (form, list) = match value {
            Value::Object(map) if map.contains_key("asks") => {
                let (form, list) = together(map)?;
                (form, list)
            }
            Value::Array(list) => (Form::List, list),
            one => (Form::One, vec![one]),
        };
        if list.len() > MOST {
            let problem = format!("{} things are asked at once; ask for {MOST} at most", list.len());
            return Err(Problem::bad(problem));
        }
        let place = |index: usize| match form {
            Form::One => String::new(),
            Form::List => format!("[{index}]: "),
            Form::Asks | Form::Together => format!("asks[{index}]: "),
        };
        let members =
            list.into_iter().enumerate().map(|(index, value)| Members::of(value, place(index), known));
        Ok(Self { form, members: members.collect::<Result<_, _>>()? })
    }
}

fn together(mut map: Map<String, Value>) -> Result<(Form, Vec<Value>), Problem> {
    let form = match map.remove("all-or-nothing") {
        None | Some(Value::Bool(false)) => Form::Asks,
        Some(Value::Bool(true)) => Form::Together,
        Some(_) => return Err(Problem::bad("`all-or-nothing` is no answer to yes or no; say true or false")),
    };
    let asks = map.remove("asks");
    if let Some(name) = map.keys().next() {
        return Err(unknown("", name, &["asks", "all-or-nothing"]));
    }
    match asks {
        Some(Value::Array(list)) => Ok((form, list)),
        _ => Err(Problem::bad("`asks` is no list; say what is asked in `[…]`")),
    }
}

impl Members {
    /// Those of a body that asks one thing.
    pub(crate) fn one(body: &[u8], known: &[&'static str]) -> Result<Self, Problem> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| Problem::bad(format!("the body is not JSON: {error}; send an object")))?;
        Self::of(value, String::new(), known)
    }

    fn of(value: Value, place: String, known: &[&'static str]) -> Result<Self, Problem> {
        let Value::Object(map) = value else {
            return Err(Problem::bad(format!(
                "{place}an object is needed here; write {{\"{}\": …}}",
                known[0]
            )));
        };
        match map.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(unknown(&place, name, known)),
            None => Ok(Self { place, map }),
        }
    }

    /// A text that must be there.
    pub(crate) fn text(&self, name: &str) -> Result<&str, Problem> {
        match self.optional_text(name)? {
            Some(text) => Ok(text),
            None => Err(self.wrong(name, "is missing; say it")),
        }
    }

    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<&str>, Problem> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "is not a text; put it in quotes")),
        }
    }

    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }

    /// A whole number, where there is one.
    pub(crate) fn whole(&self, name: &str) -> Result<Option<u64>, Problem> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(number) => match number.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(name, "is not a whole number; write one, 0 or more")),
            },
        }
    }

    /// A cost; `otherwise` where it is not said, if it need not be.
    pub(super) fn cost(&self, otherwise: Option<u64>) -> Result<u64, Problem> {
        let cost = match self.map.get("cost") {
            None | Some(Value::Null) => otherwise.ok_or_else(|| self.wrong("cost", "is missing; say it"))?,
            Some(cost) => cost
                .as_u64()
                .filter(|cost| *cost <= LARGEST_EXACT)
                .ok_or_else(|| self.wrong("cost", "is not a whole number; write one, 0 or more"))?,
        };
        Ok(cost)
    }

    /// How long something is held that nobody settles.
    pub(super) fn expires(&self) -> Result<Duration, Problem> {
        let seconds = match self.map.get("expires") {
            None | Some(Value::Null) => return Ok(USUAL),
            Some(seconds) => seconds.as_f64().filter(|seconds| *seconds > 0.0),
        };
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .filter(|time| *time <= LONGEST)
            .ok_or_else(|| {
                self.wrong("expires", "is no such time; write seconds, more than 0 and 3600 at most")
            })
    }

    fn wrong(&self, name: &str, what: &str) -> Problem {
        Problem::bad(format!("{}`{name}` {what}", self.place))
    }
}

fn unknown(place: &str, name: &str, known: &[&'static str]) -> Problem {
    let fix = match spelling::meant(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("use one of `{}`", known.join("`, `")),
    };
    Problem::bad(format!("{place}unknown member `{}`; {fix}", shortened(name)))
}
