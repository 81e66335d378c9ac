//! The layer and the service that all kinds of middleware share. A kind adds what its service does with a request.

use std::sync::Arc;
use tower_layer::Layer;

/// A layer with these settings, which are one of [`tidegate_rule::middleware`]. Its aliases document the kinds.
#[derive(Clone, Debug, Default)]
pub struct MiddlewareLayer<T> {
    settings: Arc<T>,
}

impl<T> MiddlewareLayer<T> {
    /// A layer with these settings, or with what they can be made of.
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

/// A service behind a [`MiddlewareLayer`].
#[derive(Clone, Debug)]
pub struct MiddlewareService<S, T> {
    pub(crate) inner: S,
    /// Shared with the clones: a server clones its service for each connection, or for each request.
    pub(crate) settings: Arc<T>,
}
