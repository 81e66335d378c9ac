//! Problem details (RFC 9457) as JSON.

use super::{Hole, NumberForm};
use tidegate_core::header::write_number;

/// Problem details (RFC 9457): what an error response contains.
///
/// ```
/// use tidegate_rule::ProblemDetails;
///
/// let problem = ProblemDetails { detail: "No such rule.", ..ProblemDetails::new(404, "Not Found") };
/// assert_eq!(
///     problem.to_json(),
///     r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"No such rule."}"#
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemDetails<'a> {
    /// `instance`: a URI that identifies this occurrence.
    pub instance: Option<&'a str>,
    /// `type`: a URI that identifies the kind of problem.
    pub kind: &'static str,
    /// `title`: the kind of problem in a few words.
    pub title: &'static str,
    /// `status`: the status code of the response.
    pub status: u16,
    /// `detail`: what went wrong this time.
    pub detail: &'a str,
    /// `violated-policies`: the names of the quotas that denied the request.
    pub violated_policies: &'a [&'a str],
    /// `retry-after`: seconds until a retry may succeed.
    pub retry_after: Option<u64>,
}

/// The value of a member of a [`ProblemDetails`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemMember<'a> {
    /// Text of the program that contains nothing to escape.
    Literal(&'static str),
    /// Any other text.
    Text(&'a str),
    /// A number.
    Number(u64),
    /// A list of texts.
    List(&'a [&'a str]),
}

/// The member with the seconds to wait.
const RETRY_AFTER: &str = "retry-after";
/// The type of a problem that its status describes.
const ABOUT_BLANK: &str = "about:blank";
/// The types of problems that the draft of the rate limit header fields registers.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

impl<'a> ProblemDetails<'a> {
    /// A problem that its status describes.
    pub const fn new(status: u16, title: &'static str) -> Self {
        Self {
            instance: None,
            kind: ABOUT_BLANK,
            title,
            status,
            detail: "",
            violated_policies: &[],
            retry_after: None,
        }
    }

    /// The client has used up its quota: 429.
    pub const fn quota_exceeded() -> Self {
        Self { kind: QUOTA_EXCEEDED, ..Self::new(429, "Quota exceeded") }
    }

    /// The server cannot process the request now: 503.
    pub const fn reduced_capacity() -> Self {
        Self { kind: REDUCED_CAPACITY, ..Self::new(503, "Temporarily reduced capacity") }
    }

    /// Its members, in the order in which they are written.
    pub fn members(&self) -> impl Iterator<Item = (&'static str, ProblemMember<'a>)> {
        let violated = Some(self.violated_policies).filter(|violated| !violated.is_empty());
        let members = [
            self.instance.map(|instance| ("instance", ProblemMember::Text(instance))),
            Some(("type", ProblemMember::Literal(self.kind))),
            Some(("title", ProblemMember::Literal(self.title))),
            Some(("status", ProblemMember::Number(self.status.into()))),
            Some(("detail", ProblemMember::Text(self.detail))),
            violated.map(|violated| ("violated-policies", ProblemMember::List(violated))),
            self.retry_after.map(|seconds| (RETRY_AFTER, ProblemMember::Number(seconds))),
        ];
        members.into_iter().flatten()
    }

    /// Formats the problem as JSON. It is written directly, because floods of requests are rejected with it.
    pub fn to_json(&self) -> String {
        self.json_in(NumberForm::Digits)
    }

    /// The same, with this form of the seconds to wait.
    pub(super) fn json_in(&self, form: NumberForm) -> String {
        let names: usize = self.violated_policies.iter().map(|name| name.len() + 3).sum();
        let texts = self.kind.len() + self.title.len() + self.detail.len();
        let mut json = String::with_capacity(128 + texts + names + self.instance.map_or(0, str::len));
        for (name, member) in self.members() {
            json.push_str(if json.is_empty() { "{\"" } else { ",\"" });
            json.push_str(name);
            json.push_str("\":");
            match member {
                ProblemMember::Literal(text) => {
                    json.push('"');
                    json.push_str(text);
                    json.push('"');
                }
                ProblemMember::Text(text) => quote(text, &mut json),
                // Writing to a string does not fail.
                ProblemMember::Number(number) if name == RETRY_AFTER => {
                    _ = form.write(&mut json, Hole::RETRY_AFTER, number);
                }
                ProblemMember::Number(number) => _ = write_number(&mut json, number),
                ProblemMember::List(texts) => {
                    for (index, text) in texts.iter().enumerate() {
                        json.push(if index == 0 { '[' } else { ',' });
                        quote(text, &mut json);
                    }
                    json.push(']');
                }
            }
        }
        json.push('}');
        json
    }
}

/// Adds `instance` to a problem that was written without it.
pub(super) fn insert_instance(json: &mut String, instance: &str) {
    if json.starts_with('{') {
        let mut member = String::with_capacity(instance.len() + 14);
        member.push_str("\"instance\":");
        quote(instance, &mut member);
        member.push(',');
        json.insert_str(1, &member);
    }
}

/// Writes text in quotes.
fn quote(text: &str, json: &mut String) {
    json.push('"');
    let mut rest = text;
    while let Some(index) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        let (plain, special) = rest.split_at(index);
        json.push_str(plain);
        let (special, after) = special.split_at(1);
        rest = after;
        match special {
            "\n" => json.push_str("\\n"),
            "\"" | "\\" => {
                json.push('\\');
                json.push_str(special);
            }
            _ => special.bytes().for_each(|byte| json.push_str(&format!("\\u{byte:04x}"))),
        }
    }
    json.push_str(rest);
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn problem_json_round_trips(
            detail in "(?s).*",
            instance in proptest::option::of("(?s).{0,8}"),
            violated in proptest::collection::vec("(?s).{0,8}", 0..3),
            retry_after in any::<Option<u64>>(),
        ) {
            let violated: Vec<_> = violated.iter().map(String::as_str).collect();
            let problem = ProblemDetails {
                instance: instance.as_deref(),
                detail: &detail,
                violated_policies: &violated,
                retry_after,
                ..ProblemDetails::new(429, "T")
            };
            let read: serde_json::Value = serde_json::from_str(&problem.to_json()).unwrap();
            let mut expected = serde_json::json!({
                "type": "about:blank", "title": "T", "status": 429, "detail": detail,
            });
            if !violated.is_empty() {
                expected["violated-policies"] = serde_json::json!(violated);
            }
            if let Some(seconds) = retry_after {
                expected["retry-after"] = seconds.into();
            }
            if let Some(instance) = &instance {
                expected["instance"] = instance.as_str().into();
                let mut inserted = ProblemDetails { instance: None, ..problem }.to_json();
                insert_instance(&mut inserted, instance);
                prop_assert_eq!(inserted, problem.to_json());
            }
            prop_assert_eq!(read, expected);
        }
    }
}
