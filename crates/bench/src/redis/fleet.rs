//! Four processes that request ten times their quota, with prefetched tokens.

use crate::cases::LONG_ROUNDS;
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

/// Measures the admissions over the exact quota; the value is the highest of the rounds.
pub(crate) fn measure_admitted_over_quota(server: &RedisServer) -> BenchResult<Measurement> {
    measure_rounds(server, f64::max)
}

/// Measures the used share of the quota; the value is the lowest of the rounds.
pub(crate) fn measure_used_quota(server: &RedisServer) -> BenchResult<Measurement> {
    measure_rounds(server, f64::min)
}

fn measure_rounds(server: &RedisServer, worse: fn(f64, f64) -> f64) -> BenchResult<Measurement> {
    let (mut ratios, mut figures) = (Vec::new(), Vec::new());
    for round in 0..LONG_ROUNDS {
        // The bucket of each round is full at the start.
        let key = format!("fleet-{}-{round}", std::process::id());
        let (admitted, quota, seconds) = run_fleet(server, &key)?;
        figures.push(format!("{admitted} admitted, {quota:.0} allowed in {seconds:.2} s"));
        ratios.push(admitted as f64 / quota);
    }
    let value = ratios.iter().copied().reduce(worse).unwrap_or(f64::NAN);
    Ok(Measurement { value, ..Measurement::from_rounds(&ratios, figures.join("; ")) })
}

/// Returns the admissions of all processes, the exact quota, and the time in seconds by the server's clock.
fn run_fleet(server: &RedisServer, key: &str) -> BenchResult<(u64, f64, f64)> {
    let time = || -> BenchResult<u64> {
        let reply = server.command(&["TIME"])?;
        let part = |index: usize| -> BenchResult<u64> {
            let text = reply.items().get(index).and_then(|part| part.text()).ok_or("no time")?;
            Ok(text.parse()?)
        };
        Ok(part(0)? * 1_000_000 + part(1)?)
    };
    let url = server.url();
    let before = time()?;
    let members: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Command::new(env::current_exe()?).args(["fleet-member", &url, key]).stdout(Stdio::piped()).spawn()
        })
        .collect::<std::io::Result<_>>()?;
    let mut admitted = 0_u64;
    for member in members {
        let output = member.wait_with_output()?;
        admitted += String::from_utf8_lossy(&output.stdout).trim().parse::<u64>()?;
    }
    let seconds = (time()? - before) as f64 / 1e6;
    // The processes need time to start and to stop, in which the quota grows unused.
    Ok((admitted, BURST as f64 + RATE as f64 * seconds, seconds))
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
