//! The traffic of `tidegate serve --demo-traffic`: about 20 requests per second of a few clients.

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    net::TcpSocket,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

/// A client that repeats a request.
struct DemoClient {
    /// The last byte of its address, 127.0.0.x.
    address: u8,
    method: Method,
    paths: &'static [&'static str],
    interval: Duration,
}

const BROWSER_PATHS: &[&str] = &["/", "/products/1", "/products/2", "/cart", "/hello"];

/// Clients within their quotas, and for each rule of the demo one beyond it.
fn clients() -> Vec<DemoClient> {
    let client = |address, method, paths, millis| DemoClient {
        address,
        method,
        paths,
        interval: Duration::from_millis(millis),
    };
    let mut clients = vec![
        client(10, Method::GET, &["/products/3", "/products/4", "/products/5"], 125),
        client(11, Method::POST, &["/login"], 1_000),
        client(12, Method::GET, &["/search"], 1_000),
    ];
    clients.extend((2..=5).map(|address| client(address, Method::GET, BROWSER_PATHS, 900)));
    clients.extend((20..=23).map(|address| client(address, Method::GET, &["/reports/daily"], 1_600)));
    clients
}

/// Sends requests to a gateway, until the returned set is dropped.
pub(crate) fn start(gateway: SocketAddr) -> JoinSet<()> {
    clients().into_iter().map(|client| client.run(gateway)).collect()
}

impl DemoClient {
    async fn run(self, gateway: SocketAddr) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = None;
        for path in self.paths.iter().cycle() {
            ticks.tick().await;
            let sender = match connection.take() {
                Some(sender) => Ok(sender),
                None => self.connect(gateway).await,
            };
            // A gateway that shuts down refuses connections.
            let Ok(mut sender) = sender else { continue };
            if self.send(&mut sender, gateway, path).await.is_ok() {
                connection = Some(sender);
            }
        }
    }

    async fn connect(&self, gateway: SocketAddr) -> io::Result<SendRequest<Empty<Bytes>>> {
        let socket = TcpSocket::new_v4()?;
        // Some systems have no other loopback address than 127.0.0.1. All clients share it there.
        let _ = socket.bind((Ipv4Addr::new(127, 0, 0, self.address), 0).into());
        let stream = socket.connect(gateway).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Sends a request and discards its response.
    async fn send(
        &self,
        sender: &mut SendRequest<Empty<Bytes>>,
        gateway: SocketAddr,
        path: &str,
    ) -> io::Result<()> {
        let request = Request::builder()
            .method(self.method.clone())
            .uri(path)
            .header(header::HOST, gateway.to_string())
            .header(header::USER_AGENT, "tidegate-demo")
            .body(Empty::new())
            .map_err(io::Error::other)?;
        sender.ready().await.map_err(io::Error::other)?;
        let mut response = sender.send_request(request).await.map_err(io::Error::other)?;
        while let Some(frame) = response.frame().await {
            frame.map_err(io::Error::other)?;
        }
        Ok(())
    }
}
