//! What is measured, case by case.

use crate::{
    naive::Naive,
    rounds::{self, Run, load, percentile},
};
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tidegate_bench::{Result, suite::Measured, turns::median};
use tidegate_core::Quota;
use tidegate_limiter::{FailureMode, Limiter, TokenPrefetch};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::RedisServer;

/// Measures with a server of its own.
pub(crate) fn on_a_server(measure: fn(&RedisServer) -> Result<Measured>) -> Result<Measured> {
    let server = RedisServer::start()?;
    apart(&server);
    measure(&server)
}

/// The server on one core and this program on another, where there are two.
fn apart(server: &RedisServer) {
    let pin = |core: &str, pid: u32| {
        let command =
            Command::new("taskset").args(["-cp", core, &pid.to_string()]).stdout(Stdio::null()).status();
        command.is_ok_and(|status| status.success())
    };
    if let Some(pid) = server.pid() {
        let pinned = pin("0", pid) && pin("1", std::process::id());
        println!(
            "  Redis {}, {}",
            server.version(),
            if pinned { "on a core of its own" } else { "not pinned" }
        );
    }
}

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(500);
const KEYS: u64 = 10_000;

fn in_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

async fn store(server: &RedisServer) -> Result<RedisStore> {
    Ok(RedisStore::builder().deadline(Duration::from_secs(2)).connect(&server.url()).await?)
}

async fn limiter(server: &RedisServer, name: &str, quotas: &[&str]) -> Result<Limiter> {
    let quotas = quotas.iter().map(|quota| quota.parse()).collect::<std::result::Result<Vec<Quota>, _>>()?;
    Ok(Limiter::builder().name(name).store(store(server).await?).build_all(&quotas)?)
}

/// Interleaves two competitors; the median of the ratios of one figure in each round.
async fn beside<A, B, FA, FB>(
    (name, ours): (&str, A),
    (other_name, other): (&str, B),
    tasks: u64,
    figure: fn(&Run) -> f64,
) -> Measured
where
    A: Fn(u64) -> FA + Clone + Send + 'static,
    B: Fn(u64) -> FB + Clone + Send + 'static,
    FA: Future<Output = bool> + Send,
    FB: Future<Output = bool> + Send,
{
    // Connections, scripts and states are there before the clock starts.
    load(tasks, ROUND / 5, ours.clone()).await;
    load(tasks, ROUND / 5, other.clone()).await;
    let (mut first, mut second, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (our, their) = if round % 2 == 0 {
            let our = load(tasks, ROUND, ours.clone()).await;
            (our, load(tasks, ROUND, other.clone()).await)
        } else {
            let their = load(tasks, ROUND, other.clone()).await;
            (load(tasks, ROUND, ours.clone()).await, their)
        };
        ratios.push(figure(&our) / figure(&their));
        first.push(our);
        second.push(their);
    }
    let figures = [(name, first), (other_name, second)].map(|(name, runs)| {
        let of = |figure: fn(&Run) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
        let (rate, middle, p99) = (of(|run| run.rate), of(|run| run.median), of(|run| run.p99));
        format!("{name}: {rate:.0}/s, median {middle:.1} us, p99 {p99:.1} us")
    });
    Measured { value: median(&ratios), figures: figures.join("; ") }
}

const ONE: &str = "1000/s burst 1000000";

pub(crate) fn strict(server: &RedisServer) -> Result<Measured> {
    against_naive(server, 256, |run| run.rate)
}

pub(crate) fn lone(server: &RedisServer) -> Result<Measured> {
    against_naive(server, 1, |run| run.median)
}

fn against_naive(server: &RedisServer, tasks: u64, figure: fn(&Run) -> f64) -> Result<Measured> {
    in_runtime(async {
        let ours = limiter(server, "strict", &[ONE]).await?;
        let naive = Naive::connect(&server.url()).await?;
        let ask_ours = move |number: u64| {
            let ours = ours.clone();
            async move { ours.decide(&format!("user-{}", number % KEYS), 1).await.is_allowed() }
        };
        let ask_naive = move |number: u64| {
            let mut naive = naive.clone();
            async move { naive.check(&format!("user-{}", number % KEYS)).await }
        };
        Ok(beside(("tidegate", ask_ours), ("naive", ask_naive), tasks, figure).await)
    })
}

