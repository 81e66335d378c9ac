//! Where the gateway accepts a request that hyper or nginx rejects or reads differently, and why. docs/http1.md has the same
//! table.

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
    /// The bytes of the exchange.
    pub(super) bytes: &'a [u8],
    pub(super) gateway: &'a RequestMessage,
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
        applies: |difference| difference.contains(b"\t"),
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

    /// Whether the exchange contains these bytes.
    fn contains(&self, bytes: &[u8]) -> bool {
        memchr::memmem::find(self.bytes, bytes).is_some()
    }

    /// Whether the exchange has several fields `Content-Length`, or one with a list.
    fn has_repeated_length(&self) -> bool {
        self.values(LENGTH).count() > 1 || self.has_length_list()
    }

    fn has_length_list(&self) -> bool {
        self.values(LENGTH).any(|value| value.contains(&b','))
    }

    /// The values of a field in the exchange, by the name in lower case with a colon.
    fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let lines = self.bytes.split(|byte| *byte == b'\n');
        lines.filter_map(|line| {
            let (start, value) = line.split_at_checked(name.len())?;
            start.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

const LENGTH: &[u8] = b"content-length:";
