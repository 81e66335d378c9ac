//! A day of traffic in virtual time, compared with a simple model of fixed windows.

use crate::common::{memory_service, parse_request, per_unit, settings_with_counting, test_config};
use proptest::prelude::*;
use std::{collections::HashMap, time::Duration};
use tidegate_core::Micros;
use tidegate_policy::descriptors::CalendarUnit;
use tidegate_service::descriptors::{CountingMode, LimitCode};

const UNITS: [(&str, CalendarUnit, u32); 5] = [
    ("second", CalendarUnit::Second, 2),
    ("minute", CalendarUnit::Minute, 5),
    ("hour", CalendarUnit::Hour, 40),
    ("day", CalendarUnit::Day, 200),
    ("week", CalendarUnit::Week, 300),
];

/// Requests: milliseconds since the previous one, the limit, one of three clients, and the hits.
fn traffic() -> impl Strategy<Value = Vec<(u64, usize, u8, u64)>> {
    let pause = prop_oneof![0_u64..2_000, 0_u64..120_000, 0_u64..1_200_000];
    prop::collection::vec((pause, 0..UNITS.len(), 0_u8..3, 0_u64..4), 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn day_of_traffic_matches_plain_windows(
        traffic in traffic(),
        start in 1_000_000_000_u64..4_000_000_000,
        is_atomic: bool,
    ) {
        let counting = if is_atomic { CountingMode::Atomic } else { CountingMode::Reference };
        let limits = UNITS.map(|(key, unit, requests)| (key, per_unit(requests, unit)));
        let (service, manual_clock) = memory_service(settings_with_counting(counting), test_config(&limits));
        let mut now = start * 1_000;
        let mut counts: HashMap<(usize, u8, u64), u64> = HashMap::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (pause, index, client, hits) in traffic {
            now += pause;
            if now - start * 1_000 > 24 * 3_600 * 1_000 {
                break;
            }
            manual_clock.set(Micros::from_millis(now));
            let (key, unit, requests) = UNITS[index];
            let request = parse_request(&format!("{key}={client} x{hits}"));
            let verdict = runtime.block_on(service.decide(request)).unwrap();

            // The window of this second, and its count so far.
            let (second, length) = (now / 1_000, unit.seconds());
            let count = counts.entry((index, client, second / length)).or_default();
            let limit = u64::from(requests);
            let is_over = *count + hits > limit;
            if !is_atomic || !is_over {
                *count += hits;
            }
            let remaining = if is_over { 0 } else { limit - *count };
            prop_assert_eq!(verdict.overall_code == LimitCode::OverLimit, is_over);
            prop_assert_eq!(u64::from(verdict.statuses[0].remaining), remaining);
            let ends = length - second % length;
            prop_assert_eq!(verdict.statuses[0].reset, Some(Duration::from_secs(ends)));
        }
    }
}
