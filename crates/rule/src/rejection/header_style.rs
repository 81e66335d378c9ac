//! The style of rate limit headers.

use std::fmt;
use tidegate_core::{
    Decision,
    header::{PolicyField, SmallString, write_number},
};

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
    /// No headers.
    None,
}

impl HeaderStyle {
    /// Writes the headers of a response: calls `each` with a name in lower case and a value.
    ///
    /// ```
    /// use tidegate_core::{Decision, Quota, header::PolicyField};
    /// use tidegate_rule::HeaderStyle;
    ///
    /// let label = PolicyField::new("api", &Quota::concurrency(3)?);
    /// let decision = Decision::from_in_flight(3, 1);
    /// let mut written = Vec::new();
    /// HeaderStyle::Ietf.write([(&label, &decision)], |name, value| written.push(format!("{name}: {value}")));
    /// assert_eq!(written, [r#"ratelimit-policy: "api";q=3;qu="concurrent-requests""#, r#"ratelimit: "api";r=2"#]);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn write<'a, T>(self, decisions: T, mut each: impl FnMut(&'static str, &str))
    where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        let decisions = decisions.into_iter();
        self.write_policies(decisions.clone().map(|(label, _)| label), &mut each);
        self.write_remaining(decisions, each);
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
                let text = write_list(all, |label, text| fmt::Write::write_str(text, label.policy()));
                each("ratelimit-policy", text.as_str());
            }
        }
    }

    /// Writes the headers of this request.
    pub fn write_remaining<'a, T>(self, decisions: T, mut each: impl FnMut(&'static str, &str))
    where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision)>,
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

/// Writes all items, separated by commas.
fn write_list<I>(
    items: impl IntoIterator<Item = I>,
    mut write: impl FnMut(I, &mut SmallString) -> fmt::Result,
) -> SmallString {
    let mut text = SmallString::default();
    for item in items {
        if !text.is_empty() {
            let _ = fmt::Write::write_str(&mut text, ", ");
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
