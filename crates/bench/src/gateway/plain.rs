//! Plain proxying, beside nginx.

use crate::{Measured, Result, median, stage::Server, wrk::load};

pub(crate) const ABOUT: &str = "requests/s of plain proxying, 64 keep-alive connections, over nginx";

/// Rounds, each of one second for each of them.
const ROUNDS: usize = 13;

pub(crate) fn measure() -> Result<Measured> {
    let backend = Server::backend()?;
    let (nginx, gateway) = (Server::nginx_before(&backend)?, Server::gateway_before(&backend)?);
    let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // Each of ours between two of theirs, so that a machine that drifts favours nobody.
        let (before, own, after) = (load(nginx.address)?, load(gateway.address)?, load(nginx.address)?);
        // The first one is for warming up.
        if round > 0 {
            ratios.push(own * 2.0 / (before + after));
            ours.push(own);
            theirs.extend([before, after]);
        }
    }
    let figures = format!("{:.0} over {:.0} requests/s", median(&ours), median(&theirs));
    Ok(Measured { value: median(&ratios), figures })
}
