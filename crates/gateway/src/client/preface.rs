//! Which version of HTTP a client speaks that has agreed on nothing.

use super::{Client, ClientIo};
use bytes::BytesMut;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};
use tidegate_http_server::PREFACE;
use tokio::io::AsyncReadExt;

/// Whether the client says it. What was read is read again by whoever comes next.
pub(super) async fn is_next(io: &mut ClientIo, client: &Client) -> bool {
    let mut said = BytesMut::with_capacity(PREFACE.len());
    while said.len() < PREFACE.len() && PREFACE.starts_with(&said) {
        let read = {
            let mut reading = pin!(io.read_buf(&mut said));
            poll_fn(|context| {
                client.deadline.listen(context);
                match reading.as_mut().poll(context) {
                    Poll::Pending if client.deadline.is_over() || client.worker.is_draining() => {
                        Poll::Ready(Ok(0))
                    }
                    polled => polled,
                }
            })
            .await
        };
        if !matches!(read, Ok(1..)) {
            break;
        }
    }
    let is_said = said == PREFACE;
    io.again(&said);
    is_said
}
