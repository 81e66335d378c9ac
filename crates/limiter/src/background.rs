//! A thread of our own, for whatever speaks to a store.
//!
//! Connections must not live on the runtime of whoever happened to need them: it may end, and it stands still while one of
//! its threads is in a function that blocks. So stores that settings name live here, and so does waiting for them.

use crate::{
    limiter::Outage,
    store::{Pending, Reply, Request, Store, StoreError},
};
use std::{
    pin::Pin,
    sync::{Arc, OnceLock, mpsc},
    task::{Context, Poll},
    thread::{self, ThreadId},
    time::Duration,
};
use tidegate_core::Quota;
use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
};

/// A store answers within its deadline or not at all; this is only so that nothing can ever hang.
const LONGEST: Duration = Duration::from_secs(5);

/// That thread, and its runtime.
struct Background {
    handle: Handle,
    thread: ThreadId,
}

/// It is started when it is first needed; `None` if the machine has no thread to give.
fn background() -> Option<&'static Background> {
    static BACKGROUND: OnceLock<Option<Background>> = OnceLock::new();
    BACKGROUND.get_or_init(start).as_ref()
}

fn handle() -> Option<&'static Handle> {
    background().map(|background| &background.handle)
}

fn start() -> Option<Background> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    let thread = thread::Builder::new().name("tidegate".to_owned()).spawn(run).ok()?.thread().id();
    Some(Background { handle, thread })
}

/// Runs a future there and blocks this thread until it is done; `None` if that takes longer than `patience` and anything
/// a store may take. That thread itself has nobody to wait for: whoever is limited there, such as a listener to what a store
/// has to tell, gets `None` at once.
pub fn block_on<F>(patience: Duration, future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let background = background()?;
    if thread::current().id() == background.thread {
        return None;
    }
    let (done, result) = mpsc::sync_channel(1);
    drop(background.handle.spawn(async move {
        // Nobody listens any more if it took too long.
        let _ = done.send(future.await);
    }));
    result.recv_timeout(patience.saturating_add(LONGEST)).ok()
}

/// Runs a future on this task's runtime, or there if it has none: whoever waits needs a timer. `None` if there is neither.
pub async fn within_runtime<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(_) => Some(future.await),
        Err(_) => Visit(handle()?.spawn(future)).await,
    }
}

/// Runs a future there to its end, whether or not its caller stays to hear of it. `None` if there is no such thread.
pub async fn to_its_end<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    handle()?.spawn(future).await.ok()
}

/// Goes on when its caller is gone, on this runtime if there is one: a store has decided by then, and what it has given must be there
/// to be given back. `None` if the runtime ends.
pub(crate) async fn finish<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn(future).await.ok(),
        Err(_) => Some(future.await),
    }
}

/// Runs a future on this runtime, or else on that thread; `None` if there is neither.
pub(crate) fn spawn_here(future: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
    match Handle::try_current() {
        Ok(runtime) => Some(runtime.spawn(future)),
        Err(_) => Some(handle()?.spawn(future)),
    }
}

/// Calls a function whose tasks are to live there; `None` if there is no such thread.
pub fn enter<R>(call: impl FnOnce() -> R) -> Option<R> {
    let _entered = handle()?.enter();
    Some(call())
}

/// Runs a future there, and does not wait for it.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if let Some(handle) = handle() {
        handle.spawn(future);
    }
}

/// A future that runs elsewhere until it is done or nobody wants to know any more.
struct Visit<T>(JoinHandle<T>);

impl<T> Future for Visit<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(context).map(Result::ok)
    }
}

impl<T> Drop for Visit<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A store that lives on that thread.
#[derive(Debug)]
pub struct Housed(pub Arc<dyn Store>);

impl Store for Housed {
    fn perform(&self, request: Request) -> Pending<Result<Reply, StoreError>> {
        let Some(handle) = handle() else {
            return Box::pin(async { Err(StoreError::Away("there is no thread for it".to_owned())) });
        };
        let answer = handle.spawn(self.0.perform(request));
        Box::pin(async {
            answer.await.unwrap_or_else(|_| Err(StoreError::Away("the call was given up".to_owned())))
        })
    }

    fn adapt(&self, quota: Quota) -> Quota {
        self.0.adapt(quota)
    }

    fn ready(&self) -> Pending<Result<(), StoreError>> {
        self.0.ready()
    }

    fn recovered(&self) -> Pending<()> {
        self.0.recovered()
    }

    fn add_mode(&self, mode: Outage) {
        self.0.add_mode(mode);
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }
}

#[cfg(test)]
mod tests {
    use super::block_on;
    use std::time::Duration;

    #[test]
    fn that_thread_does_not_wait_for_itself() {
        let inner = async { block_on(Duration::ZERO, async { 7 }) };
        assert_eq!(block_on(Duration::ZERO, inner), Some(None));
        assert_eq!(block_on(Duration::ZERO, async { 7 }), Some(7));
    }
}
