//! Proxies under load: who takes part, and as many requests as they can take.

mod servers;
mod wrk;

pub use servers::{BenchServer, REQUEST, RESPONSE_END, exchange, serve};
pub use wrk::{ExpectedStatus, compare_throughput, run_wrk};
