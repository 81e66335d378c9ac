//! A thread of our own, for whatever speaks to a store.
//!
//! Connections must not live on the runtime of whoever happened to need them: it may end, and it stands still while one of
//! its threads is in a function that blocks. So stores that settings name live here, and so does waiting for them.

use crate::{
    limiter::FailureMode,
    store::{Store, StoreError, StoreFuture, StoreReply, StoreRequest},
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
const MAX_STORE_WAIT: Duration = Duration::from_secs(5);

/// That thread, and its runtime.
struct BackgroundRuntime {
    handle: Handle,
    thread: ThreadId,
}

/// It is started when it is first needed; `None` if the machine has no thread to give.
fn runtime() -> Option<&'static BackgroundRuntime> {
    static RUNTIME: OnceLock<Option<BackgroundRuntime>> = OnceLock::new();
    RUNTIME.get_or_init(start_runtime).as_ref()
}

fn handle() -> Option<&'static Handle> {
    runtime().map(|background| &background.handle)
}

fn start_runtime() -> Option<BackgroundRuntime> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    let thread = thread::Builder::new().name("tidegate".to_owned()).spawn(run).ok()?.thread().id();
    Some(BackgroundRuntime { handle, thread })
}

/// Runs a future there and blocks this thread until it is done; `None` if that takes longer than `patience` and anything
/// a store may take. That thread itself has nobody to wait for: whoever is limited there, such as a listener to what a store
/// has to tell, gets `None` at once.
pub fn block_on<F>(max_wait: Duration, future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let background = runtime()?;
    if thread::current().id() == background.thread {
        return None;
    }
    let (done, result) = mpsc::sync_channel(1);
    drop(background.handle.spawn(async move {
        // Nobody listens any more if it took too long.
        let _ = done.send(future.await);
    }));
    result.recv_timeout(max_wait.saturating_add(MAX_STORE_WAIT)).ok()
}

/// Runs a future on this task's runtime, or there if it has none: whoever waits needs a timer. `None` if there is neither.
pub async fn run_in_runtime<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(_) => Some(future.await),
        Err(_) => AbortOnDrop(handle()?.spawn(future)).await,
    }
}

/// Runs a future there to its end, whether or not its caller stays to hear of it. `None` if there is no such thread.
pub async fn run_to_completion<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    handle()?.spawn(future).await.ok()
}

/// Goes on when its caller is gone, on this runtime if there is one: a store has decided by then, and what it has given must be there
/// to be given back. `None` if the runtime ends.
pub(crate) async fn run_uncancelled<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn(future).await.ok(),
        Err(_) => Some(future.await),
    }
}

/// Runs a future on this runtime, or else on that thread; `None` if there is neither.
pub(crate) fn spawn_in_current(future: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
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
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(context).map(Result::ok)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A store that lives on that thread.
#[derive(Debug)]
pub struct BackgroundStore(pub Arc<dyn Store>);

impl Store for BackgroundStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let Some(handle) = handle() else {
            return Box::pin(async { Err(StoreError::Unavailable("there is no thread for it".to_owned())) });
        };
        let answer = handle.spawn(self.0.execute(request));
        Box::pin(async {
            answer.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the call was given up".to_owned())))
        })
    }

    fn effective_quota(&self, quota: Quota) -> Quota {
        self.0.effective_quota(quota)
    }

    fn ready(&self) -> StoreFuture<Result<(), StoreError>> {
        self.0.ready()
    }

    fn wait_recovered(&self) -> StoreFuture<()> {
        self.0.wait_recovered()
    }

    fn add_failure_mode(&self, mode: FailureMode) {
        self.0.add_failure_mode(mode);
    }

    fn last_error(&self) -> Option<String> {
        self.0.last_error()
    }
}

#[cfg(test)]
mod tests {
    use super::block_on;
    use std::time::Duration;

    #[test]
    fn background_thread_does_not_wait_for_itself() {
        let inner = async { block_on(Duration::ZERO, async { 7 }) };
        assert_eq!(block_on(Duration::ZERO, inner), Some(None));
        assert_eq!(block_on(Duration::ZERO, async { 7 }), Some(7));
    }
}
