//! Proxies under load: the servers, and their throughput.

mod servers;
mod wrk;

pub use servers::{BenchServer, REQUEST, RESPONSE_END, exchange, serve};
pub use wrk::{ExpectedStatus, compare_throughput, run_wrk};
