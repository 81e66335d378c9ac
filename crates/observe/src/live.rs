//! A snapshot each second, written once for all who watch.

use bytes::Bytes;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::watch;

/// Who watches, and what they are sent.
pub struct Live {
    sender: watch::Sender<LiveEvent>,
    watchers: Arc<AtomicUsize>,
}

/// What is sent: its number, and a snapshot in one line. The first has nothing in it.
#[derive(Clone, Default)]
pub struct LiveEvent {
    /// Counts snapshots.
    pub number: u64,
    /// The snapshot as JSON.
    pub text: Bytes,
}

/// One who watches, until it is dropped.
pub struct Watching {
    /// The newest snapshot.
    pub events: watch::Receiver<LiveEvent>,
    watchers: Arc<AtomicUsize>,
}

/// Those who watch at the same time.
pub(crate) const MOST: usize = 32;

impl Default for Live {
    fn default() -> Self {
        Self { sender: watch::channel(LiveEvent::default()).0, watchers: Arc::default() }
    }
}

impl Live {
    /// One more watches; `None` if there are too many.
    pub fn watch(&self) -> Option<Watching> {
        let one_more = |watchers: usize| (watchers < MOST).then_some(watchers + 1);
        self.watchers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Watching { events: self.sender.subscribe(), watchers: self.watchers.clone() })
    }

    pub(crate) fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Acquire)
    }

    /// Sends this to all who watch; it is not even written where nobody does.
    pub(crate) fn publish(&self, write: impl FnOnce() -> String) {
        if self.watchers() == 0 {
            return;
        }
        let text = Bytes::from(write());
        self.sender.send_modify(|event| *event = LiveEvent { number: event.number + 1, text });
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_watch_and_nothing_is_written_for_nobody() {
        let live = Live::default();
        live.publish(|| unreachable!("nobody watches"));
        let all: Vec<_> = std::iter::from_fn(|| live.watch()).collect();
        assert_eq!((all.len(), live.watchers()), (MOST, MOST));
        live.publish(|| "{}".to_owned());
        assert!(all.iter().all(|one| one.events.borrow().number == 1));
        drop(all);
        assert_eq!(live.watchers(), 0);
    }
}
