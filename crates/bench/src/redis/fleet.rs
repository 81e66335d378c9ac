//! Four processes that request ten times their quota, with prefetched tokens.

use std::{
    env,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tidegate_bench::{BenchResult, suite::Measurement};
use tidegate_limiter::{Limiter, TokenPrefetch};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::RedisServer;

const PROCESSES: usize = 4;
const TASKS: usize = 16;
const RUN_DURATION: Duration = Duration::from_secs(6);
const RATE: u64 = 5_000;
const BURST: u64 = 1_000;

/// Measures the admissions over the exact quota, by the server's clock.
pub(crate) fn measure_admitted_over_quota(server: &RedisServer) -> BenchResult<Measurement> {
    let time = || -> BenchResult<u64> {
        let reply = server.command(&["TIME"])?;
        let part = |index: usize| -> BenchResult<u64> {
            let text = reply.items().get(index).and_then(|part| part.text()).ok_or("no time")?;
            Ok(text.parse()?)
        };
        Ok(part(0)? * 1_000_000 + part(1)?)
    };
    let (url, key) = (server.url(), format!("fleet-{}", std::process::id()));
    let before = time()?;
    let members: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Command::new(env::current_exe()?)
                .args(["fleet-member", &url, &key])
                .stdout(Stdio::piped())
                .spawn()
        })
        .collect::<std::io::Result<_>>()?;
    let mut admitted = 0_u64;
    for member in members {
        let output = member.wait_with_output()?;
        admitted += String::from_utf8_lossy(&output.stdout).trim().parse::<u64>()?;
    }
    let elapsed = time()? - before;
    // The processes need time to start and to stop, in which the quota grows unused.
    let quota = BURST as f64 + RATE as f64 * elapsed as f64 / 1e6;
    let figures = format!("{admitted} admitted, {quota:.0} allowed in {:.2} s", elapsed as f64 / 1e6);
    Ok(Measurement { value: admitted as f64 / quota, figures })
}

/// Runs one process of the fleet and prints the number of its admissions.
pub(crate) fn run_member(url: &str, key: &str) -> BenchResult<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = RedisStore::builder().deadline(Duration::from_secs(2)).connect(url).await?;
        let quota = format!("{RATE}/s burst {BURST}");
        let limiter = Limiter::builder()
            .name("fleet")
            .store(store)
            .prefetch(TokenPrefetch::default())
            .build(&*quota)?;
        let start = Instant::now();
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (limiter, key) = (limiter.clone(), key.to_owned());
            tasks.push(tokio::spawn(async move {
                let mut allowed = 0_u64;
                // Ten times the quota over all processes and tasks.
                let pause = Duration::from_secs_f64((PROCESSES * TASKS) as f64 / (10.0 * RATE as f64));
                let mut next = start;
                while start.elapsed() < RUN_DURATION {
                    allowed += u64::from(limiter.decide(&key, 1).await.is_allowed());
                    next += pause;
                    tokio::time::sleep_until(next.into()).await;
                }
                allowed
            }));
        }
        let mut allowed = 0;
        for task in tasks {
            allowed += task.await?;
        }
        println!("{allowed}");
        Ok(())
    })
}
