//! Law 8: a change of quota keeps history, and admits no more than the larger of both bounds.

use super::admissions::{check, play};
use super::{is_concurrency, is_shaper};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{Demand, Inherit, LARGEST_EXACT, Micros};
use tidegate_testkit::{Plain, Subject, strategy::*};

fn inheritances() -> impl Strategy<Value = Inherit> {
    prop_oneof![Just(Inherit::Additive), Just(Inherit::AsIs), Just(Inherit::Proportionally)]
}

/// The larger burst and, on top, the larger rate, over one microsecond more: waits are whole microseconds, under
/// the old quota and under the new one.
fn larger(old: Sample, new: Sample) -> impl Fn(Micros) -> u64 {
    move |length| {
        let instant = Micros::new(1);
        let burst = |it: Sample| it.quota.bound().in_any(instant);
        // Bounds of windows grow in steps; over many periods they are straight.
        let rate = |it: Sample| {
            let long = Micros::new(it.period.get() * 1_000);
            let growth = it.quota.bound().in_any(long.plus(instant)) - burst(it);
            let share = u128::from(growth) * u128::from(length.plus(instant).get());
            u64::try_from(share.div_ceil(u128::from(long.get()))).unwrap_or(u64::MAX)
        };
        burst(old).max(burst(new)).saturating_add(rate(old).max(rate(new)))
    }
}

fn check_change(
    old: Sample,
    new: Sample,
    how: Inherit,
    stories: (Vec<Move>, Pause, Vec<Move>),
) -> TestCaseResult {
    let (before, pause, after) = stories;
    let (mut key, mut moment) = (Plain::new(old.quota), Moment::start_of(&old));
    let unit = |sample: Sample, story: Vec<Move>| -> Vec<Move> {
        let single = is_shaper(&old.quota) || is_shaper(&new.quota);
        let cost =
            |cost: Cost| if single { Cost::Exactly(cost.under(sample.quota.limit()).min(1)) } else { cost };
        story.into_iter().map(|caller| Move { cost: cost(caller.cost), ..caller }).collect()
    };
    let mut admissions = play(&mut key, &old, &mut moment, &unit(old, before));
    moment.pass(pause);
    key.change(moment.now, new.quota, how);
    let owed = key.would(moment.now, Demand::probe(0)).decision.reset_after();
    if key.words.contains(&LARGEST_EXACT) || owed.get() >= 1 << 51 {
        return Ok(()); // more is owed than the new quota can count, and the rest is forgiven
    }
    admissions.extend(play(&mut key, &new, &mut moment, &unit(new, after)));
    // Nothing carries over between algorithms: the first window of the new one may end a moment after the change.
    let between_algorithms = old.quota.kind().name() != new.quota.kind().name();
    let first_window = if between_algorithms { new.quota.limit() } else { 0 };
    let larger = larger(old, new);
    check(admissions, |length| larger(length).saturating_add(first_window))
}

#[test]
fn a_change_admits_no_more_than_the_larger_bound() {
    hold_pairs((inheritances(), (moves(), pauses(), moves())), |old, new, (how, stories)| {
        check_change(old, new, how, stories)
    });
}

#[test]
fn nor_does_it_when_callers_still_wait_for_their_turn() {
    hold_pairs((inheritances(), (patient_moves(), pauses(), patient_moves())), |old, new, (how, stories)| {
        check_change(old, new, how, stories)
    });
}

/// But for one window of the new quota, see above.
#[test]
fn nor_does_a_change_of_algorithm() {
    hold((any_sample(), inheritances(), (moves(), pauses(), moves())), |old, (new, how, stories)| {
        // In flight and per second are different things, and bounds of one say nothing of the other.
        if is_concurrency(&old.quota) != is_concurrency(&new.quota) {
            return Ok(());
        }
        check_change(old, new, how, stories)
    });
}

/// Time heals every change: no state is left that denies for ever.
#[test]
fn a_changed_key_recovers() {
    let all = prop_oneof![inheritances(), Just(Inherit::Reset)];
    hold((any_sample(), all, patient_moves()), |old, (new, how, story)| {
        let (mut key, mut moment) = (Plain::new(old.quota), Moment::start_of(&old));
        play(&mut key, &old, &mut moment, &story);
        if is_concurrency(&old.quota) && is_concurrency(&new.quota) {
            return Ok(());
        }
        key.change(moment.now, new.quota, how);
        let reset = key.would(moment.now, Demand::probe(0)).decision.reset_after();
        if reset.get() > 1 << 51 {
            return Ok(()); // not in our time
        }
        let then = moment.now.plus(reset);
        prop_assert!(key.would(then, Demand::now(1)).decision.is_allowed(), "still denied after {}", reset);
        Ok(())
    });
}

/// Not for the shapers, whose doubles lose the last digit when they are scaled.
#[test]
fn a_change_to_the_same_quota_changes_no_remaining() {
    hold((inheritances(), patient_moves(), pauses()), |sample, (how, story, pause)| {
        if is_shaper(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        play(&mut key, &sample, &mut moment, &story);
        moment.pass(pause);
        let before = key.would(moment.now, Demand::probe(0)).decision;
        key.change(moment.now, sample.quota, how);
        let after = key.would(moment.now, Demand::probe(0)).decision;
        prop_assert_eq!(before.remaining(), after.remaining());
        prop_assert_eq!(before.outcome(), after.outcome());
        Ok(())
    });
}
