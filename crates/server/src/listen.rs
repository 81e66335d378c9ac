//! Listeners.

use crate::Fault;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    rc::Rc,
};
use tidegate_policy::model::Listener;
use tokio::net::TcpStream;

/// A listener that is bound. Connections that come before somebody serves them wait.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4_096;

impl Bound {
    /// Binds it. A port 0 becomes one that is free; [`address`](Self::address) tells which.
    pub fn bind(listener: &Listener) -> Result<Self, Fault> {
        let address = listener.address;
        let fault = |source| Fault::Listen { address, source };
        let listener = listen(address).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// One more descriptor of the same listener, for one more thread.
    pub(crate) fn door(&self) -> io::Result<PlainDoor> {
        Ok(PlainDoor { listener: self.listener.try_clone()? })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A listener on its way to its thread.
pub(crate) struct PlainDoor {
    listener: TcpListener,
}

/// A listener in its thread.
#[derive(Clone)]
pub(crate) struct Door {
    listener: Rc<tokio::net::TcpListener>,
}

impl PlainDoor {
    /// Opens it; only inside of a runtime.
    pub(crate) fn open(self) -> io::Result<Door> {
        Ok(Door { listener: Rc::new(tokio::net::TcpListener::from_std(self.listener)?) })
    }
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.listener.accept().await
    }
}
