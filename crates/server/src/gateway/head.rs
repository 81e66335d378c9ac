//! Requests and answers as rules see them.

use crate::Origin;
use http::{HeaderValue, header, request, response};
use std::{any::Any, net::IpAddr};
use tidegate_rule::request::{Head, Reply};

/// A request that came in here.
#[derive(Clone, Copy)]
pub(crate) struct GatewayHead<'a> {
    parts: &'a request::Parts,
    peer: IpAddr,
    client: Option<IpAddr>,
    listener: Option<&'a str>,
}

impl<'a> GatewayHead<'a> {
    pub(super) fn new(parts: &'a request::Parts, origin: &'a Origin) -> Self {
        let (client, listener) = (Some(origin.client), origin.listener.as_deref());
        Self { client, listener, ..Self::of(parts, origin.peer.ip()) }
    }

    /// One that came from there, whose client is not resolved yet.
    pub(crate) fn of(parts: &'a request::Parts, peer: IpAddr) -> Self {
        Self { parts, peer: peer.to_canonical(), client: None, listener: None }
    }
}

impl Head for GatewayHead<'_> {
    fn method(&self) -> &str {
        self.parts.method.as_str()
    }

    fn path(&self) -> &str {
        self.parts.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    fn host(&self) -> Option<&str> {
        self.parts.uri.host().or_else(|| self.parts.headers.get(header::HOST)?.to_str().ok())
    }

    fn route(&self) -> Option<&str> {
        None
    }

    #[inline]
    fn peer(&self) -> Option<IpAddr> {
        Some(self.peer)
    }

    #[inline]
    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn listener(&self) -> Option<&str> {
        self.listener
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.parts.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.parts.headers.get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

/// An answer before its body.
pub(super) struct GatewayReply<'a>(pub(super) &'a response::Parts);

impl Reply for GatewayReply<'_> {
    fn status(&self) -> u16 {
        self.0.status.as_u16()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers.get(name).map(HeaderValue::as_bytes)
    }
}
