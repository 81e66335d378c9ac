//! A snapshot each second, as server-sent events.

use super::Office;
use crate::{
    api_error::ApiError,
    observe::{LiveEvent, Watching},
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use std::convert::Infallible;
use tokio::sync::watch;

/// Where a stream is.
struct Stream {
    watching: Watching,
    open: watch::Receiver<()>,
    /// What comes first.
    first: Option<Bytes>,
}

impl Office {
    pub(super) fn live(&self) -> Result<Response, ApiError> {
        let Some(mut watching) = self.observer.live.watch() else {
            let problem = "too many watch already; try again later, or ask /api/v1/status";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem)
                .with(header::RETRY_AFTER, HeaderValue::from_static("5")));
        };
        let number = watching.events.borrow_and_update().number;
        let now = self.snapshot()?.json().to_string();
        let first = format!("retry: 2000\n\n{}", event(number, now.as_bytes()));
        let stream = Stream { watching, open: self.open.clone(), first: Some(first.into()) };
        let events = stream::unfold(stream, |mut stream| async move {
            let event = stream.next().await?;
            Some((Ok::<_, Infallible>(event), stream))
        });
        let mut response = Response::new(Body::from_stream(events));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        tokio::select! {
            // Nobody sends anything: it ends with the listener.
            _ = self.open.changed() => None,
            changed = self.watching.events.changed() => {
                changed.ok()?;
                let LiveEvent { number, text } = self.watching.events.borrow_and_update().clone();
                Some(event(number, &text).into())
            }
        }
    }
}

fn event(number: u64, text: &[u8]) -> String {
    format!("event: snapshot\nid: {number}\ndata: {}\n\n", String::from_utf8_lossy(text))
}
