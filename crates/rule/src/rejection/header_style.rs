//! The style of rate limit headers.

use std::fmt::{self, Write as _};
use tidegate_core::{
    Decision, Micros, Utc,
    header::{CostUnit, PolicyField, SmallString, ceil_seconds, write_number},
};
use tidegate_limiter::Clock;

/// Which rate limit headers responses and rejections contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-10, of every quota.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, of the most restrictive quota. `-Reset` is in seconds
    /// from now; some servers send a timestamp there.
    Legacy,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, as in draft 03, of the most restrictive quota.
    Draft03,
    /// `x-ratelimit-limit-tokens`, `-remaining-tokens` and `-reset-tokens`, and the same with `-requests`, as in responses of
    /// OpenAI: of the most restrictive quota that counts tokens, and of the one that counts requests. `-reset` is the time until
    /// the quota is full, as in `6m0s`.
    OpenAi,
    /// `anthropic-ratelimit-tokens-limit`, `-remaining` and `-reset`, and the same with `requests`, as in responses of Anthropic.
    /// `-reset` is the date at which the quota is full.
    Anthropic,
    /// No headers.
    None,
}

impl HeaderStyle {
    /// Writes the headers of a response: calls `each` with a name in lower case and a value.
    ///
    /// ```
    /// use tidegate_core::{Decision, Quota, header::PolicyField};
    /// use tidegate_limiter::Clock;
    /// use tidegate_rule::HeaderStyle;
    ///
    /// let label = PolicyField::new("api", &Quota::concurrency(3)?);
    /// let decision = Decision::from_in_flight(3, 1);
    /// let mut written = Vec::new();
    /// let decisions = [(&label, &decision)];
    /// HeaderStyle::Ietf.write(decisions, &Clock::wall(), |name, value| written.push(format!("{name}: {value}")));
    /// assert_eq!(written, [r#"ratelimit-policy: "api";q=3;qu="concurrent-requests""#, r#"ratelimit: "api";r=2"#]);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn write<'a, T>(self, decisions: T, wall_clock: &Clock, mut each: impl FnMut(&'static str, &str))
    where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        let decisions = decisions.into_iter();
        self.write_policies(decisions.clone().map(|(label, _)| label), &mut each);
        self.write_remaining(decisions, wall_clock, each);
    }

    /// Writes the headers that depend only on the quotas, so that they can be cached.
    pub fn write_policies<'a, L>(self, labels: L, mut each: impl FnMut(&'static str, &str))
    where
        L: IntoIterator<Item = &'a PolicyField>,
    {
        if self != Self::Ietf {
            return;
        }
        let mut labels = labels.into_iter();
        let Some(first) = labels.next() else { return };
        match labels.next() {
            None => each("ratelimit-policy", first.policy()),
            Some(second) => {
                let all = [first, second].into_iter().chain(labels);
                let text = write_list(all, |label, text| text.write_str(label.policy()));
                each("ratelimit-policy", text.as_str());
            }
        }
    }

    /// Writes the headers of this request. The clock provides the time of headers with a date.
    pub fn write_remaining<'a, T>(
        self,
        decisions: T,
        wall_clock: &Clock,
        mut each: impl FnMut(&'static str, &str),
    ) where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        let names = match self {
            Self::Ietf => {
                let text =
                    write_list(decisions, |(label, decision), text| label.write_remaining(text, decision));
                if !text.is_empty() {
                    each("ratelimit", text.as_str());
                }
                return;
            }
            Self::Legacy => ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
            Self::Draft03 => ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
            Self::OpenAi => {
                return write_units(decisions, &OPENAI_HEADERS, each, |reset, text| {
                    write_duration(text, reset)
                });
            }
            Self::Anthropic => {
                return write_units(decisions, &ANTHROPIC_HEADERS, each, |reset, text| {
                    let full_at = wall_clock.now().saturating_add(reset).get().div_ceil(SECOND);
                    write!(text, "{:.0}", Utc::from(Micros::from_secs(full_at)))
                });
            }
            Self::None => return,
        };
        let Some((label, decision)) = most_restrictive(decisions) else { return };
        let left = label.remaining(decision);
        // If the quota does not refill with time, there is no reset time.
        let reset = left.refill_after.or_else(|| label.window().map(|_| 0));
        for (name, number) in names.into_iter().zip([Some(label.limit()), Some(left.remaining), reset]) {
            let Some(number) = number else { continue };
            let mut text = SmallString::default();
            // Writing to a string does not fail.
            let _ = match name {
                "ratelimit-limit" => label.write_limit_draft_03(&mut text),
                _ => write_number(&mut text, number),
            };
            each(name, text.as_str());
        }
    }
}

