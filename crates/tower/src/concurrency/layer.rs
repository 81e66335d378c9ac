//! So many at once in front of services.

use super::service::Concurrency;
use tidegate_rule::surface::RequestSlots;
use tower_layer::Layer;

/// Lets no more requests into a service at once than there are slots. Each holds its slot until the body of its answer has
/// ended, or it was given up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::Slots;
/// use tidegate_tower::{ConcurrencyLayer, RequestSlots};
///
/// let slots = Slots::builder().waiting_places(200).build(64)?;
/// let layer = ConcurrencyLayer::new(RequestSlots::new(slots).wait(Duration::from_millis(500)));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For so many at once of each client, use a rule with a quota such as `3 at once`.
///
/// Whoever finds no slot is answered with 503 and `Retry-After`, in gRPC with `UNAVAILABLE`. All services that are made from
/// one layer share the slots, and what else uses them.
#[derive(Clone, Debug)]
pub struct ConcurrencyLayer {
    slots: RequestSlots,
}

impl ConcurrencyLayer {
    /// A layer with these slots.
    pub fn new(slots: impl Into<RequestSlots>) -> Self {
        Self { slots: slots.into() }
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = Concurrency<S>;

    fn layer(&self, inner: S) -> Concurrency<S> {
        Concurrency::new(inner, self.slots.clone())
    }
}
