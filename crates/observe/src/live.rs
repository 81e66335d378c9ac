//! A snapshot each second, written once for all who watch.

use bytes::Bytes;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::watch;

/// Who watches, and what they are sent.
pub struct LiveFeed {
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
pub struct LiveSubscription {
    /// The newest snapshot.
    pub events: watch::Receiver<LiveEvent>,
    watchers: Arc<AtomicUsize>,
}

/// Those who watch at the same time.
pub(crate) const MAX_WATCHERS: usize = 32;

impl Default for LiveFeed {
    fn default() -> Self {
        Self { sender: watch::channel(LiveEvent::default()).0, watchers: Arc::default() }
    }
}

impl LiveFeed {
    /// One more watches; `None` if there are too many.
    pub fn subscribe(&self) -> Option<LiveSubscription> {
        let one_more = |watchers: usize| (watchers < MAX_WATCHERS).then_some(watchers + 1);
        self.watchers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(LiveSubscription { events: self.sender.subscribe(), watchers: self.watchers.clone() })
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

impl Drop for LiveSubscription {
    fn drop(&mut self) {
        self.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_feed_limits_watchers_and_skips_snapshots_without_any() {
        let live = LiveFeed::default();
        live.publish(|| unreachable!("nobody watches"));
        let all: Vec<_> = std::iter::from_fn(|| live.subscribe()).collect();
        assert_eq!((all.len(), live.watchers()), (MAX_WATCHERS, MAX_WATCHERS));
        live.publish(|| "{}".to_owned());
        assert!(all.iter().all(|one| one.events.borrow().number == 1));
        drop(all);
        assert_eq!(live.watchers(), 0);
    }
}
