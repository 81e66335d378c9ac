//! A stream consumer: messages are read at a limited rate, and a function with an attribute limits each sender.
//!
//! ```text
//! cargo run -p tidegate --example consumer --features stream
//! ```

use futures_core::Stream;
use std::{
    error::Error,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    process::ExitCode,
    task::{Context, Poll},
    vec,
};
use tidegate::{
    Clock, limit,
    limiter::{StreamLimit, StreamLimitExt as _},
};

/// A message of a queue.
struct Message {
    sender: &'static str,
    number: u32,
}

/// A queue whose messages are all available.
struct MessageQueue(vec::IntoIter<Message>);

impl Stream for MessageQueue {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Message>> {
        Poll::Ready(self.0.next())
    }
}

/// Handles two messages per minute and sender; the others go to a dead letter queue.
#[limit("2/min", key = message.sender, on_limit = dead_letter)]
async fn handle(message: &Message) -> String {
    format!("handled {} of {}", message.number, message.sender)
}

async fn dead_letter(message: &Message) -> String {
    format!("dead-lettered {} of {}", message.number, message.sender)
}

/// Limits the lines that the consumer writes.
#[limit("100/h")]
fn log(out: &mut impl io::Write, line: &str) -> Result<(), Box<dyn Error>> {
    Ok(writeln!(out, "{line}")?)
}

/// Reads ten messages per second, one at a time, and writes the result and the time of each.
pub(crate) async fn run(out: &mut impl io::Write) -> Result<(), Box<dyn Error>> {
    let senders = ["alice", "bob", "alice", "alice", "bob"];
    let messages = senders.into_iter().zip(1..).map(|(sender, number)| Message { sender, number });
    let clock = Clock::tokio();
    let limit = StreamLimit::with_clock(clock.clone()).rate("10/s burst 1")?.max_in_flight(1)?;
    let mut queue = pin!(MessageQueue(messages.collect::<Vec<_>>().into_iter()).limit(limit));
    let start = clock.now();
    while let Some(message) = poll_fn(|context| queue.as_mut().poll_next(context)).await {
        let result = handle(&message).await;
        log(out, &format!("{:3} ms: {result}", clock.now().saturating_sub(start).get() / 1_000))?;
    }
    Ok(())
}

#[allow(dead_code, reason = "the test calls `run`")]
fn main() -> ExitCode {
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(&mut io::stdout().lock())));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("consumer: {error}");
            ExitCode::FAILURE
        }
    }
}
