//! What is known of a request before its body, and of an answer before its body.

use crate::Facts;
use std::{any::Any, net::IpAddr};

/// A request before its body is read. Each surface gives its own requests this face.
pub trait RequestHead {
    /// `GET`, `POST` and so on.
    fn method(&self) -> &str;

    /// The path, as it came.
    fn path(&self) -> &str;

    /// What stands behind the `?` of the address, as it came; `None` if there is nothing, or the surface does not tell.
    fn query(&self) -> Option<&str> {
        None
    }

    /// The host that was asked for, if it was said.
    fn host(&self) -> Option<&str>;

    /// The route that matched, as the router names it, such as `/users/{id}`; `None` where there is no router, or none
    /// has matched yet.
    fn route(&self) -> Option<&str>;

    /// The address at the other end of the connection, which may be that of a proxy; `None` if nobody noted it down.
    fn peer(&self) -> Option<IpAddr>;

    /// The address of the client, where the surface has resolved it from the peer and trusted proxies; `None` where
    /// whoever needs it resolves it.
    fn client(&self) -> Option<IpAddr> {
        None
    }

    /// How to make the server record the peer's address, where it may have been forgotten. A layer that counts by that
    /// address logs it once if a request has none.
    fn peer_hint(&self) -> Option<&'static str> {
        None
    }

    /// The name of the listener that it came in through; `None` where listeners have no names, or the surface has none.
    fn listener(&self) -> Option<&str> {
        None
    }

    /// The first value of a header, by its name in lower case. Any bytes: nobody has checked them.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// All values of a header, by its name in lower case, in their order.
    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));

    /// What the application noted down beside the request, in the type that the surface has for it.
    fn extensions(&self) -> Option<&dyn Any>;

    /// What is known of the client, where it is noted down beside the request; else it is looked for around the task.
    fn facts(&self) -> Option<&Facts> {
        None
    }
}

/// An answer before its body is sent.
pub trait ResponseHead {
    /// The status, such as 200.
    fn status(&self) -> u16;

    /// The first value of a header.
    fn header(&self, name: &str) -> Option<&[u8]>;
}
