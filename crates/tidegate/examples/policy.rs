//! A service on axum whose limits are all in one file, which may change while it runs.
//!
//! ```sh
//! cargo run -p tidegate --example policy --features axum,policy
//! curl -i 127.0.0.1:3000/                                   # six times
//! curl -i -d 'wrong' 127.0.0.1:3000/login                   # four times
//! sed -i 's|5/min|50/min|' crates/tidegate/examples/policy.yaml      # then again, without a restart
//! ```

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};
use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tidegate::{
    Rules,
    policy::{
        Policy,
        compile::{Compiler, LivePolicy},
    },
    tower::PolicyLayer,
};
use tokio::{net::TcpListener, time};

/// The policy of a file, in force.
pub(crate) fn open(path: &Path, rules: Rules) -> Result<Arc<LivePolicy>, Box<dyn Error>> {
    let policy = Policy::from_file(path)?;
    Ok(Arc::new(LivePolicy::new(Compiler::new(rules), &policy)?))
}

/// The whole application, behind its policy.
pub(crate) fn app(live: Arc<LivePolicy>) -> Result<Router, Box<dyn Error>> {
    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .route("/login", post(async || StatusCode::UNAUTHORIZED))
        .layer(PolicyLayer::new(live)?))
}

/// Looks at the file again and again, and puts in force what it says. A wrong one changes nothing.
pub(crate) async fn follow(path: PathBuf, live: Arc<LivePolicy>, every: Duration) {
    let mut last = Policy::from_file(&path).map_err(|problems| problems.to_string());
    loop {
        time::sleep(every).await;
        let next = Policy::from_file(&path).map_err(|problems| problems.to_string());
        if next == last {
            continue;
        }
        let outcome = match &next {
            Ok(policy) => live.replace(policy).map_err(|error| error.to_string()),
            Err(problems) => Err(problems.clone()),
        };
        match outcome {
            Ok(()) => println!("{} is in force as it is now", path.display()),
            Err(problems) => eprintln!("the policy stays as it was:\n{problems}"),
        }
        last = next;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policy.yaml");
    let live = open(&path, Rules::new())?;
    tokio::spawn(follow(path, live.clone(), Duration::from_secs(1)));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 3000)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app(live)?.into_make_service_with_connect_info::<SocketAddr>()).await?)
}
