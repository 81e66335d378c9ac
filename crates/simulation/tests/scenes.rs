//! What controllers do to goodput, scene by scene.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use tidegate_core::Micros;
use tidegate_overload::adaptive::{Anchored, Bounds, Gradient2};
use tidegate_simulation::{AdaptiveGuard, FixedGuard, Guard, NoGuard, Scene, Story, Surge, cast};

/// The default controller, for calls that should take at most twenty milliseconds.
fn anchored() -> AdaptiveGuard {
    AdaptiveGuard::new(Anchored::new(Micros::from_millis(20)).unwrap())
}

fn refused(story: &Story, start: Micros) -> u32 {
    let first = start.get() / story.bin.get();
    story.bins.iter().skip(first as usize).map(|bin| bin.refused).sum()
}

#[test]
fn the_same_scene_gives_the_same_story() {
    let scene = Scene::retry_storm().seconds(1);
    assert_eq!(scene.play(anchored()), scene.play(anchored()));
    let other = Scene { seed: 8, ..scene.clone() };
    assert_ne!(scene.play(NoGuard).bins, other.play(NoGuard).bins);
}

#[test]
fn nothing_is_answered_that_was_not_asked_nor_faster_than_it_can_be() {
    for scene in Scene::all() {
        let scene = scene.seconds(2);
        for story in [scene.play(NoGuard), scene.play(FixedGuard::new(40)), scene.play(anchored())] {
            let sum =
                |count: fn(&tidegate_simulation::Bin) -> u32| -> u32 { story.bins.iter().map(count).sum() };
            assert!(sum(|bin| bin.good) <= sum(|bin| bin.requests), "{}", scene.name);
            assert!(sum(|bin| bin.requests) <= sum(|bin| bin.attempts), "{}", scene.name);
            assert!(
                sum(|bin| bin.refused) + sum(|bin| bin.good) <= sum(|bin| bin.attempts),
                "{}",
                scene.name
            );
            assert!(story.goodput(Micros::ZERO, scene.length) < 1.02, "{}", scene.name);
        }
    }
}

#[test]
fn a_surge_collapses_without_a_guard_and_not_with_the_default() {
    for surge in [Surge::Slight, Surge::TenTimes] {
        let scene = Scene::surge(surge);
        let (without, with) = (scene.play(NoGuard), scene.play(anchored()));
        assert!(without.goodput_of_the_change() < 0.1, "{}", without.goodput_of_the_change());
        assert!(with.goodput_of_the_change() > 0.9, "{}", with.goodput_of_the_change());
        assert!(with.recovered() > 0.99 && without.recovered() < 0.5);
        assert!(with.settled_after().unwrap() <= Micros::from_millis(250), "{:?}", with.settled_after());
    }
}

#[test]
fn a_slow_backend_is_given_what_it_can_do() {
    let scene = Scene::slow_backend();
    // A fifth is all that there is.
    assert!(scene.play(anchored()).goodput_of_the_change() > 0.18);
    assert!(scene.play(NoGuard).goodput_of_the_change() < 0.05);
}

#[test]
fn a_retry_storm_ends_with_the_default_and_not_without() {
    let scene = Scene::retry_storm();
    assert!(scene.play(anchored()).recovered() > 0.98);
    assert!(scene.play(NoGuard).recovered() < 0.05, "what keeps it down is its own retries");
}

#[test]
fn a_healthy_system_is_never_refused_anything_once_the_limit_is_found() {
    let scene = Scene::healthy().seconds(20);
    assert_eq!(refused(&scene.play(anchored()), Micros::from_secs(2)), 0);
}

/// The limit is found from either side, and whatever the load was when it began.
#[test]
fn the_default_finds_the_limit_from_anywhere() {
    for initial in [1, 5, 100, 1_000] {
        let bounds = Bounds::new(1, initial, 1_000).unwrap();
        let controller = Anchored::new(Micros::from_millis(20)).unwrap().bounds(bounds);
        let scene = Scene { begins: Micros::ZERO, ..Scene::surge(Surge::TenTimes) };
        let story = scene.play(AdaptiveGuard::new(controller));
        let late = story.goodput(Micros::from_millis(1_500), scene.ends);
        assert!(late > 0.9, "{initial}: {late}");
        assert!(story.latency(Micros::from_millis(1_500), scene.ends) < Micros::from_millis(3));
    }
}

/// The published defect, in the loop: with Gradient2 a backlog becomes what it compares with.
#[test]
fn gradient2_ratchets_where_the_default_does_not() {
    let scene = Scene::surge(Surge::Slight);
    let last = |story: &Story| story.bins.iter().rev().find_map(|bin| bin.limit).unwrap();
    let gradient = AdaptiveGuard::new(Gradient2::new(Bounds::default()));
    assert!(last(&scene.play(gradient)) > 500);
    let ours = anchored();
    assert!(ours.limit() == Some(20) && last(&scene.play(ours)) < 100);
}

/// A breaker and a throttle spare a backend that fails; what they refuse is not worth asking for.
#[test]
fn a_failing_backend_is_spared_by_those_who_watch_errors() {
    let scene = Scene::failing_backend();
    let reached = |name: &str| {
        let actor = cast().iter().find(|actor| actor.name == name).unwrap();
        let story = scene.play(actor.enter(&scene).unwrap());
        let changed = (scene.begins.get()..scene.ends.get()).step_by(story.bin.get() as usize);
        let bins = changed.map(|at| story.bins[(at / story.bin.get()) as usize]);
        bins.map(|bin| f64::from(bin.attempts - bin.refused)).sum::<f64>()
    };
    let all = reached("none");
    assert!(reached("breaker") < all / 10.0);
    assert!(reached("throttle") < all / 2.0);
}
