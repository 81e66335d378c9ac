//! The layer and the service that all middleware types share. Each type implements `Service` for its settings.

use std::sync::Arc;
use tower_layer::Layer;

/// A layer with settings of [`tidegate_rule::middleware`]. Its aliases, such as [`GuardLayer`](crate::GuardLayer), document
/// each type.
#[derive(Clone, Debug, Default)]
pub struct MiddlewareLayer<T> {
    settings: Arc<T>,
}

impl<T> MiddlewareLayer<T> {
    /// Creates a layer with these settings.
    pub fn new(settings: impl Into<T>) -> Self {
        Self { settings: Arc::new(settings.into()) }
    }
}

impl<S, T> Layer<S> for MiddlewareLayer<T> {
    type Service = MiddlewareService<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        MiddlewareService { inner, settings: self.settings.clone() }
    }
}

/// The service of a [`MiddlewareLayer`].
#[derive(Clone, Debug)]
pub struct MiddlewareService<S, T> {
    pub(crate) inner: S,
    /// Shared by all clones, because a server clones its service for each connection or request.
    pub(crate) settings: Arc<T>,
}
