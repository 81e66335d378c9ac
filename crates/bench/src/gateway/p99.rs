//! The latency of the slowest of a hundred, beside nginx, at a rate that both can take.

use crate::{Measured, Result, median, paced};
use tidegate_bench::proxy::{Answers, Server, load};

pub(crate) const ABOUT: &str =
    "p99 latency at 70 % of nginx's throughput, 64 keep-alive connections, over nginx's";

/// Rounds, each of about one second for each of them.
const ROUNDS: usize = 11;
/// Of the throughput of nginx.
const SHARE: f64 = 0.7;

pub(crate) fn measure() -> Result<Measured> {
    let backend = Server::backend()?;
    let nginx = Server::nginx_before(&backend, Default::default())?;
    let gateway = Server::gateway_before(&backend, "")?;
    load(&gateway, Answers::Ok)?;
    let throughput: Vec<f64> = (0..5).map(|_| load(&nginx, Answers::Ok)).collect::<Result<_>>()?;
    let rate = median(&throughput) * SHARE;
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
    Ok(Measured { value: median(&ratios), figures })
}
