//! A load that comes by the clock, whatever the server does, and what its answers take.
//!
//! ```text
//!   due:   |   |   |   |   |   |        one request each, evenly
//!   sent:  |   |   |       ||| |        late where all connections wait
//!          └── latency ──┘              from when it was due, so that waiting for a connection counts
//! ```
//!
//! A load that sends the next request when the last one is answered would ask less of a slow server, and would not see it.

use crate::Result;
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
    process::OTHERS,
    proxy::{OK, REQUEST},
};

const CONNECTIONS: usize = 64;
const WARM_UP: Duration = Duration::from_millis(250);
const MEASURED: Duration = Duration::from_secs(1);
/// Requests that are not answered by then are not counted on.
const PATIENCE: Duration = Duration::from_secs(5);

/// The latency that 99 of 100 requests do not exceed, in microseconds, at so many requests per second.
pub(crate) fn p99(address: SocketAddr, rate: f64) -> Result<f64> {
    let program = env::current_exe()?;
    let output = Command::new("taskset")
        .args(["-c", OTHERS])
        .arg(program)
        .args(["paced", &address.to_string(), &rate.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match said.trim().parse() {
        Ok(micros) if output.status.success() => Ok(micros),
        _ => Err(format!("the load failed: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The load itself, in a process of its own; prints what [`p99`] returns.
pub(crate) fn send(address: &str, rate: &str) -> Result<()> {
    set_current_timer_slack(NonZeroU64::new(1))?;
    let gap = Duration::from_secs_f64(1.0 / rate.parse::<f64>()?);
    let mut load = Load::new(address.parse()?, gap)?;
    let mut events = Vec::with_capacity(CONNECTIONS);
    while load.goes_on()? {
        let wait = Timespec::try_from(load.send_due()?)?;
        epoll::wait(&load.epoll, spare_capacity(&mut events), Some(&wait))?;
        for event in events.drain(..) {
            load.read(usize::try_from(event.data.u64())?)?;
        }
    }
    println!("{:.1}", percentile(load.latencies, 0.99).as_secs_f64() * 1e6);
    Ok(())
}

struct Load {
    epoll: rustix::fd::OwnedFd,
    connections: Vec<Connection>,
    /// Those that wait for nothing, the one that has done so longest first.
    idle: VecDeque<usize>,
    start: Instant,
    /// When the next request is due.
    next: Instant,
    gap: Duration,
    latencies: Vec<Duration>,
}

struct Connection {
    stream: TcpStream,
    /// When the request that it has sent was due.
    due: Instant,
    answer: Vec<u8>,
}

impl Load {
    fn new(address: SocketAddr, gap: Duration) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let start = Instant::now();
        let mut connections = Vec::new();
        for number in 0..CONNECTIONS {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
            connections.push(Connection { stream, due: start, answer: Vec::new() });
        }
        let start = Instant::now();
        let idle = (0..CONNECTIONS).collect();
        Ok(Self { epoll, connections, idle, start, next: start, gap, latencies: Vec::new() })
    }

    /// Whether there is something left to send or to wait for.
    fn goes_on(&self) -> Result<bool> {
        let is_answered = self.idle.len() == CONNECTIONS;
        match self.start.elapsed().checked_sub(WARM_UP + MEASURED) {
            Some(over) if over > PATIENCE && !is_answered => Err("the server does not answer".into()),
            Some(_) => Ok(!is_answered),
            None => Ok(true),
        }
    }

    /// Sends what is due; how long to wait for what is due next, or for an answer.
    fn send_due(&mut self) -> Result<Duration> {
        let now = Instant::now();
        let end = self.start + WARM_UP + MEASURED;
        while self.next <= now && self.next < end {
            let Some(number) = self.idle.pop_front() else { return Ok(PATIENCE) };
            let connection = &mut self.connections[number];
            connection.due = self.next;
            connection.stream.write_all(REQUEST)?;
            self.next += self.gap;
        }
        Ok(if self.next < end { self.next.saturating_duration_since(Instant::now()) } else { PATIENCE })
    }

    fn read(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let mut piece = [0; 1_024];
        match connection.stream.read(&mut piece)? {
            0 => return Err("the server closed a connection".into()),
            length => connection.answer.extend_from_slice(&piece[..length]),
        }
        if connection.answer.ends_with(OK) {
            if !connection.answer.starts_with(b"HTTP/1.1 200 ") {
                return Err("the server refused a request".into());
            }
            connection.answer.clear();
            self.idle.push_back(number);
            if connection.due >= self.start + WARM_UP {
                self.latencies.push(connection.due.elapsed());
            }
        }
        Ok(())
    }
}

fn percentile(mut latencies: Vec<Duration>, share: f64) -> Duration {
    latencies.sort_unstable();
    let place = (latencies.len() as f64 * share) as usize;
    latencies.get(place).copied().unwrap_or(Duration::MAX)
}
