//! Proxies under load: the servers, and their throughput.

mod http2_load;
mod servers;
mod wrk;

pub use http2_load::run_h2load;
pub use servers::{
    BenchServer, CIPHER_SUITE, ClientProtocol, NginxSettings, REQUEST, RESPONSE_END, exchange, serve,
};
pub use wrk::{
    ExpectedStatus, WrkRun, compare_servers, compare_throughput, run_wrk, run_wrk_with_headers,
    run_wrk_with_script,
};
