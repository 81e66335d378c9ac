//! Gates on a clock that the test turns.

#![allow(dead_code, reason = "each test uses a part of it")]

use http::{Request, Response};
use std::{net::SocketAddr, time::Duration};
use tidegate_engine::{Clock, ClockHand};
use tidegate_rule::{Declaration, RequestLimit, Rules, Settings, request::key};

/// Rules of a test's own, and its clock.
pub(crate) struct Program {
    pub(crate) rules: Rules,
    pub(crate) hand: ClockHand,
}

pub(crate) fn program() -> Program {
    let (clock, hand) = Clock::manual();
    let rules = Rules::new();
    rules.apply(Settings::new().clock(clock)).unwrap();
    Program { rules, hand }
}

impl Program {
    /// A rule for everybody together.
    pub(crate) fn limit(&self, name: &'static str, quota: &str) -> RequestLimit {
        self.declared(Declaration::of(name).quota(quota).unwrap())
    }

    /// The same for each peer.
    pub(crate) fn per_peer(&self, name: &'static str, quota: &str) -> RequestLimit {
        self.limit(name, quota).key(key::peer())
    }

    pub(crate) fn declared(&self, declaration: Declaration) -> RequestLimit {
        RequestLimit::new(self.rules.rule(declaration).unwrap())
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.hand.advance(time);
    }
}

/// What a rule has left for everybody together.
pub(crate) fn left(limit: &RequestLimit) -> u64 {
    let limiter = limit.rule().limiter().unwrap();
    limiter.in_memory().unwrap().key("").peek(0).remaining()
}

/// A request to a path.
pub(crate) fn get(path: &str) -> Request<()> {
    Request::builder().uri(path).body(()).unwrap()
}

/// The same from an address.
pub(crate) fn get_from(path: &str, peer: [u8; 4]) -> Request<()> {
    let mut request = get(path);
    request.extensions_mut().insert(SocketAddr::from((peer, 4_000)));
    request
}

pub(crate) fn header<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}
