//! The heads of requests and responses.

use super::{ClientCertificate, DescriptorHead};
use crate::{RequestContext, body::BodyValues};
use std::{any::Any, net::IpAddr};

/// The head of a request. Each framework integration implements it for its own type.
pub trait RequestHead {
    /// `GET`, `POST` and so on.
    fn method(&self) -> &str;

    /// The raw path.
    fn path(&self) -> &str;

    /// The raw query string after the `?`; `None` if it is missing, or the framework does not provide it.
    fn query(&self) -> Option<&str> {
        None
    }

    /// The requested host, if known.
    fn host(&self) -> Option<&str>;

    /// The matched route, as the router names it, such as `/users/{id}`; `None` without a router, or before
    /// one has matched.
    fn route(&self) -> Option<&str>;

    /// The peer address of the connection, which may be that of a proxy; `None` if it was not recorded.
    fn peer(&self) -> Option<IpAddr>;

    /// The client address, if the framework integration has resolved it through trusted proxies; `None` if
    /// the user of this trait must resolve it.
    fn client(&self) -> Option<IpAddr> {
        None
    }

    /// How to make the server record the peer address, if it may be missing. Logged once if a limit by
    /// address gets a request without one.
    fn missing_peer_fix(&self) -> Option<&'static str> {
        None
    }

    /// The name of the listener of the connection; `None` if listeners have no names.
    fn listener(&self) -> Option<&str> {
        None
    }

    /// The verified certificate of the client of the connection; `None` if it has none, or the framework does not provide it.
    fn client_certificate(&self) -> Option<&ClientCertificate> {
        None
    }

    /// The value of a key that a log recorded for this request, where the request itself is not available. `key` is its notation
    /// in a policy, such as `jwt sub`.
    fn recorded_key(&self, key: &str) -> Option<&str> {
        let _ = key;
        None
    }

    /// The first value of a header, by its name in lower case. The bytes are not validated.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// Calls `each` with all values of a header in order, by its name in lower case.
    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));

    /// The extensions of the request, in the type of the framework.
    fn extensions(&self) -> Option<&dyn Any>;

    /// The context stored with the request; otherwise that of the task is used.
    fn context(&self) -> Option<&RequestContext> {
        None
    }

    /// The values of its body that rules need; `None` if the body was not read.
    fn body(&self) -> Option<&BodyValues> {
        None
    }

    /// The cost that was recorded for the rule of this name, if this request is replayed from a log, which has no body.
    fn recorded_cost(&self, rule: &str) -> Option<u64> {
        let _ = rule;
        None
    }

    /// The descriptor, if this is not an HTTP request but a descriptor of Envoy's rate limit protocol.
    fn descriptor(&self) -> Option<&DescriptorHead> {
        None
    }
}

/// The head of a response.
pub trait ResponseHead {
    /// The status, such as 200.
    fn status(&self) -> u16;

    /// The first value of a header.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// The cost that this response stated for the rule of this name, if it is replayed from a log.
    fn recorded_cost(&self, rule: &str) -> Option<u64> {
        let _ = rule;
        None
    }
}
