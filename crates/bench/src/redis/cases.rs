//! The measured cases.

use crate::{
    naive::NaiveClient,
    rounds::{self, LoadResult, percentile, run_load},
};
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tidegate_bench::{BenchResult, interleaved::median, suite::Measurement};
use tidegate_core::Quota;
use tidegate_limiter::{FailureMode, Limiter, TokenPrefetch};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::RedisServer;

/// Measures with a new server.
pub(crate) fn with_server<T>(measure: impl FnOnce(&RedisServer) -> BenchResult<T>) -> BenchResult<T> {
    let server = RedisServer::start()?;
    pin_to_cores(&server);
    measure(&server)
}

/// Pins the server to one core and this program to another, if there are two.
fn pin_to_cores(server: &RedisServer) {
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
            if pinned { "on a dedicated core" } else { "not pinned" }
        );
    }
}

const ROUNDS: usize = 9;
/// The rounds of a case whose rounds take several seconds.
pub(crate) const LONG_ROUNDS: usize = 3;
const ROUND_DURATION: Duration = Duration::from_millis(500);
const KEY_COUNT: u64 = 10_000;

fn block_on<T>(work: impl Future<Output = BenchResult<T>>) -> BenchResult<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

async fn connect_store(server: &RedisServer) -> BenchResult<RedisStore> {
    Ok(RedisStore::builder().deadline(Duration::from_secs(2)).connect(&server.url()).await?)
}

async fn build_limiter(server: &RedisServer, name: &str, quotas: &[&str]) -> BenchResult<Limiter> {
    let quotas = quotas.iter().map(|quota| quota.parse()).collect::<std::result::Result<Vec<Quota>, _>>()?;
    Ok(Limiter::builder().name(name).store(connect_store(server).await?).build_all(&quotas)?)
}

/// Interleaves two competitors; the value is the median of the ratios of one figure per round.
async fn interleave<A, B, FA, FB>(
    (name, ours): (&str, A),
    (other_name, other): (&str, B),
    tasks: u64,
    figure: fn(&LoadResult) -> f64,
) -> Measurement
where
    A: Fn(u64) -> FA + Clone + Send + 'static,
    B: Fn(u64) -> FB + Clone + Send + 'static,
    FA: Future<Output = bool> + Send,
    FB: Future<Output = bool> + Send,
{
    // Connections, scripts and states exist before the measurement.
    run_load(tasks, ROUND_DURATION / 5, ours.clone()).await;
    run_load(tasks, ROUND_DURATION / 5, other.clone()).await;
    let (mut first, mut second, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (our, their) = if round % 2 == 0 {
            let our = run_load(tasks, ROUND_DURATION, ours.clone()).await;
            (our, run_load(tasks, ROUND_DURATION, other.clone()).await)
        } else {
            let their = run_load(tasks, ROUND_DURATION, other.clone()).await;
            (run_load(tasks, ROUND_DURATION, ours.clone()).await, their)
        };
        ratios.push(figure(&our) / figure(&their));
        first.push(our);
        second.push(their);
    }
    let figures = [(name, first), (other_name, second)].map(|(name, runs)| {
        let of = |figure: fn(&LoadResult) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
        let (rate, middle, p99) = (of(|run| run.rate), of(|run| run.median), of(|run| run.p99));
        format!("{name}: {rate:.0}/s, median {middle:.1} us, p99 {p99:.1} us")
    });
    Measurement::from_rounds(&ratios, figures.join("; "))
}

const ONE_QUOTA: &str = "1000/s burst 1000000";

pub(crate) fn measure_strict(server: &RedisServer) -> BenchResult<Measurement> {
    against_naive(server, 256, |run| run.rate)
}

pub(crate) fn measure_lone_latency(server: &RedisServer) -> BenchResult<Measurement> {
    against_naive(server, 1, |run| run.median)
}

fn against_naive(
    server: &RedisServer,
    tasks: u64,
    figure: fn(&LoadResult) -> f64,
) -> BenchResult<Measurement> {
    block_on(async {
        let ours = build_limiter(server, "strict", &[ONE_QUOTA]).await?;
        let naive = NaiveClient::connect(&server.url()).await?;
        let check_ours = move |number: u64| {
            let ours = ours.clone();
            async move { ours.decide(&format!("user-{}", number % KEY_COUNT), 1).await.is_allowed() }
        };
        let check_naive = move |number: u64| {
            let mut naive = naive.clone();
            async move { naive.check(&format!("user-{}", number % KEY_COUNT)).await }
        };
        Ok(interleave(("tidegate", check_ours), ("naive", check_naive), tasks, figure).await)
    })
}

pub(crate) fn measure_three_quotas(server: &RedisServer) -> BenchResult<Measurement> {
    block_on(async {
        let one = build_limiter(server, "one", &[ONE_QUOTA]).await?;
        let several = [ONE_QUOTA, "60000/min burst 1000000", "3600000/h burst 1000000"];
        let three = build_limiter(server, "three", &several).await?;
        let check = |limiter: Limiter| {
            move |number: u64| {
                let limiter = limiter.clone();
                async move { limiter.decide(&format!("user-{}", number % KEY_COUNT), 1).await.is_allowed() }
            }
        };
        let (check_three, check_one) = (check(three), check(one));
        let lone =
            interleave(("three", check_three.clone()), ("one", check_one.clone()), 1, |run| run.median).await;
        let busy = interleave(("three", check_three), ("one", check_one), 256, |run| 1.0 / run.rate).await;
        let figures =
            format!("{}; with 256 tasks {:.2} times the time per decision", lone.figures, busy.value);
        Ok(Measurement { figures, ..lone })
    })
}

