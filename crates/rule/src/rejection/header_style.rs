//! The style of rate limit headers.

use super::{Hole, NumberForm};
use std::fmt::{self, Write as _};
use tidegate_core::{
    Decision,
    header::{CostUnit, PolicyField, Remaining, SmallString, write_number},
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
    pub fn write<'a, T>(self, decisions: T, wall_clock: &Clock, each: impl FnMut(&'static str, &str))
    where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        self.write_in(NumberForm::Digits, decisions, wall_clock, each);
    }

    /// The same, with this form of the numbers.
    pub(super) fn write_in<'a, T>(
        self,
        form: NumberForm,
        decisions: T,
        wall_clock: &Clock,
        mut each: impl FnMut(&'static str, &str),
    ) where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        let decisions = decisions.into_iter();
        self.write_policies(decisions.clone().map(|(label, _)| label), &mut each);
        self.write_remaining_in(form, decisions, wall_clock, each);
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
        each: impl FnMut(&'static str, &str),
    ) where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        self.write_remaining_in(NumberForm::Digits, decisions, wall_clock, each);
    }

    fn write_remaining_in<'a, T>(
        self,
        form: NumberForm,
        decisions: T,
        wall_clock: &Clock,
        mut each: impl FnMut(&'static str, &str),
    ) where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        let decisions = decisions.into_iter().enumerate();
        let groups: &[QuotaHeaders] = match self {
            Self::Ietf => {
                let text = write_list(decisions, |(index, (label, decision)), text| {
                    let mut holes = [Hole::remaining(index), self.reset_hole(index)].into_iter();
                    label.write_item_with(text, label.remaining(decision), |text, number| {
                        match holes.next() {
                            Some(hole) => form.write(text, hole, number),
                            None => Ok(()),
                        }
                    })
                });
                if !text.is_empty() {
                    each("ratelimit", text.as_str());
                }
                return;
            }
            Self::Legacy => &[["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]],
            Self::Draft03 => &[["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]],
            Self::OpenAi => &OPENAI_HEADERS,
            Self::Anthropic => &ANTHROPIC_HEADERS,
            Self::None => return,
        };
        for (group, [limit, remaining, reset]) in groups.iter().enumerate() {
            let of_group = decisions.clone().filter(|(_, (label, _))| self.group(label) == Some(group));
            let numbers = |(index, (label, decision)): (usize, (&'a PolicyField, &'a Decision))| {
                (index, label, decision, (label.remaining(decision), decision.is_granted()))
            };
            let most_restrictive = of_group
                .map(numbers)
                .reduce(|one, other| if is_more_restrictive(one.3, other.3) { other } else { one });
            let Some((index, label, decision, (left, _))) = most_restrictive else { continue };
            // Writing to a string does not fail.
            let mut text = SmallString::default();
            let _ = match self {
                Self::Draft03 => label.write_limit_draft_03(&mut text),
                _ => write_number(&mut text, label.limit()),
            };
            each(limit, text.as_str());
            let reset_number = self.reset(label, decision, wall_clock);
            let holes = [
                (*remaining, Some((Hole::remaining(index), left.remaining))),
                (*reset, reset_number.map(|number| (self.reset_hole(index), number))),
            ];
            for (name, number) in holes {
                let Some((hole, number)) = number else { continue };
                text.clear();
                let _ = form.write(&mut text, hole, number);
                each(name, text.as_str());
            }
        }
    }

    /// The group of a quota, if the headers have the most restrictive quota of each group.
    pub(crate) fn group(self, label: &PolicyField) -> Option<usize> {
        match self {
            Self::Ietf | Self::None => None,
            Self::Legacy | Self::Draft03 => Some(0),
            Self::OpenAi | Self::Anthropic => label.unit().map(|unit| match unit {
                CostUnit::Requests => 0,
                CostUnit::Tokens => 1,
            }),
        }
    }

    /// When more of a quota is granted, as a number for its [hole](Self::reset_hole). `None` if it does not refill with time.
    pub(crate) fn reset(self, label: &PolicyField, decision: &Decision, wall_clock: &Clock) -> Option<u64> {
        let refill_after = || label.remaining(decision).refill_after;
        match self {
            Self::Ietf | Self::None => refill_after(),
            Self::Legacy | Self::Draft03 => refill_after().or_else(|| label.window().map(|_| 0)),
            Self::OpenAi => label.window().map(|_| decision.reset_after().get()),
            Self::Anthropic => label
                .window()
                .map(|_| wall_clock.now().saturating_add(decision.reset_after()).get().div_ceil(SECOND)),
        }
    }

    /// The place of this number.
    pub(crate) fn reset_hole(self, quota: usize) -> Hole {
        match self {
            Self::Ietf | Self::Legacy | Self::Draft03 | Self::None => Hole::reset_seconds(quota),
            Self::OpenAi => Hole::reset_duration(quota),
            Self::Anthropic => Hole::reset_date(quota),
        }
    }
}

const SECOND: u64 = 1_000_000;

/// The maximum number of [groups](HeaderStyle::group).
pub(crate) const MAX_GROUPS: usize = 2;

/// The names of the limit, the remaining amount and the reset.
type QuotaHeaders = [&'static str; 3];

/// Of requests, and of tokens.
const OPENAI_HEADERS: [QuotaHeaders; MAX_GROUPS] = [
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
];

/// Of requests, and of tokens.
const ANTHROPIC_HEADERS: [QuotaHeaders; MAX_GROUPS] = [
    [
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ],
    [
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ],
];

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

/// Whether the second quota is more restrictive than the first: it denied, or it has less remaining or a longer refill time. A
/// quota is its remaining amount, and whether it granted the request.
pub(crate) fn is_more_restrictive(one: (Remaining, bool), other: (Remaining, bool)) -> bool {
    match (one.1, other.1) {
        (true, false) => true,
        (false, true) => false,
        _ => one.0 != other.0 && one.0.more_restrictive(other.0) == other.0,
    }
}
