//! Reads the body of a request, with a size limit and a timeout.

use crate::ApiError;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::Body;
use http_body_util::BodyExt as _;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};
use tokio::time::timeout;

/// The size limit of the APIs, in bytes.
pub const MAX_BODY_SIZE: usize = 1_000_000;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a body: 413 if it is larger than `max_size`, 408 if it takes too long.
pub async fn read_body<B>(body: B, max_size: usize) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes>,
{
    let mut reading = pin!(collect(body, max_size));
    // Most bodies arrive with their heads; only the others need a timer.
    if let Some(body) = poll_twice(reading.as_mut()).await {
        return body;
    }
    timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| {
        let problem = "request body timed out; send it within 10 s";
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, problem))
    })
}

/// Polls a future twice without waiting. A connection delivers a body only after the first poll.
async fn poll_twice<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    let mut was_polled = false;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if was_polled => Poll::Ready(None),
        Poll::Pending => {
            was_polled = true;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

async fn collect<B>(body: B, max_size: usize) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.as_mut().frame().await {
        let frame = frame.map_err(|_| ApiError::bad_request("request body is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + all.len() + data.len() > max_size {
            let problem = format!("request body is too large; send at most {max_size} bytes");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, problem));
        }
        // Most bodies have one frame, which is not copied.
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}
