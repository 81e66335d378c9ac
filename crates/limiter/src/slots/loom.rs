//! Every order in which threads can meet on the word of slots.

use super::word::{self, Awaited, Turn};
use crate::sync::{AtomicU64, Ordering};
use loom::{sync::Arc, thread};

/// A word, the limit, and a bell that rings when somebody who waits should look again.
#[derive(Default)]
struct Gate {
    word: AtomicU64,
    limit: AtomicU64,
    bell: AtomicU64,
}

impl Gate {
    fn of(limit: u64) -> Arc<Self> {
        let gate = Self::default();
        gate.limit.store(limit, Ordering::Relaxed);
        Arc::new(gate)
    }

    fn take(&self, turn: Turn) -> bool {
        word::take(&self.word, 1, self.limit.load(Ordering::Relaxed), turn, 0).is_ok()
    }

    fn give_back(&self) {
        if word::give_back(&self.word, 1) == Awaited::Yes {
            self.bell.store(1, Ordering::Relaxed);
        }
    }

    fn resize(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        if word::waiting(self.word.fetch_add(0, Ordering::AcqRel)) > 0 {
            self.bell.store(1, Ordering::Relaxed);
        }
    }

    /// Enters the line and looks once. Who finds nothing counts on the bell.
    fn wait(&self) -> bool {
        word::enter_line(&self.word);
        self.take(Turn::FirstInLine)
    }
}

#[test]
fn loom_slots_are_never_over_their_limit_and_none_is_lost() {
    loom::model(|| {
        let gate = Gate::of(1);
        let inside = Arc::new(AtomicU64::new(0));
        let visit = |gate: &Gate, inside: &AtomicU64| {
            if gate.take(Turn::Newcomer) {
                assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two at once");
                inside.fetch_sub(1, Ordering::Relaxed);
                gate.give_back();
            }
        };
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (gate, inside) = (gate.clone(), inside.clone());
                thread::spawn(move || visit(&gate, &inside))
            })
            .collect();
        visit(&gate, &inside);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(gate.word.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn loom_who_waits_for_a_slot_hears_of_it() {
    loom::model(|| {
        let gate = Gate::of(1);
        assert!(gate.take(Turn::Newcomer));
        let other = gate.clone();
        let holder = thread::spawn(move || other.give_back());
        let taken = gate.wait();
        holder.join().unwrap();
        assert!(taken || gate.bell.load(Ordering::Relaxed) == 1, "it waits for ever");
        assert!(taken || gate.take(Turn::FirstInLine));
        assert_eq!((word::held(gate.word.load(Ordering::Relaxed)), gate.take(Turn::Newcomer)), (1, false));
    });
}

#[test]
fn loom_who_waits_for_a_larger_limit_hears_of_it() {
    loom::model(|| {
        let gate = Gate::of(1);
        assert!(gate.take(Turn::Newcomer));
        let other = gate.clone();
        let operator = thread::spawn(move || other.resize(2));
        let taken = gate.wait();
        operator.join().unwrap();
        assert!(taken || gate.bell.load(Ordering::Relaxed) == 1, "it waits for ever");
        assert!(taken || gate.take(Turn::FirstInLine));
    });
}

/// A slot that comes free while somebody waits goes to the one who waits.
#[test]
fn loom_a_newcomer_does_not_slip_past() {
    loom::model(|| {
        let gate = Gate::of(1);
        assert!(gate.take(Turn::Newcomer));
        word::enter_line(&gate.word);
        let other = gate.clone();
        let newcomer = thread::spawn(move || other.take(Turn::Newcomer));
        gate.give_back();
        assert!(!newcomer.join().unwrap());
        assert!(gate.take(Turn::FirstInLine));
    });
}
