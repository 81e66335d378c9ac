//! An open-loop load at a constant rate, and its latency.
//!
//! ```text
//!   due:   |   |   |   |   |   |        one request each, evenly
//!   sent:  |   |   |       ||| |        late if all connections are busy
//!          └── latency ──┘              from the due time, so that waiting for a connection counts
//! ```
//!
//! A closed-loop load, which waits for each response, sends fewer requests to a slow server and hides its latency.

use crate::BenchResult;
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    thread::set_current_timer_slack,
};
use std::{
    collections::VecDeque,
    env,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroU64,
    process::Command,
    time::{Duration, Instant},
};
use tidegate_bench::{
    process::LOAD_CORE,
    proxy::{REQUEST, RESPONSE_END},
};

const CONNECTION_COUNT: usize = 64;
const WARM_UP_DURATION: Duration = Duration::from_millis(250);
const MEASURE_DURATION: Duration = Duration::from_secs(1);
/// The time limit for outstanding responses at the end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The p99 latency in microseconds at `rate` requests per second.
pub(crate) fn p99(address: SocketAddr, rate: f64) -> BenchResult<f64> {
    let program = env::current_exe()?;
    let output = Command::new("taskset")
        .args(["-c", LOAD_CORE])
        .arg(program)
        .args(["paced", &address.to_string(), &rate.to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.trim().parse() {
        Ok(micros) if output.status.success() => Ok(micros),
        _ => Err(format!("the load failed: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Generates the load in a child process and prints the result of [`p99`].
pub(crate) fn send(address: &str, rate: &str) -> BenchResult<()> {
    set_current_timer_slack(NonZeroU64::new(1))?;
    let interval = Duration::from_secs_f64(1.0 / rate.parse::<f64>()?);
    let mut load = PacedLoad::new(address.parse()?, interval)?;
    let mut events = Vec::with_capacity(CONNECTION_COUNT);
    while load.is_running()? {
        let wait = Timespec::try_from(load.send_due()?)?;
        epoll::wait(&load.epoll, spare_capacity(&mut events), Some(&wait))?;
        for event in events.drain(..) {
            load.read(usize::try_from(event.data.u64())?)?;
        }
    }
    println!("{:.1}", percentile(load.latencies, 0.99).as_secs_f64() * 1e6);
    Ok(())
}

struct PacedLoad {
    epoll: rustix::fd::OwnedFd,
    connections: Vec<PacedConnection>,
    /// Idle connections, the longest idle first.
    idle: VecDeque<usize>,
    start: Instant,
    /// The due time of the next request.
    next: Instant,
    interval: Duration,
    latencies: Vec<Duration>,
}

struct PacedConnection {
    stream: TcpStream,
    /// The due time of the request in flight.
    due: Instant,
    answer: Vec<u8>,
}

impl PacedLoad {
    fn new(address: SocketAddr, interval: Duration) -> BenchResult<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let start = Instant::now();
        let mut connections = Vec::new();
        for number in 0..CONNECTION_COUNT {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
            connections.push(PacedConnection { stream, due: start, answer: Vec::new() });
        }
        let start = Instant::now();
        let idle = (0..CONNECTION_COUNT).collect();
        Ok(Self { epoll, connections, idle, start, next: start, interval, latencies: Vec::new() })
    }

    /// Whether there are requests to send or responses to wait for.
    fn is_running(&self) -> BenchResult<bool> {
        let is_answered = self.idle.len() == CONNECTION_COUNT;
        match self.start.elapsed().checked_sub(WARM_UP_DURATION + MEASURE_DURATION) {
            Some(over) if over > ANSWER_TIMEOUT && !is_answered => Err("the server does not respond".into()),
            Some(_) => Ok(!is_answered),
            None => Ok(true),
        }
    }

    /// Sends the due requests; returns how long to wait for the next one, or for a response.
    fn send_due(&mut self) -> BenchResult<Duration> {
        let now = Instant::now();
        let end = self.start + WARM_UP_DURATION + MEASURE_DURATION;
        while self.next <= now && self.next < end {
            let Some(number) = self.idle.pop_front() else { return Ok(ANSWER_TIMEOUT) };
            let connection = &mut self.connections[number];
            connection.due = self.next;
            connection.stream.write_all(REQUEST)?;
            self.next += self.interval;
        }
        Ok(if self.next < end { self.next.saturating_duration_since(Instant::now()) } else { ANSWER_TIMEOUT })
    }

    fn read(&mut self, number: usize) -> BenchResult<()> {
        let connection = &mut self.connections[number];
        let mut piece = [0; 1_024];
        match connection.stream.read(&mut piece)? {
            0 => return Err("the server closed a connection".into()),
            length => connection.answer.extend_from_slice(&piece[..length]),
        }
        if connection.answer.ends_with(RESPONSE_END) {
            if !connection.answer.starts_with(b"HTTP/1.1 200 ") {
                return Err("the server rejected a request".into());
            }
            connection.answer.clear();
            self.idle.push_back(number);
            if connection.due >= self.start + WARM_UP_DURATION {
                self.latencies.push(connection.due.elapsed());
            }
        }
        Ok(())
    }
}

fn percentile(mut latencies: Vec<Duration>, share: f64) -> Duration {
    latencies.sort_unstable();
    let index = (latencies.len() as f64 * share) as usize;
    latencies.get(index).copied().unwrap_or(Duration::MAX)
}
