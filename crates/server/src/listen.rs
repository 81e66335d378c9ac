//! Listeners.

use crate::{Fault, Scheme, stream::Stream, tls::Certificate};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};
use tidegate_policy::model::Listener;
use tokio::{net::TcpStream, time};

/// A listener that is bound. Connections that come before somebody serves them wait.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    declared: Listener,
    certificate: Option<Arc<Certificate>>,
}

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4_096;

impl Bound {
    /// Binds it. A port 0 becomes one that is free; [`address`](Self::address) tells which.
    pub fn bind(declared: &Listener) -> Result<Self, Fault> {
        Self::with(declared, listen)
    }

    /// The same socket, with what is declared now. Those who wait to be accepted go on waiting.
    pub(crate) fn again(&self, declared: &Listener) -> Result<Self, Fault> {
        Self::with(declared, |_| self.listener.try_clone())
    }

    fn with(
        declared: &Listener,
        listen: impl FnOnce(SocketAddr) -> io::Result<TcpListener>,
    ) -> Result<Self, Fault> {
        let certificate = declared.tls.as_ref().map(Certificate::load).transpose()?;
        let address = declared.address;
        let fault = |source| Fault::Listen { address, source };
        let listener = listen(address).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        Ok(Self { listener, address, declared: declared.clone(), certificate })
    }

    /// What it was bound for.
    pub(crate) fn declared(&self) -> &Listener {
        &self.declared
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificate.clone()
    }

    /// One more descriptor of the same listener, for one more thread.
    pub(crate) fn door(&self) -> io::Result<PlainDoor> {
        Ok(PlainDoor { listener: self.listener.try_clone()?, certificate: self.certificate.clone() })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // So that the same port can be listened on in both families, whatever the machine is set to.
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A listener on its way to its thread.
pub(crate) struct PlainDoor {
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
}

/// A listener in its thread.
pub(crate) struct Door {
    listener: tokio::net::TcpListener,
    certificate: Option<Arc<Certificate>>,
}

impl PlainDoor {
    /// Opens it; only inside of a runtime.
    pub(crate) fn open(self) -> io::Result<Door> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        Ok(Door { listener, certificate: self.certificate })
    }
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.listener.accept().await
    }

    pub(crate) fn scheme(&self) -> Scheme {
        if self.certificate.is_some() { Scheme::Https } else { Scheme::Http }
    }

    /// What clients are welcomed with. It does not keep the listener open.
    pub(crate) fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificate.clone()
    }
}

/// Agrees with a client on how to speak; `None` where that fails.
pub(crate) async fn welcome(
    stream: TcpStream,
    certificate: Option<Arc<Certificate>>,
    within: Duration,
) -> Option<Stream> {
    let Some(certificate) = certificate else { return Some(Stream::Plain(stream)) };
    let agreed = time::timeout(within, certificate.acceptor().accept(stream)).await.ok()?.ok()?;
    Some(Stream::Tls(Box::new(agreed.into())))
}
