//! Rolling counters equal a list of all counts, whichever way the clock jumps.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use proptest::{collection::vec, prelude::*};
use tidegate_core::Micros;
use tidegate_overload::RollingWindow;
use tidegate_testkit::strategy::runner_with_cases;

/// The time, the count of each kind, and how much later the totals are read.
type WindowStep = (u64, u64, u64, u64);

/// All counts with their buckets; late ones belong to the latest bucket.
struct WindowModel {
    buckets: u64,
    latest: u64,
    entries: Vec<(u64, [u64; 2])>,
}

impl WindowModel {
    fn add(&mut self, number: u64, counts: [u64; 2]) {
        if number.abs_diff(self.latest) >= self.buckets {
            self.entries.clear();
            self.latest = number;
        }
        self.latest = self.latest.max(number);
        self.entries.push((self.latest, counts));
    }

    fn totals(&self, number: u64) -> [u64; 2] {
        if number.abs_diff(self.latest) >= self.buckets {
            return [0, 0];
        }
        let current = number.max(self.latest);
        let in_window = self.entries.iter().filter(|(at, _)| current - at < self.buckets);
        in_window.fold([0, 0], |sum, (_, counts)| [sum[0] + counts[0], sum[1] + counts[1]])
    }
}

#[test]
fn totals_match_reference_list() {
    let times = prop_oneof![8 => 0_u64..2_000, 2 => 0_u64..1_000_000, 1 => Just(Micros::MAX.get())];
    let step = (times, 0_u64..5, 0_u64..5, 0_u64..500);
    let property = |((window, buckets), steps): ((u64, u32), Vec<WindowStep>)| {
        let window = window.max(buckets.into());
        let width = window.div_ceil(buckets.into());
        let mut rolling = RollingWindow::<2>::new(Micros::new(window), buckets).unwrap();
        let mut list = WindowModel { buckets: buckets.into(), latest: 0, entries: Vec::new() };
        for (time, good, bad, later) in steps {
            let read_at = Micros::new(time + later);
            rolling.add(Micros::new(time), [good, bad]);
            list.add(time / width, [good, bad]);
            prop_assert_eq!(
                rolling.totals(read_at),
                list.totals(read_at.get() / width),
                "{} + {}",
                time,
                later
            );
            prop_assert_eq!(rolling.totals(Micros::new(time)), list.totals(time / width), "{}", time);
        }
        Ok(())
    };
    let settings = (1_u64..3_000, 1_u32..30);
    runner_with_cases(2_000)
        .run(&(settings, vec(step, 1..120)), property)
        .unwrap_or_else(|failure| panic!("{failure}"));
}
