//! The cost of open dashboards for a gateway.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    thread::{self, JoinHandle},
    time::Duration,
};
use tidegate_bench::{
    BenchResult,
    interleaved::median,
    process::free_address,
    proxy::{BenchServer, ClientProtocol, ExpectedStatus, run_wrk},
    suite::Measurement,
};

pub(crate) const ABOUT: &str =
    "requests/s of a gateway with the dashboard open in ten clients, over the same without dashboards";

const CLIENT_COUNT: usize = 10;
/// Rounds of one second per load.
const ROUNDS: usize = 13;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let (backend, admin) = (BenchServer::start_backend()?, free_address()?);
    let rule = "rules: { name: each, key: ip, quota: 1000000/s burst 100000 }";
    let policy = format!("headers: none\nadmin: {admin}\nobserve: {{ denials: 10000 }}\n{rule}");
    let gateway = BenchServer::start_gateway(&backend, ClientProtocol::Http, &policy)?;
    let (mut ratios, mut watched, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let before = run_wrk(&gateway, ExpectedStatus::Ok)?.rate;
        let watchers =
            (0..CLIENT_COUNT).map(|_| DashboardClient::open(admin)).collect::<BenchResult<Vec<_>>>()?;
        let own = run_wrk(&gateway, ExpectedStatus::Ok)?.rate;
        watchers.into_iter().try_for_each(DashboardClient::close)?;
        let after = run_wrk(&gateway, ExpectedStatus::Ok)?.rate;
        // The first round warms up.
        if round > 0 {
            ratios.push(own * 2.0 / (before + after));
            watched.push(own);
            alone.extend([before, after]);
        }
    }
    let figures = format!("{:.0} over {:.0} requests/s", median(&watched), median(&alone));
    Ok(Measurement::from_rounds(&ratios, figures))
}

/// A client that reads all events of the dashboard's stream.
struct DashboardClient {
    stream: TcpStream,
    reader: JoinHandle<usize>,
}

impl DashboardClient {
    /// Opens the event stream of the dashboard and waits for the first snapshot.
    fn open(admin: SocketAddr) -> BenchResult<Self> {
        let mut stream = TcpStream::connect(admin)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(format!("GET /api/v1/live HTTP/1.1\r\nhost: {admin}\r\n\r\n").as_bytes())?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let is_snapshot = |line: &str| line.starts_with("event: snapshot");
        while !is_snapshot(&lines.next().ok_or("the event stream ended before the first snapshot")??) {}
        let reading = thread::spawn(move || {
            lines.map_while(std::result::Result::ok).filter(|line| is_snapshot(line)).count()
        });
        Ok(Self { stream, reader: reading })
    }

    /// Closes the stream; fails if it received no further snapshot.
    fn close(self) -> BenchResult<()> {
        self.stream.shutdown(std::net::Shutdown::Both)?;
        match self.reader.join() {
            Ok(1..) => Ok(()),
            _ => Err("the dashboard received no updates".into()),
        }
    }
}
