//! W3C Trace Context: `traceparent` and `tracestate`.

use tidegate_core::Percent;
use tidegate_policy::head::HeaderFields;

pub(super) const TRACEPARENT: &[u8] = b"traceparent";
pub(super) const TRACESTATE: &[u8] = b"tracestate";

/// The context of a span: `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceContext {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) flags: u8,
}

/// The `traceparent` header of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParentHeader {
    Missing,
    Invalid,
    Parent(TraceContext),
}

const SAMPLED_FLAG: u8 = 1;
/// The flags `sampled` and `random`. Other flags are undefined and not propagated.
const KNOWN_FLAGS: u8 = 3;
const TRACEPARENT_LENGTH: usize = 55;

impl TraceContext {
    /// Starts a new trace, sampled with this ratio.
    pub(super) fn new(sample: Percent) -> Self {
        let trace = fastrand::u128(1..);
        // The low bits decide, so that all services with the same ratio sample the same traces.
        let is_sampled = u128::from(trace as u64) * 1_000_000 < u128::from(sample.millionths()) << 64;
        Self { trace_id: trace, span_id: new_span_id(), flags: if is_sampled { SAMPLED_FLAG } else { 0 } }
    }

    /// A new span of the same trace.
    pub(super) fn child(self) -> Self {
        Self { span_id: new_span_id(), ..self }
    }

    pub(super) fn is_sampled(self) -> bool {
        self.flags & SAMPLED_FLAG != 0
    }

    pub(super) fn to_header(self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(TRACEPARENT_LENGTH)?;
        let known = std::str::from_utf8(known).ok()?;
        let [version, trace, span, flags] = known.split('-').collect::<Vec<_>>().try_into().ok()?;
        let version = parse_hex(version, 2)?;
        // Future versions may append fields; version 0 may not.
        let is_whole = match (version, rest.first()) {
            (0xff, _) | (0, Some(_)) => false,
            (_, next) => matches!(next, None | Some(b'-')),
        };
        let (trace, span) = (parse_hex(trace, 32)?, parse_hex(span, 16)?);
        let (span, flags) = (u64::try_from(span).ok()?, parse_hex(flags, 2)? as u8 & KNOWN_FLAGS);
        (is_whole && trace != 0 && span != 0).then_some(Self { trace_id: trace, span_id: span, flags })
    }
}

/// Parses the `traceparent` header.
pub(super) fn parse_parent(fields: &HeaderFields) -> ParentHeader {
    let mut all = fields.get_all(TRACEPARENT);
    match (all.next(), all.next()) {
        (None, _) => ParentHeader::Missing,
        (Some(only), None) => TraceContext::parse(only).map_or(ParentHeader::Invalid, ParentHeader::Parent),
        _ => ParentHeader::Invalid,
    }
}

fn new_span_id() -> u64 {
    fastrand::u64(1..)
}

/// Parses exactly `digits` lower-case hexadecimal digits.
fn parse_hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == digits && text.bytes().all(is_hex)).then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderFields {
        let mut fields = HeaderFields::default();
        values.iter().for_each(|value| fields.push(TRACEPARENT, value.as_bytes()));
        fields
    }

    #[test]
    fn traceparent_round_trips() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let ParentHeader::Parent(parent) = parse_parent(&headers(&[text])) else { panic!("{text}") };
        assert_eq!(parent.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span_id, parent.is_sampled()), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(parent.to_header(), text);
        let child = parent.child();
        assert!(child.trace_id == parent.trace_id && child.span_id != parent.span_id && child.is_sampled());
        assert_eq!(parse_parent(&headers(&[])), ParentHeader::Missing);
    }

    #[test]
    fn invalid_traceparent_is_rejected() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let later = format!("cc{}-what-will-be", &good[2..]);
        let all_flags = format!("{}ff", &good[..53]);
        for fine in [&later, &all_flags] {
            let ParentHeader::Parent(parent) = parse_parent(&headers(&[fine])) else { panic!("{fine}") };
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
            assert_eq!(parse_parent(&headers(&[bad])), ParentHeader::Invalid, "{bad}");
        }
        assert_eq!(parse_parent(&headers(&[good, good])), ParentHeader::Invalid, "twice");
    }

    #[test]
    fn new_traces_are_sampled_by_ratio() {
        let sampled = |sample| (0..10_000).filter(|_| TraceContext::new(sample).is_sampled()).count();
        assert_eq!((sampled(Percent::ZERO), sampled(Percent::FULL)), (0, 10_000));
        // Seven standard deviations to each side.
        assert!((790..=1_210).contains(&sampled(Percent::from_millionths(100_000))));
    }
}
