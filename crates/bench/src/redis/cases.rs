//! The cases and their bars.

use crate::{
    Result, fleet,
    naive::Naive,
    rounds::{self, Run, load, median, percentile},
};
use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tidegate_core::Quota;
use tidegate_engine::{Ahead, Outage, SharedLimiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::RedisServer;

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    about: &'static str,
    bar: Bar,
    measure: fn(&RedisServer) -> Result<Measured>,
}

/// A value to hold against the bar, and the figures behind it.
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) figures: String,
}

enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

pub(crate) const ALL: [Case; 8] = [
    Case {
        name: "strict-256",
        about: "256 tasks, one quota, 10 k keys: decisions/s over naive",
        bar: Bar::AtLeast(2.5),
        measure: strict,
    },
    Case {
        name: "lone-latency",
        about: "1 task, one quota: median latency over naive",
        bar: Bar::AtMost(1.05),
        measure: lone,
    },
    Case {
        name: "three-quotas",
        about: "1 task, three quotas in one request: median latency over one quota",
        bar: Bar::AtMost(1.6),
        measure: three_quotas,
    },
    Case {
        name: "leased-256",
        about: "256 tasks, one hot key, tokens taken ahead: decisions/s over strict",
        bar: Bar::AtLeast(50.0),
        measure: leased,
    },
    Case {
        name: "leased-over",
        about: "4 processes at 10 times the quota, tokens taken ahead: admissions over the exact quota",
        bar: Bar::AtMost(1.0),
        measure: fleet::admitted_over_quota,
    },
    Case {
        name: "leased-used",
        about: "the same: how much of the quota is used",
        bar: Bar::AtLeast(0.97),
        measure: fleet::admitted_over_quota,
    },
    Case {
        name: "bytes-per-key",
        about: "token bucket: bytes per key over a plain SET of a number with expiry",
        bar: Bar::AtMost(1.15),
        measure: bytes_per_key,
    },
    Case {
        name: "outage-p99",
        about: "server killed under load, counted locally: p99 of all decisions over the deadline",
        bar: Bar::AtMost(2.0),
        measure: outage,
    },
];

pub(crate) fn names() -> String {
    ALL.map(|case| case.name).join(", ")
}

/// Runs all cases; the rows of a table.
pub(crate) fn run_all() -> Result<Vec<String>> {
    ALL.iter().map(Case::run).collect()
}

impl Case {
    /// Runs the case; a row of a table.
    pub(crate) fn run(&self) -> Result<String> {
        println!("{}: {}", self.name, self.about);
        let server = RedisServer::start()?;
        apart(&server);
        let Measured { value, figures } = (self.measure)(&server)?;
        let (bar, is_met) = match self.bar {
            Bar::AtLeast(bar) => (format!("at least {bar}"), value >= bar),
            Bar::AtMost(bar) => (format!("at most {bar}"), value <= bar),
        };
        let judgement = if is_met { "met" } else { "MISSED" };
        println!("  {figures}\n  {bar}: {judgement}\nratio {} {value:.3}\n", self.name);
        Ok(format!("| {} | {} | {figures} | {value:.3} | {bar} | {judgement} |", self.name, self.about))
    }
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

async fn limiter(server: &RedisServer, name: &str, quotas: &[&str]) -> Result<Arc<SharedLimiter>> {
    let quotas = quotas.iter().map(|quota| quota.parse()).collect::<std::result::Result<Vec<Quota>, _>>()?;
    Ok(Arc::new(SharedLimiter::builder(name).store(store(server).await?).build_all(&quotas)?))
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

fn strict(server: &RedisServer) -> Result<Measured> {
    against_naive(server, 256, |run| run.rate)
}

fn lone(server: &RedisServer) -> Result<Measured> {
    against_naive(server, 1, |run| run.median)
}

fn against_naive(server: &RedisServer, tasks: u64, figure: fn(&Run) -> f64) -> Result<Measured> {
    in_runtime(async {
        let ours = limiter(server, "strict", &[ONE]).await?;
        let naive = Naive::connect(&server.url()).await?;
        let ask_ours = move |number: u64| {
            let ours = ours.clone();
            async move { ours.check(&format!("user-{}", number % KEYS)).await.is_allowed() }
        };
        let ask_naive = move |number: u64| {
            let mut naive = naive.clone();
            async move { naive.check(&format!("user-{}", number % KEYS)).await }
        };
        Ok(beside(("tidegate", ask_ours), ("naive", ask_naive), tasks, figure).await)
    })
}

fn three_quotas(server: &RedisServer) -> Result<Measured> {
    in_runtime(async {
        let one = limiter(server, "one", &[ONE]).await?;
        let several = [ONE, "60000/min burst 1000000", "3600000/h burst 1000000"];
        let three = limiter(server, "three", &several).await?;
        let ask = |limiter: Arc<SharedLimiter>| {
            move |number: u64| {
                let limiter = limiter.clone();
                async move { limiter.check(&format!("user-{}", number % KEYS)).await.is_allowed() }
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

fn leased(server: &RedisServer) -> Result<Measured> {
    const HOT: &str = "100000000/s burst 100000000";
    in_runtime(async {
        let strict = limiter(server, "hot-strict", &[HOT]).await?;
        let leased = SharedLimiter::builder("hot-leased").store(store(server).await?).ahead(Ahead::default());
        let leased = Arc::new(leased.build(HOT)?);
        println!("  {}; at most {} of a key stranded", leased.bounds()[0], leased.stranded());
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

fn bytes_per_key(server: &RedisServer) -> Result<Measured> {
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
                if !limiter.check_cost(&format!("user-{number}"), cost).await.is_allowed() {
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

fn outage(server: &RedisServer) -> Result<Measured> {
    const DEADLINE: Duration = Duration::from_millis(5);
    in_runtime(async {
        let store = RedisStore::builder().deadline(DEADLINE).connect(&server.url()).await?;
        let limiter = SharedLimiter::builder("outage").store(store).on_outage(Outage::Local { nodes: 1 });
        let limiter = Arc::new(limiter.build(ONE)?);
        let start = Instant::now();
        let mut tasks = Vec::new();
        for task in 0..64_u64 {
            let limiter = limiter.clone();
            tasks.push(tokio::spawn(async move {
                let mut times = Vec::new();
                while start.elapsed() < Duration::from_secs(3) {
                    let before = Instant::now();
                    limiter.check(&format!("user-{task}")).await;
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
        let degraded = limiter.degraded();
        let figures = format!("{count} decisions, {degraded} degraded, p99 {p99:.0} us, longest {most:?}");
        Ok(Measured { value: p99 / DEADLINE.as_secs_f64() / 1e6, figures })
    })
}
