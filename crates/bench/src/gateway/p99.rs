//! The p99 latency at a rate that both servers sustain, compared with nginx.

use crate::{BenchResult, Measurement, median, paced};
use tidegate_bench::proxy::{BenchServer, ClientProtocol, ExpectedStatus, NginxSettings, run_wrk};

pub(crate) const ABOUT: &str =
    "p99 latency at 70 % of nginx's throughput, 64 keep-alive connections, over nginx's";

/// Rounds of about one second per server.
const ROUNDS: usize = 11;
/// The load as a fraction of nginx's throughput.
const LOAD_FRACTION: f64 = 0.7;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Http, &NginxSettings::default())?;
    let gateway = BenchServer::start_gateway(&backend, ClientProtocol::Http, "")?;
    run_wrk(&gateway, ExpectedStatus::Ok)?;
    let throughput: Vec<f64> =
        (0..5).map(|_| Ok(run_wrk(&nginx, ExpectedStatus::Ok)?.rate)).collect::<BenchResult<_>>()?;
    let rate = median(&throughput) * LOAD_FRACTION;
    let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = paced::p99(nginx.address, rate)?;
        let own = paced::p99(gateway.address, rate)?;
        let after = paced::p99(nginx.address, rate)?;
        ratios.push(own * 2.0 / (before + after));
        ours.push(own);
        theirs.extend([before, after]);
    }
    let figures = format!("{:.0} over {:.0} us at {rate:.0} requests/s", median(&ours), median(&theirs));
    Ok(Measurement::from_rounds(&ratios, figures))
}
