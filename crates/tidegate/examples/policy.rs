//! An axum service whose limits are in a policy file, which can change at runtime.
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
    path::Path,
};
use tidegate::tower::LimitLayer;
use tokio::net::TcpListener;

/// Builds the application with a policy.
pub(crate) fn app(policy: &Path) -> Result<Router, Box<dyn Error>> {
    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .route("/login", post(async || StatusCode::UNAUTHORIZED))
        .layer(LimitLayer::from_policy(policy)?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policy.yaml"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 3000)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}
