//! Where connections come from.

use std::{future::Future, io};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};

#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

/// Where connections come from.
pub trait Accept: Send {
    /// What a connection is.
    type Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one. Dropping this loses none.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Accept for TcpListener {
    type Connection = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // An answer is short, and somebody waits for it.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

#[cfg(unix)]
impl Accept for UnixListener {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}