const SECOND: u64 = 1_000_000;

/// The names of the limit, the remaining amount and the reset, for each unit.
type UnitHeaders = [(CostUnit, [&'static str; 3]); 2];

const OPENAI_HEADERS: UnitHeaders = [
    (
        CostUnit::Requests,
        ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    ),
    (
        CostUnit::Tokens,
        ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    ),
];

const ANTHROPIC_HEADERS: UnitHeaders = [
    (
        CostUnit::Requests,
        [
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ],
    ),
    (
        CostUnit::Tokens,
        [
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ],
    ),
];

/// Writes the headers of the most restrictive quota of each unit.
fn write_units<'a, T>(
    decisions: T,
    headers: &UnitHeaders,
    mut each: impl FnMut(&'static str, &str),
    write_reset: impl Fn(Micros, &mut SmallString) -> fmt::Result,
) where
    T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
{
    let decisions = decisions.into_iter();
    for (unit, [limit, remaining, reset]) in *headers {
        let counted = decisions.clone().filter(|(label, _)| label.unit() == Some(unit));
        let Some((label, decision)) = most_restrictive(counted) else { continue };
        for (name, number) in [(limit, label.limit()), (remaining, label.remaining(decision).remaining)] {
            let mut text = SmallString::default();
            // Writing to a string does not fail.
            let _ = write_number(&mut text, number);
            each(name, text.as_str());
        }
        // A total never refills.
        if label.window().is_some() {
            let mut text = SmallString::default();
            let _ = write_reset(decision.reset_after(), &mut text);
            each(reset, text.as_str());
        }
    }
}

/// Writes a duration as Go does: `6m0s`, `1h0m5s`, or `120ms` below a second. It is rounded up.
fn write_duration(text: &mut SmallString, duration: Micros) -> fmt::Result {
    if duration.get() < SECOND {
        return match duration.get().div_ceil(1_000) {
            0 => text.write_str("0s"),
            1_000 => text.write_str("1s"),
            milliseconds => write!(text, "{milliseconds}ms"),
        };
    }
    let seconds = ceil_seconds(duration);
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => write!(text, "{seconds}s"),
        (0, minutes, seconds) => write!(text, "{minutes}m{seconds}s"),
        (hours, minutes, seconds) => write!(text, "{hours}h{minutes}m{seconds}s"),
    }
}

/// Writes all items, separated by commas.
fn write_list<I>(
    items: impl IntoIterator<Item = I>,
    mut write: impl FnMut(I, &mut SmallString) -> fmt::Result,
) -> SmallString {
    let mut text = SmallString::default();
    for item in items {
        if !text.is_empty() {
            let _ = text.write_str(", ");
        }
        // Writing to a string does not fail.
        let _ = write(item, &mut text);
    }
    text
}

/// The quota that denied, or else the one with the least remaining; of several, the one with the longest
/// refill time.
fn most_restrictive<'a>(
    decisions: impl IntoIterator<Item = (&'a PolicyField, &'a Decision)>,
) -> Option<(&'a PolicyField, &'a Decision)> {
    decisions.into_iter().reduce(|one, other| {
        let (left, right) = (one.0.remaining(one.1), other.0.remaining(other.1));
        let is_other = match (one.1.is_granted(), other.1.is_granted()) {
            (true, false) => true,
            (false, true) => false,
            _ => left != right && left.more_restrictive(right) == right,
        };
        if is_other { other } else { one }
    })
}
