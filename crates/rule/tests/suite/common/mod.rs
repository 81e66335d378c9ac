//! A request that consists of its head.

use std::{any::Any, net::IpAddr};
use tidegate_rule::{RequestContext, request::RequestHead};

/// A request for tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRequest {
    pub(crate) path: &'static str,
    pub(crate) host: Option<&'static str>,
    pub(crate) route: Option<&'static str>,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) headers: Vec<(&'static str, Vec<u8>)>,
    pub(crate) context: Option<RequestContext>,
}

impl TestRequest {
    pub(crate) fn from_peer(peer: &str) -> Self {
        Self { path: "/", peer: Some(peer.parse().unwrap()), ..Self::default() }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }
}

impl RequestHead for TestRequest {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        self.path
    }

    fn host(&self) -> Option<&str> {
        self.host
    }

    fn route(&self) -> Option<&str> {
        self.route
    }

    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(existing, _)| *existing == name).map(|(_, value)| &**value)
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.iter().filter(|(existing, _)| *existing == name).for_each(|(_, value)| each(value));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }

    fn context(&self) -> Option<&RequestContext> {
        self.context.as_ref()
    }
}
