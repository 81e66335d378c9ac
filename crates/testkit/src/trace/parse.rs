//! Parses the lines of a trace.

use super::{ExpectedOutcome, TraceError, TraceExpectation, TraceLine, TraceOp};
use tidegate_core::{CarryOver, Demand, Micros, Outcome, Quota, Retry};

pub(super) fn parse_lines(text: &str) -> Result<Vec<TraceLine>, TraceError> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default();
        let mut words = LineParser { rest: content.trim() };
        if words.rest.is_empty() {
            continue;
        }
        let number = index + 1;
        let op = words.parse_op().map_err(|problem| TraceError::new(text, number, problem))?;
        lines.push(TraceLine { number, op });
    }
    Ok(lines)
}

/// The unparsed part of a line.
struct LineParser<'a> {
    rest: &'a str,
}

impl<'a> LineParser<'a> {
    fn parse_op(&mut self) -> Result<TraceOp, String> {
        match self.next_word() {
            "quota" => return self.parse_quota().map(TraceOp::Start),
            "at" => {}
            other => return Err(format!("expected `quota` or `at`, got `{other}`")),
        }
        let at = self.parse_time()?;
        match self.next_word() {
            "cost" => self.parse_check(at, Micros::ZERO),
            "reserve" => self.parse_check(at, Micros::MAX),
            "force" => {
                let demand = Demand::forced(self.parse_number()?);
                self.parse_expected(at, demand, None)
            }
            "peek" => {
                let demand = Demand::peek(self.parse_optional_number()?.unwrap_or(0));
                self.parse_expected(at, demand, None)
            }
            "cancel" => {
                let name = self.next_word().to_owned();
                let cost = self.parse_optional_number()?;
                self.expect_end()?;
                Ok(TraceOp::Cancel { at, name, cost })
            }
            "change" => self.parse_change(at),
            "create" => self.expect_end().map(|()| TraceOp::Create { at }),
            other => Err(format!("unknown operation `{other}`")),
        }
    }

    fn parse_check(&mut self, at: Micros, max_wait: Micros) -> Result<TraceOp, String> {
        let mut demand = Demand::with_max_wait(self.parse_number()?, max_wait);
        let mut name = None;
        loop {
            if self.take("within") {
                demand.max_wait = self.parse_time()?;
            } else if self.take("on credit") {
                demand = demand.with_overdraft();
            } else if self.take("as") {
                name = Some(self.next_word().to_owned());
            } else {
                return self.parse_expected(at, demand, name);
            }
        }
    }

    fn parse_expected(
        &mut self,
        at: Micros,
        demand: Demand,
        name: Option<String>,
    ) -> Result<TraceOp, String> {
        let mut expected = TraceExpectation::default();
        while !self.rest.is_empty() {
            match self.next_word() {
                "allow" => expected.outcome = Some(ExpectedOutcome::Exact(Outcome::Allow)),
                "delay" if self.rest.starts_with(|c: char| c.is_ascii_digit()) => {
                    expected.outcome = Some(ExpectedOutcome::Exact(Outcome::Delay(self.parse_time()?)));
                }
                "delay" => expected.outcome = Some(ExpectedOutcome::AnyDelay),
                "deny" => expected.outcome = Some(self.parse_denial()?),
                "remaining" => expected.remaining = Some(self.parse_number()?),
                "reset" => expected.reset = Some(self.parse_time()?),
                "limit" => expected.limit = Some(self.parse_number()?),
                other => return Err(format!("unknown expectation `{other}`")),
            }
        }
        Ok(TraceOp::Check { at, demand, name, expected })
    }

    fn parse_denial(&mut self) -> Result<ExpectedOutcome, String> {
        let retry = if self.take("retry") {
            Retry::After(self.parse_time()?)
        } else if self.take("never") {
            Retry::Never
        } else if self.take("until a release") {
            Retry::WhenReleased
        } else {
            return Ok(ExpectedOutcome::AnyDenial);
        };
        Ok(ExpectedOutcome::Exact(Outcome::Deny(retry)))
    }

    fn parse_change(&mut self, at: Micros) -> Result<TraceOp, String> {
        let how = match self.next_word() {
            "quota" => {
                return Ok(TraceOp::Change {
                    at,
                    quota: self.parse_quota()?,
                    carry_over: CarryOver::default(),
                });
            }
            "reset" => CarryOver::Reset,
            other => return Err(format!("expected `quota` or `reset`, got `{other}`")),
        };
        match self.next_word() {
            "quota" => Ok(TraceOp::Change { at, quota: self.parse_quota()?, carry_over: how }),
            other => Err(format!("expected `quota`, got `{other}`")),
        }
    }

    /// Parses the whole remaining line as a quota.
    fn parse_quota(&mut self) -> Result<Quota, String> {
        let quota = self.rest.parse::<Quota>();
        self.rest = "";
        quota.map_err(|error| format!("{}; {}", error.problem(), error.fix()))
    }

    fn parse_number(&mut self) -> Result<u64, String> {
        let word = self.next_word();
        word.parse().map_err(|_| format!("invalid number `{word}`"))
    }

    fn parse_optional_number(&mut self) -> Result<Option<u64>, String> {
        match self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            true => self.parse_number().map(Some),
            false => Ok(None),
        }
    }

    /// Parses a time such as `100ms` or `3.9s`.
    fn parse_time(&mut self) -> Result<Micros, String> {
        let word = self.next_word();
        word.parse().map_err(|_| format!("invalid time `{word}`"))
    }

    fn expect_end(&mut self) -> Result<(), String> {
        match self.rest {
            "" => Ok(()),
            rest => Err(format!("unexpected `{rest}` at the end of the line")),
        }
    }

    /// Consumes `words` if the line continues with them.
    fn take(&mut self, words: &str) -> bool {
        match self.rest.strip_prefix(words) {
            Some(rest) if rest.is_empty() || rest.starts_with(char::is_whitespace) => {
                self.rest = rest.trim_start();
                true
            }
            _ => false,
        }
    }

    fn next_word(&mut self) -> &'a str {
        let (word, rest) = self.rest.split_once(char::is_whitespace).unwrap_or((self.rest, ""));
        self.rest = rest.trim_start();
        word
    }
}
