//! Rejects connections beyond the connection limit.

use crate::{RequestFilter, telemetry::RequestTelemetry, worker::Worker};
use http::StatusCode;
use std::{rc::Rc, sync::Arc, time::Duration};
use tidegate_http_server::HTTP2_PREFACE;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task, time,
};

/// The number of 503 responses that one worker sends at a time. Other connections are closed.
const MAX_CONCURRENT_REJECTIONS: u32 = 64;
/// How long a client may take to send its request and to read the response.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
const RESPONSE_503: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// Sends a 503 to a client that uses HTTP/1 without TLS. Other connections are closed, and so are those beyond the maximum of
/// concurrent rejections.
pub(crate) fn reject(worker: &Rc<Worker>, filter: &Arc<dyn RequestFilter>, stream: TcpStream) {
    let pending = &worker.pending_rejections;
    if pending.get() >= MAX_CONCURRENT_REJECTIONS {
        return;
    }
    pending.set(pending.get() + 1);
    let (worker, filter) = (worker.clone(), filter.clone());
    task::spawn_local(async move {
        // The connection is closed whether or not the client read the response.
        let record = || {
            RequestTelemetry::rejected(StatusCode::SERVICE_UNAVAILABLE).record(&*filter, None, &worker);
        };
        let _ = time::timeout(REJECTION_TIMEOUT, send_503(stream, record)).await;
        worker.pending_rejections.set(worker.pending_rejections.get() - 1);
    });
}

async fn send_503(mut stream: TcpStream, record: impl FnOnce()) -> std::io::Result<()> {
    // Some clients do not accept a response before they have sent the request.
    let mut start = [0; 512];
    let length = stream.read(&mut start).await?;
    if length == 0 || start.starts_with(&HTTP2_PREFACE[..4]) {
        return Ok(());
    }
    record();
    stream.try_write(RESPONSE_503)?;
    stream.shutdown().await?;
    // Closing with unread data would reset the connection, and the response might be lost.
    while stream.read(&mut start).await? > 0 {}
    Ok(())
}
