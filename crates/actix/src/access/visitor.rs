//! Who asks to be let in, and what is held against them.

use crate::held::Held;
use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};
use tidegate_core::Report;
use tidegate_engine::{AccessControl, Standing};

/// Who a request is from, as lists and bans know it.
#[derive(Clone, Debug)]
pub(super) enum Visitor {
    Address(IpAddr),
    Key(Box<str>),
    Unknown,
}

impl Visitor {
    /// Where it stands; `None` for one of whom nothing is known.
    ///
    /// A client of IPv6 has a whole network to itself, so bans hold for that; lists say for themselves how far they reach.
    pub(super) fn standing(&self, control: &AccessControl) -> Option<Standing> {
        match self {
            Self::Address(address) => Some(match control.check(*address) {
                Standing::Unlisted => {
                    control.bans().check(&network(*address)).map_or(Standing::Unlisted, Standing::Banned)
                }
                listed => listed,
            }),
            Self::Key(key) => Some(control.check_key(key)),
            Self::Unknown => None,
        }
    }

    fn denied(&self, control: &AccessControl) {
        match self {
            Self::Address(address) => {
                if control.check(*address) == Standing::Unlisted {
                    control.bans().record_denial(&network(*address));
                }
            }
            Self::Key(key) => _ = control.record_denial_of_key(key),
            Self::Unknown => {}
        }
    }
}

/// A visitor who was let in; a failure is a denial further inside.
pub struct Guest {
    pub(super) visitor: Visitor,
    pub(super) control: Arc<AccessControl>,
}

impl Held for Guest {
    fn end(self: Box<Self>, report: Report) {
        if report == Report::Failure {
            self.visitor.denied(&self.control);
        }
    }
}

/// An address of IPv4, or the network of one of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}
