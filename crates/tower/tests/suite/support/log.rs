//! Captures log events of the current thread.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, Mutex},
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::DefaultGuard,
};

/// The captured events of this workspace, one line each.
pub(crate) struct CapturedEvents {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

struct EventRecorder(Arc<Mutex<Vec<String>>>);

struct EventLine(String);

pub(crate) fn capture() -> CapturedEvents {
    let lines = Arc::default();
    let guard = tracing::subscriber::set_default(EventRecorder(Arc::clone(&lines)));
    tracing::callsite::rebuild_interest_cache();
    CapturedEvents { lines, _guard: guard }
}

impl CapturedEvents {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for EventRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate")
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = EventLine(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
