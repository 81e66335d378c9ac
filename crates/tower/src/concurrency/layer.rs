//! How many at once, and who may wait.

use super::service::Concurrency;
use std::{borrow::Cow, sync::Arc, time::Duration};
use tidegate_engine::{Priority, Slots};
use tidegate_rule::{
    Answer, Limited,
    request::Head,
    surface::{Line, Terms, Until},
};
use tower_layer::Layer;

/// Lets no more requests into a service at once than there are slots. Each holds its slot until the body of its answer has
/// ended, or it was given up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_engine::Slots;
/// use tidegate_tower::ConcurrencyLayer;
///
/// let slots = Slots::builder().waiting_places(200).build(64)?;
/// let layer = ConcurrencyLayer::new(slots).wait(Duration::from_millis(500));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For so many at once of each client, use a rule with a quota such as `3 at once`.
///
/// Whoever finds no slot is answered with 503 and `Retry-After`, in gRPC with `UNAVAILABLE`. All services that are made from
/// one layer share the slots, and what else uses them.
#[derive(Clone, Debug)]
pub struct ConcurrencyLayer {
    slots: Slots,
    line: Line,
    terms: Terms,
}

impl ConcurrencyLayer {
    /// As many as there are slots. Nobody waits unless told otherwise.
    pub fn new(slots: Slots) -> Self {
        let terms = Terms { until: Until::Body, ..Terms::new("concurrency") };
        Self { slots, line: Line::default(), terms }
    }

    /// How long a request may wait in line for a slot. The line has as many places as the slots say.
    #[must_use]
    pub fn wait(mut self, longest: Duration) -> Self {
        self.line.patience = longest;
        self
    }

    /// Who of those in line goes first; whoever came first unless told otherwise.
    #[must_use]
    pub fn priority(mut self, priority: impl Fn(&dyn Head) -> Priority + Send + Sync + 'static) -> Self {
        self.line.priority = Some(Arc::new(priority));
        self
    }

    /// The name by which it is called in answers.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.terms.name = name.into();
        self
    }

    /// Until when a slot is held; until the body of the answer has ended unless told otherwise.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.terms.until = until;
        self
    }

    /// What to answer to whoever is not let in.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Limited) -> Answer + Send + Sync + 'static) -> Self {
        self.terms.answer = Arc::new(answer);
        self
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = Concurrency<S>;

    fn layer(&self, inner: S) -> Concurrency<S> {
        Concurrency::new(inner, self.slots.clone(), self.line.clone(), Arc::new(self.terms.clone()))
    }
}
