//! A law that is held against stories in which nothing happens holds nothing. So the corners are counted.

use proptest::prelude::*;
use std::cell::RefCell;
use tidegate_core::{Outcome, Retry};
use tidegate_testkit::{Plain, Subject, strategy::*};

/// Of all that is asked of each algorithm, one in so many must get there.
#[test]
fn the_stories_reach_the_corners() {
    for (name, samples) in every_algorithm() {
        for (stories, waits) in [(moves().boxed(), Waits::Nobody), (crowds().boxed(), Waits::Some)] {
            let seen = RefCell::new(Seen::default());
            let told = runner().run(&(samples.clone(), stories), |(sample, story)| {
                seen.borrow_mut().tell(&sample, &story);
                Ok(())
            });
            assert!(told.is_ok());
            let Seen { asked, allowed, delayed, denied, oversized, told_waits } = seen.into_inner();
            if asked < 1_000 {
                continue; // `PROPTEST_CASES` asks for less than can be counted
            }
            assert!(allowed * 8 > asked, "{name}: {allowed} of {asked} allowed");
            assert!(denied * 16 > asked, "{name}: {denied} of {asked} denied");
            assert!(oversized * 50 > asked, "{name}: {oversized} of {asked} too large");
            let knows_time = name != "concurrency";
            assert!(!knows_time || told_waits * 50 > asked, "{name}: {told_waits} of {asked} as told");
            let some_wait = knows_time && waits == Waits::Some;
            assert_eq!(delayed * 16 > asked, some_wait, "{name}: {delayed} of {asked} delayed");
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Waits {
    Nobody,
    Some,
}

#[derive(Default)]
struct Seen {
    asked: u64,
    allowed: u64,
    delayed: u64,
    denied: u64,
    oversized: u64,
    told_waits: u64,
}

impl Seen {
    fn tell(&mut self, sample: &Sample, story: &[Move]) {
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(sample));
        for caller in story {
            let before = moment.now;
            moment.pass(caller.pause);
            let as_told = matches!(caller.pause, Pause::AsTold | Pause::JustUnder);
            self.told_waits += u64::from(as_told && moment.now > before);
            let demand = caller.demand(sample);
            let decision = key.decide(moment.now, demand).decision;
            moment.hear(&decision);
            self.asked += 1;
            self.oversized += u64::from(demand.cost > sample.quota.limit());
            match decision.outcome() {
                Outcome::Allow => self.allowed += 1,
                Outcome::Delay(_) => self.delayed += 1,
                Outcome::Deny(Retry::Never) => {}
                Outcome::Deny(_) => self.denied += 1,
            }
        }
    }
}