pub(crate) fn three_quotas(server: &RedisServer) -> Result<Measured> {
    in_runtime(async {
        let one = limiter(server, "one", &[ONE]).await?;
        let several = [ONE, "60000/min burst 1000000", "3600000/h burst 1000000"];
        let three = limiter(server, "three", &several).await?;
        let ask = |limiter: Limiter| {
            move |number: u64| {
                let limiter = limiter.clone();
                async move { limiter.decide(&format!("user-{}", number % KEYS), 1).await.is_allowed() }
            }
        };
        let (ask_three, ask_one) = (ask(three), ask(one));
        let lone = beside(("three", ask_three.clone()), ("one", ask_one.clone()), 1, |run| run.median).await;
        let busy = beside(("three", ask_three), ("one", ask_one), 256, |run| 1.0 / run.rate).await;
        let figures =
            format!("{}; with 256 tasks {:.2} times the time per decision", lone.figures, busy.value);
        Ok(Measured { figures, ..lone })
    })
}

pub(crate) fn leased(server: &RedisServer) -> Result<Measured> {
    const HOT: &str = "100000000/s burst 100000000";
    in_runtime(async {
        let strict = limiter(server, "hot-strict", &[HOT]).await?;
        let leased = Limiter::builder().name("hot-leased").store(store(server).await?);
        let leased = leased.prefetch(TokenPrefetch::default()).build(HOT)?;
        println!("  {}; at most {} of a key stranded", leased.bounds()[0], leased.max_stranded_tokens());
        rounds::count(256, ROUND / 2, &leased, "hot").await;
        rounds::count(256, ROUND / 2, &strict, "hot").await;
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let fast = rounds::count(256, ROUND, &leased, "hot").await;
            let slow = rounds::count(256, ROUND, &strict, "hot").await;
            ratios.push(fast / slow);
            ours.push(fast);
            theirs.push(slow);
        }
        let figures = format!("leased: {:.0}/s; strict: {:.0}/s", median(&ours), median(&theirs));
        Ok(Measured { value: median(&ratios), figures })
    })
}

pub(crate) fn bytes_per_key(server: &RedisServer) -> Result<Measured> {
    const MANY: u64 = 100_000;
    let used = || -> Result<f64> {
        let info = server.command(&["INFO", "memory"])?;
        let text = info.text().ok_or("no INFO")?.to_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("used_memory:")).ok_or("no used_memory")?;
        Ok(line.trim().parse()?)
    };
    let (mut ratios, mut figures) = (Vec::new(), Vec::new());
    for (name, quota) in [("100/min burst 20", "100/min burst 20"), ("30/s burst 300", "30/s burst 300000")] {
        server.command(&["FLUSHALL"])?;
        let before = used()?;
        in_runtime(async {
            // An hour to drain, so that no key goes while others come.
            let limiter = limiter(server, "bytes", &[quota]).await?;
            let cost = limiter.quotas()[0].limit() / 2;
            // Twice: a key that is written in place may need more than one that was just made.
            for number in (0..MANY).chain(0..MANY) {
                if !limiter.decide(&format!("user-{number}"), cost).await.is_allowed() {
                    return Err("denied".into());
                }
            }
            Ok(())
        })?;
        let ours = (used()? - before) / MANY as f64;
        server.command(&["FLUSHALL"])?;
        let before = used()?;
        let mut connection = server.connect()?;
        for number in 0..MANY {
            let key = format!("tidegate:{{bytes:user-{number}}}:1");
            connection.command(&["SET", &key, "1700000000000000", "PX", "3600000"])?;
        }
        let plain = (used()? - before) / MANY as f64;
        figures.push(format!("{name}: {ours:.1} bytes, plain {plain:.1}"));
        ratios.push(ours / plain);
    }
    Ok(Measured { value: ratios.into_iter().fold(0.0, f64::max), figures: figures.join("; ") })
}

pub(crate) fn outage(server: &RedisServer) -> Result<Measured> {
    const DEADLINE: Duration = Duration::from_millis(5);
    in_runtime(async {
        let store = RedisStore::builder().deadline(DEADLINE).connect(&server.url()).await?;
        let limiter = Limiter::builder().name("outage").store(store);
        let limiter = limiter.failure_mode(FailureMode::Local { nodes: 1 }).build(ONE)?;
        let start = Instant::now();
        let mut tasks = Vec::new();
        for task in 0..64_u64 {
            let limiter = limiter.clone();
            tasks.push(tokio::spawn(async move {
                let mut times = Vec::new();
                while start.elapsed() < Duration::from_secs(3) {
                    let before = Instant::now();
                    limiter.decide(&format!("user-{task}"), 1).await;
                    times.push(before.elapsed());
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
                times
            }));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.kill();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await?);
        }
        let p99 = percentile(&mut times, 0.99);
        let (count, most) = (times.len(), times.last().copied().unwrap_or_default());
        let degraded = limiter.degraded_count();
        let figures = format!("{count} decisions, {degraded} degraded, p99 {p99:.0} us, longest {most:?}");
        Ok(Measured { value: p99 / DEADLINE.as_secs_f64() / 1e6, figures })
    })
}
