//! A gateway that forwards everything: `plain LISTEN SERVER`, with one worker.

#![allow(clippy::print_stderr, reason = "a program")]

use std::{collections::BTreeMap, error::Error, num::NonZeroUsize, sync::Arc};
use tidegate_core::Share;
use tidegate_policy::model::{
    Balance, Connections, Listener, Log, Protocol, Retries, Timeouts, Upstream, UpstreamServer,
};
use tidegate_server::{Bound, Config, Outcome, run};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(listen), Some(url)) = (args.next(), args.next()) else {
        return Err("usage: plain LISTEN SERVER".into());
    };
    let upstream = Upstream {
        servers: vec![UpstreamServer { url, weight: 1 }],
        balance: Balance::default(),
        protocol: Protocol::default(),
        timeouts: Timeouts::default(),
        keep_alive: 128,
        health: None,
        breaker: None,
        retries: Retries { most: 1, budget: Share::percent(20.0)? },
    };
    let config = Config {
        connections: Connections { most: 100_000, per_client: 100_000, ..Connections::default() },
        upstreams: BTreeMap::from([("app".to_owned(), upstream)]),
        trusted: Vec::new(),
        log: Log::default(),
        roots: tidegate_server::Roots::default(),
        workers: NonZeroUsize::MIN,
    };
    let app = config.target("app").ok_or("no upstream")?;
    let listener = Bound::bind(&Listener { address: listen.parse()?, tls: None })?;
    let judge = Arc::new(move |_: &http::request::Parts| Outcome::Go(app, ()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(config, vec![listener], judge, std::future::pending()))?;
    Ok(())
}
