//! Ports that stay ours.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

/// A port on loopback that nobody else is given, whether a server listens on it or not.
///
/// A socket that is bound and never listens holds it. Servers ask to reuse addresses, so theirs may listen there; the
/// system hands the port to nobody who asks for any free one; and while no server listens, connections are refused.
#[derive(Debug)]
pub(super) struct ReservedPort {
    address: SocketAddr,
    _holder: OwnedFd,
}

/// A cluster's nodes talk to each other on a port that is this much higher.
const BUS_PORT_OFFSET: u16 = 10_000;
const MAX_ATTEMPTS: usize = 100;

impl ReservedPort {
    /// Any free port.
    pub(super) fn reserve() -> Result<Self, String> {
        Self::reserve_exact(0).map_err(|error| format!("no free port: {error}"))
    }

    /// A port for a node of a cluster, and the one of its bus.
    pub(super) fn reserve_with_bus() -> Result<(Self, Self), String> {
        for _ in 0..MAX_ATTEMPTS {
            let bus = Self::reserve()?;
            if let Some(Ok(port)) = bus.number().checked_sub(BUS_PORT_OFFSET).map(Self::reserve_exact) {
                return Ok((port, bus));
            }
        }
        Err(format!("no free port with another free one {BUS_PORT_OFFSET} above it"))
    }

    pub(super) fn number(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    fn reserve_exact(number: u16) -> rustix::io::Result<Self> {
        let holder = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Only afterwards may others reuse the address: this one must not share the port of another holder.
        bind(&holder, &SocketAddr::from((Ipv4Addr::LOCALHOST, number)))?;
        sockopt::set_socket_reuseaddr(&holder, true)?;
        let number = SocketAddr::try_from(getsockname(&holder)?)?.port();
        Ok(Self { address: SocketAddr::from((Ipv4Addr::LOCALHOST, number)), _holder: holder })
    }
}

#[cfg(test)]
mod tests {
    use super::ReservedPort;
    use std::net::TcpListener;

    #[test]
    fn port_has_one_holder() -> Result<(), String> {
        let port = ReservedPort::reserve()?;
        assert!(
            ReservedPort::reserve_exact(port.number()).is_err(),
            "two holders share port {}",
            port.number()
        );
        TcpListener::bind(port.address()).map(drop).map_err(|error| format!("no server can listen: {error}"))
    }
}
