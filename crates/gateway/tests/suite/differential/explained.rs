//! Where the gateway accepts a request that hyper or nginx rejects or reads differently, and why. docs/http1.md has the same
//! table.

use super::compared_fields;
use crate::fuzz::messages::RequestMessage;

/// The server with which the gateway is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reference {
    Hyper,
    Nginx,
}

/// A request that the gateway accepts and the other server does not accept in the same way.
#[derive(Debug)]
pub(super) struct Difference<'a> {
    pub(super) part: DifferentPart,
    /// The head of the request, as the client sent it.
    pub(super) head: &'a [u8],
    pub(super) gateway: &'a RequestMessage,
    /// The message of the other server; `None` if it rejects the request.
    pub(super) other: Option<&'a RequestMessage>,
}

/// What is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DifferentPart {
    /// The other server rejects the request, or an earlier one on the connection.
    Rejected,
    Method,
    Target,
    Fields,
    Body,
    Trailers,
}

/// A row of the table.
pub(super) struct ExplainedDifference {
    pub(super) reference: Reference,
    /// The cells of the row in docs/http1.md: the input, and what the other server does.
    pub(super) input: &'static str,
    pub(super) behavior: &'static str,
    pub(super) applies: fn(&Difference<'_>) -> bool,
}

/// All rows.
pub(super) const EXPLAINED: &[ExplainedDifference] = &[
    ExplainedDifference {
        reference: Reference::Hyper,
        input: "the same `Content-Length` repeated in one field, as in `5, 5`",
        behavior: "400",
        applies: |difference| difference.is_rejected() && difference.has_length_list(),
    },
    ExplainedDifference {
        reference: Reference::Nginx,
        input: "a tab around a field value",
        behavior: "400, 501, or part of the value",
        applies: |difference| match difference.part {
            // nginx does not remove the tab from a value that it uses.
            DifferentPart::Rejected => {
                USED_FIELDS.iter().any(|name| difference.values(name).any(has_outer_tab))
            }
            // It forwards the tab.
            DifferentPart::Fields => difference.has_same_fields_without_tabs(),
            _ => false,
        },
    },
    ExplainedDifference {
        reference: Reference::Nginx,
        input: "the same `Content-Length` repeated, in one field or several",
        behavior: "400",
        applies: |difference| difference.is_rejected() && difference.has_repeated_length(),
    },
    ExplainedDifference {
        reference: Reference::Nginx,
        input: "a method in lower case, or with other characters of a token",
        behavior: "400",
        applies: |difference| {
            let is_usual = |byte: u8| byte.is_ascii_uppercase() || byte == b'_' || byte == b'-';
            difference.is_rejected() && !difference.gateway.method.bytes().all(is_usual)
        },
    },
    ExplainedDifference {
        reference: Reference::Nginx,
        input: "`OPTIONS *`",
        behavior: "400",
        applies: |difference| difference.is_rejected() && difference.gateway.target == "*",
    },
    ExplainedDifference {
        reference: Reference::Nginx,
        input: "`Host` with `..`",
        behavior: "400",
        applies: |difference| {
            let has_dots = |value: &[u8]| memchr::memmem::find(value, b"..").is_some();
            difference.is_rejected() && difference.values(b"host:").any(has_dots)
        },
    },
];

impl Reference {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hyper => "hyper",
            Self::Nginx => "nginx",
        }
    }
}

impl Difference<'_> {
    fn is_rejected(&self) -> bool {
        self.part == DifferentPart::Rejected
    }

    /// Whether the other server received the same fields, apart from tabs around their values.
    fn has_same_fields_without_tabs(&self) -> bool {
        let trimmed = |message: &RequestMessage| -> Vec<_> {
            let fields = compared_fields(message, self.head);
            fields.into_iter().map(|(name, value)| (name, trim_tabs(&value).to_vec())).collect()
        };
        self.other.is_some_and(|other| trimmed(other) == trimmed(self.gateway))
    }

    /// Whether the request has several fields `Content-Length`, or one with a list.
    fn has_repeated_length(&self) -> bool {
        self.values(LENGTH).count() > 1 || self.has_length_list()
    }

    fn has_length_list(&self) -> bool {
        self.values(LENGTH).any(|value| value.contains(&b','))
    }

    /// The values of a field of the request, by the name in lower case with a colon.
    fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let lines = self.head.split(|byte| *byte == b'\n');
        lines.filter_map(|line| {
            let (start, value) = line.split_at_checked(name.len())?;
            start.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Whether a tab is in the white space at the start or the end of a value.
fn has_outer_tab(value: &[u8]) -> bool {
    let start = value.len() - value.trim_ascii_start().len();
    let end = value.trim_ascii_end().len();
    value[..start].contains(&b'\t') || value[end.max(start)..].contains(&b'\t')
}

/// Without spaces and tabs at its ends.
fn trim_tabs(value: &[u8]) -> &[u8] {
    value.trim_ascii()
}

const LENGTH: &[u8] = b"content-length:";
/// The fields whose values nginx uses.
const USED_FIELDS: [&[u8]; 3] = [LENGTH, b"transfer-encoding:", b"host:"];
