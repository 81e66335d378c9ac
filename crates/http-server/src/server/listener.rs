//! Listeners: bind, accept with backoff, TLS handshake, certificate refresh.

use crate::{Certificate, StartupError, Stream, events};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::{
    future::poll_fn,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tidegate_policy::model;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::JoinSet,
    time,
};

/// A bound TCP listener and its certificate. Connections queue in the backlog until a server accepts them.
#[derive(Debug)]
pub struct BoundListener {
    socket: StdListener,
    address: SocketAddr,
    /// The address in the policy, where port 0 means any free port.
    declared: SocketAddr,
    name: Option<Arc<str>>,
    certificate: Option<Arc<Certificate>>,
}

/// The backlog of a listening socket; the system may allow fewer connections.
const BACKLOG_SIZE: i32 = 4_096;
/// Delay after a failed accept. Most failures mean that no file descriptor is free.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// How often the files of certificates are checked.
const CERTIFICATE_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

impl BoundListener {
    /// Binds a listener. Port 0 becomes a free port; [`address`](Self::address) returns it.
    pub fn bind(declared: &model::ListenerSpec) -> Result<Self, StartupError> {
        Self::bind_or_reuse(declared, [])
    }

    /// Reuses the socket and the backlog of the existing listener with the same declared address, or binds a new socket.
    pub fn bind_or_reuse<'a>(
        declared: &model::ListenerSpec,
        existing: impl IntoIterator<Item = &'a Self>,
    ) -> Result<Self, StartupError> {
        let certificate = declared.tls.as_ref().map(Certificate::load).transpose()?;
        let existing = existing.into_iter().find(|existing| existing.declared == declared.address);
        let name = declared.name.as_deref().map(Into::into);
        Self::new(declared.address, name, certificate, |address| match existing {
            Some(existing) => existing.socket.try_clone(),
            None => listen(address),
        })
    }

    /// Binds an address that refuses connections until [`listen`](Self::listen). On `::` it accepts both address families,
    /// where the machine has both.
    pub fn reserve(address: SocketAddr, certificate: Option<Arc<Certificate>>) -> Result<Self, StartupError> {
        Self::new(address, None, certificate, reserve)
    }

    fn new(
        declared: SocketAddr,
        name: Option<Arc<str>>,
        certificate: Option<Arc<Certificate>>,
        socket: impl FnOnce(SocketAddr) -> io::Result<StdListener>,
    ) -> Result<Self, StartupError> {
        let fault = |source| StartupError::Listen { address: declared, source };
        let socket = socket(declared).map_err(fault)?;
        let address = socket.local_addr().map_err(fault)?;
        Ok(Self { socket, address, declared, name, certificate })
    }

    /// Accepts connections from now on, if the address was only [reserved](Self::reserve).
    pub fn listen(&self) -> Result<(), StartupError> {
        let fault = |source| StartupError::Listen { address: self.address, source };
        SockRef::from(&self.socket).listen(BACKLOG_SIZE).map_err(fault)
    }

    /// The local address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its certificate, where it uses TLS.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificate.clone()
    }

    /// Another descriptor of the same socket, for another thread.
    pub fn try_clone(&self) -> Result<Self, StartupError> {
        let (name, certificate) = (self.name.clone(), self.certificate.clone());
        let socket = self.socket.try_clone().map_err(StartupError::System)?;
        Ok(Self { socket, address: self.address, declared: self.declared, name, certificate })
    }

    /// Registers the socket with the runtime of this thread.
    pub fn into_listener(self) -> Result<Listener, StartupError> {
        let socket = TcpListener::from_std(self.socket).map_err(StartupError::System)?;
        Ok(Listener { socket, certificate: self.certificate, name: self.name })
    }
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    // So that the same port can be bound in both families, whatever the machine's default is.
    let socket = bind(address, AddressFamilies::Ipv6Only)?;
    SockRef::from(&socket).listen(BACKLOG_SIZE)?;
    Ok(socket)
}

fn reserve(address: SocketAddr) -> io::Result<StdListener> {
    let every = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    match bind(address, AddressFamilies::DualStack) {
        // A machine without IPv6 still has all of its IPv4 addresses.
        Err(error) if address == every && is_family_unsupported(&error) => {
            bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()), AddressFamilies::Ipv6Only)
        }
        reserved => reserved,
    }
}

/// The address families that an IPv6 socket accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressFamilies {
    /// IPv6 only.
    Ipv6Only,
    /// IPv6 and IPv4.
    DualStack,
}

fn bind(address: SocketAddr, families: AddressFamilies) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(families == AddressFamilies::Ipv6Only)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn is_family_unsupported(error: &io::Error) -> bool {
    // Linux without IPv6 has no such family; with IPv6 disabled, no such address.
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// A listening socket of a runtime.
pub trait Accept: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The address of the other side.
    type Peer: Send;

    /// Accepts the next connection.
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Self::Stream, Self::Peer)>>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.poll_accept(context).map_ok(|(stream, peer)| {
            // Responses are short, and clients wait for them.
            let _ = stream.set_nodelay(true);
            (stream, peer)
        })
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;
    type Peer = ();

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(UnixStream, ())>> {
        self.poll_accept(context).map_ok(|(stream, _)| (stream, ()))
    }
}

/// The scheme of the requests of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain text.
    Http,
    /// TLS.
    Https,
}

/// A listener that a thread accepts connections from.
pub struct Listener<L = TcpListener> {
    socket: L,
    certificate: Option<Arc<Certificate>>,
    name: Option<Arc<str>>,
}

impl<L: Accept> Listener<L> {
    /// A listener without a name.
    pub fn new(socket: L, certificate: Option<Arc<Certificate>>) -> Self {
        Self { socket, certificate, name: None }
    }

    /// Accepts the next connection. A failed accept is logged and repeated after 50 ms.
    pub async fn accept(&self) -> (L::Stream, L::Peer) {
        loop {
            match poll_fn(|context| self.socket.poll_accept(context)).await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    events::AcceptFailed { error: &error }.emit();
                    time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    /// The scheme of its requests.
    pub fn scheme(&self) -> Scheme {
        if self.certificate.is_some() { Scheme::Https } else { Scheme::Http }
    }

    /// Its name in the policy.
    pub fn name(&self) -> Option<Arc<str>> {
        self.name.clone()
    }

    /// Its certificate, where it uses TLS.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificate.clone()
    }
}

/// Performs the TLS handshake, where there is a certificate; `None` if it fails or times out.
pub async fn tls_accept<I>(
    stream: I,
    certificate: Option<Arc<Certificate>>,
    timeout: Duration,
) -> Option<Stream<I>>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let Some(certificate) = certificate else { return Some(Stream::Plain(stream)) };
    match time::timeout(timeout, certificate.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => return Some(Stream::Tls(Box::new(stream.into()))),
        Ok(Err(error)) => events::TlsHandshakeFailed { error: &error }.emit(),
        Err(_) => events::TlsHandshakeTimedOut { timeout }.emit(),
    }
    None
}

/// Reloads these certificates when their files change, until the returned set is dropped.
pub fn refresh_certificates(certificates: Vec<Arc<Certificate>>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if !certificates.is_empty() {
        tasks.spawn(async move {
            loop {
                time::sleep(CERTIFICATE_REFRESH_INTERVAL).await;
                certificates.iter().for_each(|certificate| certificate.refresh());
            }
        });
    }
    tasks
}
