//! Test helpers: the binary with a policy, upstream servers, and clients.

mod load;
mod process;
mod server;

pub(crate) use load::BackgroundLoad;
pub(crate) use process::GatewayProcess;
pub(crate) use server::{TestUpstream, read_head};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::{net::SocketAddr, process::Command, time::Duration};
use tokio::{net::TcpStream, time::timeout};

/// A timeout that only a failing test reaches.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that sends one request at a time.
pub(crate) struct HttpClient(http1::SendRequest<Empty<Bytes>>);

impl HttpClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    /// Sends a request. Returns the status and the body, or an error if the response is missing or incomplete.
    pub(crate) async fn get(&mut self, path: &str) -> Result<(StatusCode, String), String> {
        self.get_host("example.org", path).await
    }

    /// The same with another host.
    pub(crate) async fn get_host(&mut self, host: &str, path: &str) -> Result<(StatusCode, String), String> {
        let request = Request::get(path).header("host", host).body(Empty::new()).unwrap();
        let exchange = async {
            let response = self.0.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>((status, String::from_utf8_lossy(&body).into_owned()))
        };
        timeout(TEST_TIMEOUT, exchange).await.expect("response timeout").map_err(|error| format!("{error:?}"))
    }

    /// Whether the connection accepts another request; false if the server has closed it.
    pub(crate) async fn is_open(&mut self) -> bool {
        self.0.ready().await.is_ok()
    }
}

/// Sends one request over a new connection.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (StatusCode, String) {
    HttpClient::connect(address).await.get(path).await.unwrap()
}

/// Runs curl. Returns its exit code and its output.
pub(crate) async fn run_curl(args: &[&str]) -> (i32, String) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]).args(args);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.expect("curl is installed: apt-get install curl");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
}
