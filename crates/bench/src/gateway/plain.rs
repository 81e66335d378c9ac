//! Plain proxying, beside nginx.

use crate::{
    Measured, Result, median,
    stage::{OTHERS, Server},
};
use std::{net::SocketAddr, process::Command};

pub(crate) const ABOUT: &str = "requests/s of plain proxying, 64 keep-alive connections, over nginx";

/// Rounds, each of one second for each of them.
const ROUNDS: usize = 15;

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

/// Requests per second that wrk has answered.
fn load(address: SocketAddr) -> Result<f64> {
    let url = format!("http://{address}/");
    let output = Command::new("taskset").args(["-c", OTHERS, "wrk", "-t1", "-c64", "-d1s", &url]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("requests failed: {text}").into());
    }
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    Ok(line.ok_or_else(|| format!("wrk said {text}"))?.trim().parse()?)
}
