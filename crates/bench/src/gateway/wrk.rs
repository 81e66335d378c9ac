//! As many requests as a server can take.

use crate::{Result, stage::OTHERS};
use std::{net::SocketAddr, process::Command};

/// Requests per second that wrk has answered, over 64 connections, for one second.
pub(crate) fn load(address: SocketAddr) -> Result<f64> {
    let url = format!("http://{address}/");
    let output = Command::new("taskset").args(["-c", OTHERS, "wrk", "-t1", "-c64", "-d1s", &url]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("requests failed: {text}").into());
    }
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    Ok(line.ok_or_else(|| format!("wrk said {text}"))?.trim().parse()?)
}
