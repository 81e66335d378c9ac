//! The live stream: a snapshot per second, serialized once for all subscribers.

use bytes::Bytes;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::watch;

/// The subscribers of the live stream, and the current snapshot.
pub struct LiveFeed {
    sender: watch::Sender<LiveEvent>,
    watchers: Arc<AtomicUsize>,
}

/// An event: a number and a snapshot in one line. The first event is empty.
#[derive(Clone, Default)]
pub struct LiveEvent {
    /// The sequence number of the snapshot.
    pub number: u64,
    /// The snapshot as JSON.
    pub text: Bytes,
}

/// A subscription to the live stream, until it is dropped.
pub struct LiveSubscription {
    /// The newest snapshot.
    pub events: watch::Receiver<LiveEvent>,
    watchers: Arc<AtomicUsize>,
}

/// The maximum number of concurrent subscriptions.
pub(crate) const MAX_WATCHERS: usize = 32;

impl Default for LiveFeed {
    fn default() -> Self {
        Self { sender: watch::channel(LiveEvent::default()).0, watchers: Arc::default() }
    }
}

impl LiveFeed {
    /// Subscribes to the live stream; `None` if there are too many subscriptions.
    pub fn subscribe(&self) -> Option<LiveSubscription> {
        let one_more = |watchers: usize| (watchers < MAX_WATCHERS).then_some(watchers + 1);
        self.watchers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(LiveSubscription { events: self.sender.subscribe(), watchers: self.watchers.clone() })
    }

    pub(crate) fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Acquire)
    }

    /// Sends a snapshot to all subscribers. Without subscribers, `write` is not called.
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
        live.publish(|| unreachable!("there is no subscriber"));
        let all: Vec<_> = std::iter::from_fn(|| live.subscribe()).collect();
        assert_eq!((all.len(), live.watchers()), (MAX_WATCHERS, MAX_WATCHERS));
        live.publish(|| "{}".to_owned());
        assert!(all.iter().all(|one| one.events.borrow().number == 1));
        drop(all);
        assert_eq!(live.watchers(), 0);
    }
}
