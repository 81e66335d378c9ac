//! Breaker scripts as text, one word per step.
//!
//! | word | step |
//! |---|---|
//! | `+3s`, `+500ms` | time passes |
//! | `S` `E` `I` | a call is admitted and succeeds, fails, or is ignored, at once |
//! | `S:5s` `E:5s` | the same, after that time |
//! | `ask` | a call is admitted; `S!`, `E!` or `I!` records the outcome of the oldest such call |
//! | `no` `no:2s` | a call is rejected, with this retry time |
//! | `=open` | the state now |
//! | `60%` `slow=60%` | a rate now; `-%` and `slow=-%` if it is unknown |
//! | `close` `force` `disable` `metrics` `open:2s` | a manual change |

use std::collections::VecDeque;
use tidegate_core::Micros;
use tidegate_overload::{
    BreakerBuilder, CallOutcome, Rejection,
    breaker::{BreakerMachine, Generation},
};

pub(crate) struct BreakerScript {
    pub(crate) breaker: BreakerMachine,
    pub(crate) now: Micros,
    pub(crate) in_flight: VecDeque<Generation>,
}

/// Runs a script, and panics with the step that failed.
pub(crate) fn run_script(name: &str, settings: BreakerBuilder, text: &str) {
    let mut script = BreakerScript {
        breaker: BreakerMachine::new(settings.build().unwrap()),
        now: Micros::from_secs(1_000),
        in_flight: VecDeque::new(),
    };
    for (index, word) in text.split_whitespace().enumerate() {
        let context =
            format!("{name}: word {} `{word}`, {:?}", index + 1, script.breaker.snapshot(script.now));
        if let Err(problem) = script.run_step(word) {
            panic!("{context}: {problem}");
        }
    }
}

impl BreakerScript {
    fn run_step(&mut self, word: &str) -> Result<(), String> {
        let (verb, argument) = word.split_once(':').unwrap_or((word, ""));
        let length = if argument.is_empty() { Micros::ZERO } else { parse_time(argument) };
        match verb {
            "S" | "E" | "I" => {
                let generation = self.try_acquire().map_err(|rejection| rejection.to_string())?;
                self.record(generation, parse_outcome(verb), length);
            }
            "ask" => {
                let generation = self.try_acquire().map_err(|rejection| rejection.to_string())?;
                self.in_flight.push_back(generation);
            }
            "S!" | "E!" | "I!" => {
                let generation = self.in_flight.pop_front().ok_or("no call in flight")?;
                self.record(generation, parse_outcome(verb.trim_end_matches('!')), length);
            }
            "no" => {
                let Err(rejection) = self.try_acquire() else { return Err("it was admitted".into()) };
                if !argument.is_empty() && rejection.retry_after() != Some(length) {
                    return Err(format!("{rejection}"));
                }
            }
            "close" => self.breaker.close(),
            "force" => self.breaker.force_open(),
            "disable" => self.breaker.disable(),
            "metrics" => self.breaker.set_metrics_only(),
            "open" => self.breaker.open_for(self.now, length),
            _ if verb.starts_with('+') => self.now = self.now.saturating_add(parse_time(&verb[1..])),
            _ => return self.check_state(verb),
        }
        Ok(())
    }

    fn check_state(&self, word: &str) -> Result<(), String> {
        let snapshot = self.breaker.snapshot(self.now);
        let rate =
            |share: Option<tidegate_core::Percent>| share.map_or("-%".into(), |share| share.to_string());
        let (expected, actual) = if let Some(state) = word.strip_prefix('=') {
            (state, snapshot.state.to_string())
        } else if let Some(slow) = word.strip_prefix("slow=") {
            (slow, rate(snapshot.slow_rate))
        } else {
            (word, rate(snapshot.failure_rate))
        };
        if expected == actual { Ok(()) } else { Err(format!("it is {actual}")) }
    }

    fn try_acquire(&mut self) -> Result<Generation, Rejection> {
        self.breaker.try_acquire(self.now, 0.5)
    }

    fn record(&mut self, generation: Generation, report: CallOutcome, took: Micros) {
        self.breaker.record(generation, report, took, self.now, 0.5);
    }
}

fn parse_outcome(letter: &str) -> CallOutcome {
    match letter {
        "S" => CallOutcome::Success,
        "E" => CallOutcome::Failure,
        _ => CallOutcome::Ignored,
    }
}

fn parse_time(text: &str) -> Micros {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let number: u64 = digits.parse().unwrap();
    match &text[digits.len()..] {
        "us" => Micros::new(number),
        "ms" => Micros::from_millis(number),
        "s" => Micros::from_secs(number),
        unit => panic!("no unit `{unit}`"),
    }
}
