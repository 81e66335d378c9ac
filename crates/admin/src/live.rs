//! `/api/v1/live`: a snapshot per second, as server-sent events.

use super::AdminState;
use axum::response::{
    IntoResponse as _, Response,
    sse::{Event, Sse},
};
use futures_util::stream::{self, StreamExt as _};
use http::{HeaderValue, StatusCode, header};
use std::{convert::Infallible, time::Duration};
use tidegate_http_server::ApiError;
use tidegate_observe::{LiveEvent, LiveSubscription};
use tokio::sync::watch;

/// The delay after which browsers reconnect.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

impl AdminState {
    pub(super) fn live(&self) -> Result<Response, ApiError> {
        let Some(mut watching) = self.observer.live.subscribe() else {
            let problem = "too many subscribers; try again later, or poll /api/v1/status";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem)
                .with_header(header::RETRY_AFTER, HeaderValue::from_static("5")));
        };
        let number = watching.events.borrow_and_update().number;
        let first = snapshot_event(number, self.snapshot()?.to_json().to_string().as_bytes());
        let later = stream::unfold((watching, self.shutdown.clone()), next_event);
        let events = stream::iter([Event::default().retry(RECONNECT_DELAY), first]).chain(later);
        let mut response = Sse::new(events.map(Ok::<_, Infallible>)).into_response();
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// The next snapshot; `None` when the listener closes and drops the sender of `open`.
async fn next_event(
    (mut watching, mut open): (LiveSubscription, watch::Receiver<()>),
) -> Option<(Event, (LiveSubscription, watch::Receiver<()>))> {
    tokio::select! {
        _ = open.changed() => return None,
        changed = watching.events.changed() => changed.ok()?,
    }
    let LiveEvent { number, text } = watching.events.borrow_and_update().clone();
    Some((snapshot_event(number, &text), (watching, open)))
}

fn snapshot_event(number: u64, text: &[u8]) -> Event {
    let text = String::from_utf8_lossy(text);
    Event::default().event("snapshot").id(number.to_string()).data(text)
}
