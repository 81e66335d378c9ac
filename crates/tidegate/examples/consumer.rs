//! A consumer of a stream: messages are pulled at a pace, and a function with an attribute decides about each sender.
//!
//! ```text
//! cargo run --example consumer --features stream
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

/// Stands for a queue: what is in it is there at once.
struct MessageQueue(vec::IntoIter<Message>);

impl Stream for MessageQueue {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Message>> {
        Poll::Ready(self.0.next())
    }
}

/// Each sender has two messages a minute handled; the rest goes where somebody looks at it later.
#[limit("2/min", key = message.sender, on_limit = dead_letter)]
async fn handle(message: &Message) -> String {
    format!("handled {} of {}", message.number, message.sender)
}

async fn dead_letter(message: &Message) -> String {
    format!("put aside {} of {}", message.number, message.sender)
}

/// The whole consumer may write so many lines, and fails if that is not enough.
#[limit("100/h")]
fn log(out: &mut impl io::Write, line: &str) -> Result<(), Box<dyn Error>> {
    Ok(writeln!(out, "{line}")?)
}

/// Pulls ten messages a second, one at a time, and writes what becomes of them and when.
pub(crate) async fn run(out: &mut impl io::Write) -> Result<(), Box<dyn Error>> {
    let senders = ["alice", "bob", "alice", "alice", "bob"];
    let messages = senders.into_iter().zip(1..).map(|(sender, number)| Message { sender, number });
    let clock = Clock::tokio();
    let pace = StreamLimit::with_clock(clock.clone()).rate("10/s burst 1")?.max_in_flight(1)?;
    let mut queue = pin!(MessageQueue(messages.collect::<Vec<_>>().into_iter()).limit(pace));
    let start = clock.now();
    while let Some(message) = poll_fn(|context| queue.as_mut().poll_next(context)).await {
        let did = handle(&message).await;
        log(out, &format!("{:3} ms: {did}", clock.now().since(start).get() / 1_000))?;
    }
    Ok(())
}

#[allow(dead_code, reason = "a test calls what it calls")]
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
