//! Captures log events.

use std::fmt::{self, Write as _};
use tokio::{sync::mpsc, time::timeout};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, set_default},
};

/// Captures the log events of this thread.
pub(crate) struct LogCapture {
    messages: mpsc::UnboundedReceiver<String>,
    _guard: DefaultGuard,
}

impl LogCapture {
    pub(crate) fn start() -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        Self { messages, _guard: set_default(CaptureSubscriber(sender)) }
    }

    /// Waits for an event that contains `part`.
    pub(crate) async fn wait_for(&mut self, part: &str) {
        self.collect_until(part).await;
    }

    /// Waits for an event that contains `part`, and returns the events before it.
    pub(crate) async fn collect_until(&mut self, part: &str) -> Vec<String> {
        let mut before = Vec::new();
        let found = async {
            while let Some(message) = self.messages.recv().await {
                if message.contains(part) {
                    return;
                }
                before.push(message);
            }
        };
        let found = timeout(super::TEST_TIMEOUT, found).await;
        found.unwrap_or_else(|_| panic!("no log event contains {part:?}"));
        before
    }
}

struct CaptureSubscriber(mpsc::UnboundedSender<String>);

struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for CaptureSubscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText(String::new());
        event.record(&mut text);
        // The receiver may be dropped.
        let _ = self.0.send(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
