//! Load: as many questions as are answered in a second, so many at a time.

use crate::Result;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tidegate_engine::SharedLimiter;
use tidegate_proto::rls::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use tidegate_redis::RedisStore;
use tonic::{Code, transport::Channel};

/// Questions in flight, over so many connections.
const AT_ONCE: usize = 64;
const CONNECTIONS: usize = 4;
const SECOND: Duration = Duration::from_secs(1);
/// Users that ask.
const USERS: u64 = 10_000;

/// Asks a server of gRPC about one descriptor with so many entries, and prints how many answers came in a second.
pub(crate) fn ask_grpc(address: &str, depth: &str) -> Result<()> {
    let depth: usize = depth.parse()?;
    runtime()?.block_on(async {
        let mut channels = Vec::new();
        for _ in 0..CONNECTIONS {
            channels.push(Channel::from_shared(format!("http://{address}"))?.connect().await?);
        }
        let (answers, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + SECOND);
        let asking = (0..AT_ONCE).map(|place| {
            let (client, answers) =
                (RateLimitServiceClient::new(channels[place % CONNECTIONS].clone()), answers.clone());
            tokio::spawn(async move {
                let mut client = client;
                let mut late = 0_u64;
                while Instant::now() < end {
                    match client.should_rate_limit(request(depth)).await {
                        Ok(_) => _ = answers.fetch_add(1, Relaxed),
                        // A store that is slow for a moment.
                        Err(status) if status.code() == Code::Unavailable => late += 1,
                        Err(status) => return Err(status),
                    }
                }
                Ok(late)
            })
        });
        let mut late = 0;
        for one in asking.collect::<Vec<_>>() {
            late += one.await??;
        }
        let answers = answers.load(Relaxed);
        if late > answers / 100 {
            return Err(format!("{late} of {answers} answers were late").into());
        }
        println!("{answers}");
        Ok(())
    })
}

/// Waits until a server of gRPC has answered a question.
pub(crate) fn answered(address: SocketAddr, depth: usize) -> Result<()> {
    runtime()?.block_on(async {
        let start = Instant::now();
        let channel = loop {
            match Channel::from_shared(format!("http://{address}"))?.connect().await {
                Ok(channel) => break channel,
                Err(error) if start.elapsed() > 10 * SECOND => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        RateLimitServiceClient::new(channel).should_rate_limit(request(depth)).await?;
        Ok(())
    })
}

fn request(depth: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
    let user = entry("user", fastrand::u64(..USERS).to_string());
    let mut entries: Vec<_> =
        (1..depth).map(|level| entry(&format!("level{level}"), "500".to_owned())).collect();
    entries.push(user);
    let descriptor = RateLimitDescriptor { entries, ..Default::default() };
    RateLimitRequest { domain: "bench".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// Asks the store itself, and prints how many answers came in a second.
pub(crate) fn ask_store(url: &str) -> Result<()> {
    runtime()?.block_on(async {
        let store = RedisStore::builder().deadline(SECOND).connect(url).await?;
        let limiter = SharedLimiter::builder("bench").store(store).build("1000000000/h fixed-window")?;
        let limiter = Arc::new(limiter);
        limiter.check("0").await;
        let (answers, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + SECOND);
        let asking = (0..AT_ONCE).map(|_| {
            let (limiter, answers) = (limiter.clone(), answers.clone());
            tokio::spawn(async move {
                while Instant::now() < end {
                    limiter.check(&fastrand::u64(..USERS).to_string()).await;
                    answers.fetch_add(1, Relaxed);
                }
            })
        });
        for one in asking.collect::<Vec<_>>() {
            one.await?;
        }
        println!("{}", answers.load(Relaxed));
        Ok(())
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
