//! Closed-loop load with a fixed concurrency, for one second.

use crate::BenchResult;
use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use prost::Message as _;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tidegate_limiter::Limiter;
use tidegate_proto::rls::{Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_redis::RedisStore;
use tokio::net::TcpStream;
use tonic::Code;

/// The number of requests in flight, over all connections.
const CONCURRENCY: usize = 64;
const CONNECTION_COUNT: usize = 4;
const SECOND: Duration = Duration::from_secs(1);
/// The number of distinct users.
const USER_COUNT: u64 = 10_000;

/// Sends a gRPC server requests with one descriptor of `depth` entries, and prints the responses per second.
pub(crate) fn load_grpc(address: &str, depth: &str) -> BenchResult<()> {
    let (address, depth): (SocketAddr, usize) = (address.parse()?, depth.parse()?);
    runtime()?.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..CONNECTION_COUNT {
            connections.push(connect(address).await?);
        }
        let (answers, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + SECOND);
        let tasks = (0..CONCURRENCY).map(|index| {
            let (mut connection, answers) = (connections[index % CONNECTION_COUNT].clone(), answers.clone());
            tokio::spawn(async move {
                let mut late = 0_u64;
                while Instant::now() < end {
                    match send_request(&mut connection, depth).await.map_err(|error| error.to_string())? {
                        Code::Ok => _ = answers.fetch_add(1, Relaxed),
                        // The store missed its deadline.
                        Code::Unavailable => late += 1,
                        code => return Err(format!("unexpected status {code:?}")),
                    }
                }
                Ok(late)
            })
        });
        let mut late = 0;
        for task in tasks.collect::<Vec<_>>() {
            late += task.await??;
        }
        let answers = answers.load(Relaxed);
        if late > answers / 100 {
            return Err(format!("{late} responses were unavailable, {answers} ok").into());
        }
        println!("{answers}");
        Ok(())
    })
}

/// Waits for the first response of a gRPC server.
pub(crate) fn wait_for_answer(address: SocketAddr, depth: usize) -> BenchResult<()> {
    runtime()?.block_on(async {
        let start = Instant::now();
        let mut connection = loop {
            match connect(address).await {
                Ok(connection) => break connection,
                Err(error) if start.elapsed() > 10 * SECOND => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        match send_request(&mut connection, depth).await? {
            Code::Ok => Ok(()),
            code => Err(format!("unexpected status {code:?}").into()),
        }
    })
}

/// Opens a bare HTTP/2 connection, because the load should use little of the core that it shares.
async fn connect(address: SocketAddr) -> BenchResult<SendRequest<Bytes>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (connection, driver) = h2::client::handshake(stream).await?;
    tokio::spawn(driver);
    Ok(connection)
}

/// Sends a request and returns the gRPC status of the response.
async fn send_request(connection: &mut SendRequest<Bytes>, depth: usize) -> BenchResult<Code> {
    const METHOD_URL: &str = "http://service/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let request =
        http::Request::post(METHOD_URL).header("content-type", "application/grpc").header("te", "trailers");
    let mut connection = connection.clone().ready().await?;
    let (response, mut sending) = connection.send_request(request.body(())?, false)?;
    sending.send_data(encode_message(depth), true)?;
    let response = response.await?;
    let status =
        |headers: &http::HeaderMap| headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()));
    let at_once = status(response.headers());
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
    }
    let trailers = body.trailers().await?;
    at_once.or_else(|| status(trailers.as_ref()?)).ok_or_else(|| "response without grpc-status".into())
}

/// A request with the length prefix of gRPC.
fn encode_message(depth: usize) -> Bytes {
    let request = random_request(depth);
    let length = request.encoded_len();
    let mut message = BytesMut::with_capacity(5 + length);
    message.put_u8(0);
    message.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.extend_from_slice(&request.encode_to_vec());
    message.freeze()
}

fn random_request(depth: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
    let user = entry("user", fastrand::u64(..USER_COUNT).to_string());
    let mut entries: Vec<_> =
        (1..depth).map(|level| entry(&format!("level{level}"), "500".to_owned())).collect();
    entries.push(user);
    let descriptor = RateLimitDescriptor { entries, ..Default::default() };
    RateLimitRequest { domain: "bench".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// Sends requests to the store directly, and prints the decisions per second.
pub(crate) fn load_store(url: &str) -> BenchResult<()> {
    runtime()?.block_on(async {
        let store = RedisStore::builder().deadline(SECOND).connect(url).await?;
        let limiter = Limiter::builder().name("bench").store(store).build("1000000000/h fixed-window")?;
        limiter.decide("0", 1).await;
        let (answers, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + SECOND);
        let tasks = (0..CONCURRENCY).map(|_| {
            let (limiter, answers) = (limiter.clone(), answers.clone());
            tokio::spawn(async move {
                while Instant::now() < end {
                    limiter.decide(&fastrand::u64(..USER_COUNT).to_string(), 1).await;
                    answers.fetch_add(1, Relaxed);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await?;
        }
        println!("{}", answers.load(Relaxed));
        Ok(())
    })
}

fn runtime() -> BenchResult<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
