//! From a prepared request to the head of an answer.

use super::{Failure, RequestBody};
use crate::{
    client::Client,
    upstream::{Line, Server, Unsent, Upstream, Visit},
};
use http::{Request, Response, request};
use hyper::body::Incoming;
use std::{io, rc::Rc};

/// How the answer comes.
pub(super) enum Via {
    /// Over a connection of its own.
    Line { line: Box<Line>, visit: Visit },
}

/// Sends a request to a server of an upstream.
pub(super) async fn forward(
    _client: &Client,
    upstream: &Rc<Upstream>,
    parts: request::Parts,
    body: RequestBody,
) -> Result<(Response<Incoming>, Via), Failure> {
    let server = upstream.pick().ok_or(Failure::NoServer)?;
    let note = body.note();
    match send(server, upstream, Request::from_parts(parts, body)).await {
        Ok(answered) => Ok(answered),
        Err(failure) => Err(note.and_then(|note| note.read()).unwrap_or(failure)),
    }
}

/// Sends a request to this server, over a connection that is still open or a new one.
async fn send(
    server: &Rc<Server>,
    upstream: &Upstream,
    mut request: Request<RequestBody>,
) -> Result<(Response<Incoming>, Via), Failure> {
    let visit = server.visit();
    loop {
        let (mut line, is_new) = match server.take() {
            Some(line) => (line, false),
            None => (server.connect().await.map_err(|error| failure_of(&error))?, true),
        };
        match line.ask(request, upstream.times.response).await {
            Ok(response) => return Ok((response, Via::Line { line, visit })),
            // The server closed it while nobody used it. There are only so many of those.
            Err(Unsent::Closed(back)) if !is_new => request = *back,
            Err(Unsent::Closed(_) | Unsent::Broken) => return Err(Failure::Broken),
            Err(Unsent::Late) => return Err(Failure::Late),
        }
    }
}

fn failure_of(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::Late,
        _ => Failure::Unreachable,
    }
}
