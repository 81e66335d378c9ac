//! Upstream servers that write raw bytes.

use std::{future::Future, io, net::SocketAddr};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// An upstream server in this process.
pub(crate) struct TestUpstream {
    pub(crate) address: SocketAddr,
    accept_task: JoinHandle<()>,
}

impl TestUpstream {
    /// Starts a server that runs `serve` for each connection.
    pub(crate) async fn start<F, A>(serve: F) -> Self
    where
        F: Fn(BufReader<TcpStream>) -> A + Send + Sync + 'static,
        A: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accept_task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve(BufReader::with_capacity(1 << 16, stream)));
            }
        });
        Self { address, accept_task }
    }

    /// Starts a server that responds `ok` to every request.
    pub(crate) async fn start_ok() -> Self {
        Self::start(|mut stream| async move {
            while read_head(&mut stream).await?.is_some() {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?;
            }
            Ok(())
        })
        .await
    }

    /// The part of a policy that routes to this server.
    pub(crate) fn upstream_config(&self) -> String {
        format!("upstreams: {{ app: 'http://{}' }}\nroutes: app\n", self.address)
    }
}

impl Drop for TestUpstream {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

/// Reads the lines of the next request head, in lower case; `None` at the end.
pub(crate) async fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => return Ok(Some(lines)),
            line => lines.push(line.to_ascii_lowercase()),
        }
    }
}
