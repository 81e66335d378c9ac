//! Listeners.

use crate::{Fault, Scheme, stream::Stream, tls::Certificate};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
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

    /// Binds it without accepting connections: they are refused until [`listen`](Self::listen). On `::` it is for both
    /// families, where the machine has both.
    pub(crate) fn reserve(declared: &Listener) -> Result<Self, Fault> {
        Self::with(declared, reserve)
    }

    /// Accepts connections from now on, if it was only reserved.
    pub(crate) fn listen(&self) -> Result<(), Fault> {
        accept(&self.listener).map_err(|source| Fault::Listen { address: self.address, source })
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
        Ok(PlainDoor {
            listener: self.listener.try_clone()?,
            certificate: self.certificate.clone(),
            name: self.declared.name.as_deref().map(Into::into),
        })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    // So that the same port can be listened on in both families, whatever the machine is set to.
    let listener = bound(address, Families::Own)?;
    accept(&listener)?;
    Ok(listener)
}

/// A socket that refuses connections until [`accept`]. On `::` it is for both families.
pub(crate) fn reserve(address: SocketAddr) -> io::Result<TcpListener> {
    let every = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    match bound(address, Families::Both) {
        // A machine without IPv6 still has all of its IPv4 addresses.
        Err(error) if address == every && is_without_family(&error) => {
            bound(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()), Families::Own)
        }
        reserved => reserved,
    }
}

/// Accepts connections from now on.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<()> {
    SockRef::from(listener).listen(BACKLOG)
}

/// Whose connections a socket of IPv6 takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Families {
    /// Those of IPv6.
    Own,
    /// Those of IPv4, too.
    Both,
}

fn bound(address: SocketAddr, families: Families) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(families == Families::Own)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn is_without_family(error: &io::Error) -> bool {
    // Linux without IPv6 has no such family; with IPv6 disabled, no such address.
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// A listener on its way to its thread.
pub(crate) struct PlainDoor {
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
    name: Option<Arc<str>>,
}

/// A listener in its thread.
pub(crate) struct Door {
    listener: tokio::net::TcpListener,
    certificate: Option<Arc<Certificate>>,
    name: Option<Arc<str>>,
}

impl PlainDoor {
    /// Opens it; only inside of a runtime.
    pub(crate) fn open(self) -> io::Result<Door> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        Ok(Door { listener, certificate: self.certificate, name: self.name })
    }
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.listener.accept().await
    }

    pub(crate) fn scheme(&self) -> Scheme {
        if self.certificate.is_some() { Scheme::Https } else { Scheme::Http }
    }

    /// Its name in the policy.
    pub(crate) fn name(&self) -> Option<Arc<str>> {
        self.name.clone()
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
