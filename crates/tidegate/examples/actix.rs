//! A shop on actix-web: a limit per client, a login that counts only failures, a limit on concurrent downloads, and a
//! nested function that is limited by the client address.
//!
//! ```text
//! cargo run -p tidegate --example actix --features actix
//! curl -i http://127.0.0.1:8080/
//! ```

use actix_web::{
    App, HttpResponse, HttpServer,
    dev::Server,
    web::{self, Bytes},
};
use std::{error::Error, io, net::TcpListener};
use tidegate::{
    BuildError, Gate, Limited, RequestLimit, RuleConfig,
    actix::{ContextMiddleware, LimitMiddleware},
    limit,
    rule::{
        ChargePolicy,
        request::{ResponseHead, key},
    },
};

/// Returns the rules of the shop. All workers share them.
fn gate() -> Result<Gate, BuildError> {
    let client =
        RequestLimit::from_config(RuleConfig::new("client").quota("1000/h burst 100")?)?.key(key::peer());
    let login = RequestLimit::from_config(RuleConfig::new("login").quota("3/h")?)?
        .key(key::peer())
        .routes(["/login"])
        .charge(ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401));
    // A slot is in use until the last byte has been sent.
    let downloads = RequestLimit::from_config(RuleConfig::new("downloads").quota("2 at once")?)?
        .key(key::peer())
        .routes(["/download/*"]);
    Ok(Gate::new([client, login, downloads]))
}

async fn index() -> &'static str {
    "welcome"
}

async fn login(password: String) -> HttpResponse {
    match password.as_str() {
        "open sesame" => HttpResponse::Ok().body("come in"),
        _ => HttpResponse::Unauthorized().finish(),
    }
}

async fn download(file: web::Path<String>) -> Bytes {
    Bytes::from(file.repeat(1_000))
}

/// A rejection becomes a response: 429, `Retry-After` and a problem that names the rule.
async fn search(words: web::Path<String>) -> Result<String, Limited> {
    find(&words).await
}

/// The client address comes from the context of the request, not from an argument.
#[limit("2/h", key = ip)]
async fn find(words: &str) -> Result<String, Limited> {
    Ok(format!("nothing about {words}"))
}

/// Serves the shop on this listener.
pub(crate) fn run(listener: TcpListener, workers: usize) -> Result<Server, Box<dyn Error>> {
    let gate = gate()?;
    let app = move || {
        App::new()
            .wrap(LimitMiddleware::new(gate.clone()))
            .wrap(ContextMiddleware::default())
            .route("/", web::get().to(index))
            .route("/login", web::post().to(login))
            .route("/download/{file}", web::get().to(download))
            .route("/search/{words}", web::get().to(search))
    };
    Ok(HttpServer::new(app).workers(workers).listen(listener)?.run())
}

#[allow(dead_code, reason = "the test calls `run`")]
fn main() -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 8080))?;
    actix_web::rt::System::new()
        .block_on(async { run(listener, 2).map_err(|error| io::Error::other(error.to_string()))?.await })
}