pub(crate) fn measure_leased(server: &RedisServer) -> BenchResult<Measurement> {
    const HOT_QUOTA: &str = "100000000/s burst 100000000";
    block_on(async {
        let strict = build_limiter(server, "hot-strict", &[HOT_QUOTA]).await?;
        let leased = Limiter::builder().name("hot-leased").store(connect_store(server).await?);
        let leased = leased.prefetch(TokenPrefetch::default()).build(HOT_QUOTA)?;
        println!(
            "  {}; at most {} stranded tokens per key",
            leased.bounds()[0],
            leased.max_stranded_tokens()
        );
        rounds::count_decisions(256, ROUND_DURATION / 2, &leased, "hot").await;
        rounds::count_decisions(256, ROUND_DURATION / 2, &strict, "hot").await;
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let fast = rounds::count_decisions(256, ROUND_DURATION, &leased, "hot").await;
            let slow = rounds::count_decisions(256, ROUND_DURATION, &strict, "hot").await;
            ratios.push(fast / slow);
            ours.push(fast);
            theirs.push(slow);
        }
        let figures = format!("leased: {:.0}/s; strict: {:.0}/s", median(&ours), median(&theirs));
        Ok(Measurement::from_rounds(&ratios, figures))
    })
}

pub(crate) fn measure_bytes_per_key(server: &RedisServer) -> BenchResult<Measurement> {
    const KEYS_PER_QUOTA: u64 = 50_000;
    const QUOTAS: [(&str, &str); 2] =
        [("100/min burst 20", "100/min burst 20"), ("30/s burst 300", "30/s burst 300000")];
    let used = || -> BenchResult<f64> {
        let info = server.command(&["INFO", "memory"])?;
        let text = info.text().ok_or("no INFO")?.to_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("used_memory:")).ok_or("no used_memory")?;
        Ok(line.trim().parse()?)
    };
    let measure_one = |quota: &str| -> BenchResult<(f64, f64)> {
        server.command(&["FLUSHALL"])?;
        let before = used()?;
        block_on(async {
            // A key takes an hour to drain, so that none expires during the measurement.
            let limiter = build_limiter(server, "bytes", &[quota]).await?;
            let cost = limiter.quotas()[0].limit() / 2;
            // Twice, because a key that is written in place may need more memory than a new one.
            for number in (0..KEYS_PER_QUOTA).chain(0..KEYS_PER_QUOTA) {
                if !limiter.decide(&format!("user-{number}"), cost).await.is_allowed() {
                    return Err("a decision was denied".into());
                }
            }
            Ok(())
        })?;
        let ours = (used()? - before) / KEYS_PER_QUOTA as f64;
        server.command(&["FLUSHALL"])?;
        let before = used()?;
        let mut connection = server.connect()?;
        for number in 0..KEYS_PER_QUOTA {
            let key = format!("tidegate:{{bytes:user-{number}}}:1");
            connection.command(&["SET", &key, "1700000000000000", "PX", "3600000"])?;
        }
        Ok((ours, (used()? - before) / KEYS_PER_QUOTA as f64))
    };
    let (mut worst_ratios, mut bytes) = (Vec::new(), [const { (Vec::new(), Vec::new()) }; QUOTAS.len()]);
    for _ in 0..LONG_ROUNDS {
        let mut worst = 0.0_f64;
        for ((_, quota), (ours, plain)) in QUOTAS.iter().zip(&mut bytes) {
            let (own_bytes, plain_bytes) = measure_one(quota)?;
            worst = worst.max(own_bytes / plain_bytes);
            ours.push(own_bytes);
            plain.push(plain_bytes);
        }
        worst_ratios.push(worst);
    }
    let figures: Vec<String> = QUOTAS
        .iter()
        .zip(&bytes)
        .map(|((name, _), (ours, plain))| {
            format!("{name}: {:.1} bytes, plain {:.1}", median(ours), median(plain))
        })
        .collect();
    Ok(Measurement::from_rounds(&worst_ratios, figures.join("; ")))
}

/// The decisions of one outage.
struct OutageResult {
    decisions: usize,
    degraded: u64,
    /// In microseconds.
    p99: f64,
    longest: Duration,
}

/// The deadline of the store in an outage.
const OUTAGE_DEADLINE: Duration = Duration::from_millis(5);

pub(crate) fn measure_outage() -> BenchResult<Measurement> {
    // Each round kills its server.
    let rounds =
        (0..LONG_ROUNDS).map(|_| with_server(run_outage)).collect::<BenchResult<Vec<OutageResult>>>()?;
    let p99: Vec<f64> = rounds.iter().map(|round| round.p99).collect();
    let figures = format!(
        "{} decisions, {} degraded, p99 {:.0} us, longest {:?}",
        rounds.iter().map(|round| round.decisions).sum::<usize>(),
        rounds.iter().map(|round| round.degraded).sum::<u64>(),
        median(&p99),
        rounds.iter().map(|round| round.longest).max().unwrap_or_default()
    );
    let ratios: Vec<f64> = p99.iter().map(|p99| p99 / (OUTAGE_DEADLINE.as_secs_f64() * 1e6)).collect();
    Ok(Measurement::from_rounds(&ratios, figures))
}

fn run_outage(server: &RedisServer) -> BenchResult<OutageResult> {
    block_on(async {
        let store = RedisStore::builder().deadline(OUTAGE_DEADLINE).connect(&server.url()).await?;
        let limiter = Limiter::builder().name("outage").store(store);
        let limiter = limiter.failure_mode(FailureMode::Local { nodes: 1 }).build(ONE_QUOTA)?;
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
        // Sorted by `percentile`.
        let (decisions, longest) = (times.len(), times.last().copied().unwrap_or_default());
        Ok(OutageResult { decisions, degraded: limiter.degraded_count(), p99, longest })
    })
}
