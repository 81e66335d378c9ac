//! Reserved ports.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

/// A port on loopback that stays reserved, whether a server listens on it or not.
///
/// A socket that is bound but never listens reserves it. Servers set `SO_REUSEADDR`, so they can listen on it; the system
/// does not assign it as a free port; and while no server listens, connections are refused.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    _holder: OwnedFd,
}

/// The distance of the cluster bus port from the client port.
const BUS_PORT_OFFSET: u16 = 10_000;
const MAX_ATTEMPTS: usize = 100;

impl ReservedPort {
    /// Reserves any free port.
    pub fn reserve() -> Result<Self, String> {
        Self::reserve_exact(0).map_err(|error| format!("no free port: {error}"))
    }

    /// Reserves a port for a cluster node, and its bus port.
    pub(super) fn reserve_with_bus() -> Result<(Self, Self), String> {
        for _ in 0..MAX_ATTEMPTS {
            let bus = Self::reserve()?;
            if let Some(Ok(port)) = bus.number().checked_sub(BUS_PORT_OFFSET).map(Self::reserve_exact) {
                return Ok((port, bus));
            }
        }
        Err(format!("no free pair of ports {BUS_PORT_OFFSET} apart"))
    }

    pub(super) fn number(&self) -> u16 {
        self.address.port()
    }

    /// The address on loopback.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn reserve_exact(number: u16) -> rustix::io::Result<Self> {
        let holder = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Set after the bind, so that it fails if another holder has the port.
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
