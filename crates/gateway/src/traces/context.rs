//! Who is part of which trace: `traceparent` and `tracestate` of W3C Trace Context.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::Percent;

pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(super) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A place in a trace: `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) flags: u8,
}

/// What a request says of the trace that it is part of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    Nonsense,
    Parent(Context),
}

const SAMPLED: u8 = 1;
/// Sampled, and that the name of the trace is random. The others mean nothing yet, and are not handed on.
const KNOWN_FLAGS: u8 = 3;
const LENGTH: usize = 55;

impl Context {
    /// A new trace, and whether it is one of those that are sent.
    pub(super) fn new(sample: Percent) -> Self {
        let trace = fastrand::u128(1..);
        // The low bits decide, so that every part of a system that asks for the same share takes the same ones.
        let is_taken = u128::from(trace as u64) * 1_000_000 < u128::from(sample.millionths()) << 64;
        Self { trace, span: new_span(), flags: if is_taken { SAMPLED } else { 0 } }
    }

    /// The same trace, one step further.
    pub(super) fn child(self) -> Self {
        Self { span: new_span(), ..self }
    }

    pub(super) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub(super) fn header(self) -> HeaderValue {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags);
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let known = std::str::from_utf8(known).ok()?;
        let [version, trace, span, flags] = known.split('-').collect::<Vec<_>>().try_into().ok()?;
        let version = number(version, 2)?;
        // Those to come may say more behind it; the first one may not.
        let is_whole = match (version, rest.first()) {
            (0xff, _) | (0, Some(_)) => false,
            (_, next) => matches!(next, None | Some(b'-')),
        };
        let (trace, span) = (number(trace, 32)?, number(span, 16)?);
        let (span, flags) = (u64::try_from(span).ok()?, number(flags, 2)? as u8 & KNOWN_FLAGS);
        (is_whole && trace != 0 && span != 0).then_some(Self { trace, span, flags })
    }
}

/// What these headers say.
pub(super) fn said(headers: &HeaderMap) -> Said {
    let mut all = headers.get_all(TRACEPARENT).iter();
    match (all.next(), all.next()) {
        (None, _) => Said::Nothing,
        (Some(only), None) => Context::parse(only.as_bytes()).map_or(Said::Nonsense, Said::Parent),
        _ => Said::Nonsense,
    }
}

fn new_span() -> u64 {
    fastrand::u64(1..)
}

/// So many digits, small ones only.
fn number(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == digits && text.bytes().all(is_hex)).then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (TRACEPARENT, value.parse().unwrap())).collect()
    }

    #[test]
    fn a_parent_is_read_and_written() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let Said::Parent(parent) = said(&headers(&[text])) else { panic!("{text}") };
        assert_eq!(parent.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span, parent.is_sampled()), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(parent.header(), text);
        let child = parent.child();
        assert!(child.trace == parent.trace && child.span != parent.span && child.is_sampled());
        assert_eq!(said(&headers(&[])), Said::Nothing);
    }

    #[test]
    fn what_is_no_parent_is_nonsense() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let later = format!("cc{}-what-will-be", &good[2..]);
        let all_flags = format!("{}ff", &good[..53]);
        for fine in [&later, &all_flags] {
            let Said::Parent(parent) = said(&headers(&[fine])) else { panic!("{fine}") };
            assert!(parent.flags <= KNOWN_FLAGS && parent.is_sampled());
        }
        for bad in [
            "",
            "00",
            &good[..54],
            &format!("{good}-more"),
            &format!("ff{}", &good[2..]),
            &format!("cc{}x", &good[2..]),
            &good.to_uppercase(),
            &good.replace('-', "_"),
            &good.replace("4bf9", "4bg9"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473600f067aa0ba902b7--01",
        ] {
            assert_eq!(said(&headers(&[bad])), Said::Nonsense, "{bad}");
        }
        assert_eq!(said(&headers(&[good, good])), Said::Nonsense, "twice");
    }

    #[test]
    fn a_share_of_new_traces_is_taken() {
        let taken = |sample| (0..10_000).filter(|_| Context::new(sample).is_sampled()).count();
        assert_eq!((taken(Percent::ZERO), taken(Percent::FULL)), (0, 10_000));
        // Seven standard deviations to each side.
        assert!((790..=1_210).contains(&taken(Percent::from_millionths(100_000))));
    }
}
