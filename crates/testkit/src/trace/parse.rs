//! Reads the lines of a story.

use super::{Deed, Expectation, Expected, Line, TraceError};
use tidegate_core::{CarryOver, Demand, Micros, Outcome, Quota, Retry};

pub(super) fn lines(text: &str) -> Result<Vec<Line>, TraceError> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let told = line.split('#').next().unwrap_or_default();
        let mut words = Words { rest: told.trim() };
        if words.rest.is_empty() {
            continue;
        }
        let number = index + 1;
        let deed = words.deed().map_err(|problem| TraceError::new(text, number, problem))?;
        lines.push(Line { number, deed });
    }
    Ok(lines)
}

/// What is left of a line.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn deed(&mut self) -> Result<Deed, String> {
        match self.next() {
            "quota" => return self.quota().map(Deed::Start),
            "at" => {}
            other => return Err(format!("a line starts with `quota` or `at`, not `{other}`")),
        }
        let at = self.time()?;
        match self.next() {
            "cost" => self.ask(at, Micros::ZERO),
            "reserve" => self.ask(at, Micros::MAX),
            "force" => {
                let demand = Demand::forced(self.number()?);
                self.answer(at, demand, None)
            }
            "peek" => {
                let demand = Demand::probe(self.number_if_next()?.unwrap_or(0));
                self.answer(at, demand, None)
            }
            "cancel" => {
                let name = self.next().to_owned();
                let cost = self.number_if_next()?;
                self.end()?;
                Ok(Deed::Cancel { at, name, cost })
            }
            "change" => self.change(at),
            "create" => self.end().map(|()| Deed::Create { at }),
            other => Err(format!("`{other}` is no deed")),
        }
    }

    fn ask(&mut self, at: Micros, patience: Micros) -> Result<Deed, String> {
        let mut demand = Demand::with_max_wait(self.number()?, patience);
        let mut name = None;
        loop {
            if self.take("within") {
                demand.max_wait = self.time()?;
            } else if self.take("on credit") {
                demand = demand.with_overdraft();
            } else if self.take("as") {
                name = Some(self.next().to_owned());
            } else {
                return self.answer(at, demand, name);
            }
        }
    }

    fn answer(&mut self, at: Micros, demand: Demand, name: Option<String>) -> Result<Deed, String> {
        let mut expected = Expected::default();
        while !self.rest.is_empty() {
            match self.next() {
                "allow" => expected.outcome = Some(Expectation::Exactly(Outcome::Allow)),
                "delay" if self.rest.starts_with(|c: char| c.is_ascii_digit()) => {
                    expected.outcome = Some(Expectation::Exactly(Outcome::Delay(self.time()?)));
                }
                "delay" => expected.outcome = Some(Expectation::SomeDelay),
                "deny" => expected.outcome = Some(self.denial()?),
                "remaining" => expected.remaining = Some(self.number()?),
                "reset" => expected.reset = Some(self.time()?),
                "limit" => expected.limit = Some(self.number()?),
                other => return Err(format!("`{other}` is no answer")),
            }
        }
        Ok(Deed::Ask { at, demand, name, expected })
    }

    fn denial(&mut self) -> Result<Expectation, String> {
        let retry = if self.take("retry") {
            Retry::After(self.time()?)
        } else if self.take("never") {
            Retry::Never
        } else if self.take("until a release") {
            Retry::WhenReleased
        } else {
            return Ok(Expectation::SomeDenial);
        };
        Ok(Expectation::Exactly(Outcome::Deny(retry)))
    }

    fn change(&mut self, at: Micros) -> Result<Deed, String> {
        let how = match self.next() {
            "quota" => return Ok(Deed::Change { at, quota: self.quota()?, how: CarryOver::default() }),
            "reset" => CarryOver::Reset,
            other => return Err(format!("`{other}` is neither `quota` nor `reset`")),
        };
        match self.next() {
            "quota" => Ok(Deed::Change { at, quota: self.quota()?, how }),
            other => Err(format!("`quota` is missing before `{other}`")),
        }
    }

    /// A quota takes all that is left.
    fn quota(&mut self) -> Result<Quota, String> {
        let quota = self.rest.parse::<Quota>();
        self.rest = "";
        quota.map_err(|error| format!("{}; {}", error.problem(), error.fix()))
    }

    fn number(&mut self) -> Result<u64, String> {
        let word = self.next();
        word.parse().map_err(|_| format!("`{word}` is no whole number"))
    }

    fn number_if_next(&mut self) -> Result<Option<u64>, String> {
        match self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            true => self.number().map(Some),
            false => Ok(None),
        }
    }

    /// A time such as `100ms` or `3.9s`.
    fn time(&mut self) -> Result<Micros, String> {
        let word = self.next();
        word.parse().map_err(|_| format!("`{word}` is no time"))
    }

    fn end(&mut self) -> Result<(), String> {
        match self.rest {
            "" => Ok(()),
            rest => Err(format!("`{rest}` does not belong here")),
        }
    }

    /// Takes `words` if they come next.
    fn take(&mut self, words: &str) -> bool {
        match self.rest.strip_prefix(words) {
            Some(rest) if rest.is_empty() || rest.starts_with(char::is_whitespace) => {
                self.rest = rest.trim_start();
                true
            }
            _ => false,
        }
    }

    fn next(&mut self) -> &'a str {
        let (word, rest) = self.rest.split_once(char::is_whitespace).unwrap_or((self.rest, ""));
        self.rest = rest.trim_start();
        word
    }
}
