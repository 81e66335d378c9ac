//! Connections for which there is no place.

use crate::{RequestFilter, telemetry::RequestTelemetry, worker::Worker};
use http::StatusCode;
use std::{rc::Rc, sync::Arc, time::Duration};
use tidegate_http_server::HTTP2_PREFACE;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task, time,
};

/// Clients that are told at the same time, by one worker. All others find their connections closed.
const MAX_CONCURRENT_REJECTIONS: u32 = 64;
/// How long a client has to ask and to hear.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
const RESPONSE_503: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// Tells a client in plain text that there is no place for it. It costs no memory to speak of, and only so many at a time.
pub(crate) fn reject<F: RequestFilter>(worker: &Rc<Worker>, filter: &Arc<F>, stream: TcpStream) {
    let refused = &worker.rejections;
    if refused.get() >= MAX_CONCURRENT_REJECTIONS {
        return;
    }
    refused.set(refused.get() + 1);
    let (worker, filter) = (worker.clone(), filter.clone());
    task::spawn_local(async move {
        // Whether it has heard or not, it goes.
        let record = || {
            RequestTelemetry::rejected(StatusCode::SERVICE_UNAVAILABLE).record(&*filter, None, &worker);
        };
        let _ = time::timeout(REJECTION_TIMEOUT, send_503(stream, record)).await;
        worker.rejections.set(worker.rejections.get() - 1);
    });
}

async fn send_503(mut stream: TcpStream, record: impl FnOnce()) -> std::io::Result<()> {
    // An answer before the question would confuse some.
    let mut start = [0; 512];
    let length = stream.read(&mut start).await?;
    if length == 0 || start.starts_with(&HTTP2_PREFACE[..4]) {
        return Ok(());
    }
    record();
    stream.try_write(RESPONSE_503)?;
    stream.shutdown().await?;
    // Closed with something unread in it, the connection would be reset and the answer might be lost.
    while stream.read(&mut start).await? > 0 {}
    Ok(())
}
