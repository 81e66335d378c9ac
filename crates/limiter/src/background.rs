//! A background thread with a runtime, for stores.
//!
//! Connections must not live on the runtime of the caller that opened them: that runtime may end, and it stops while one
//! of its threads runs a blocking function. So the stores of a policy run here, and waiting for them does too.

use crate::{
    limiter::FailureMode,
    store::{OverrideReply, OverrideRequest, Store, StoreError, StoreFuture, StoreReply, StoreRequest},
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

/// An upper bound in case a store ignores its own deadline, so that no caller hangs.
const MAX_STORE_WAIT: Duration = Duration::from_secs(5);

/// The background thread and its runtime.
struct BackgroundRuntime {
    handle: Handle,
    thread: ThreadId,
}

/// Starts the thread on first use; `None` if the system cannot start a thread.
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

/// Runs a future on the background thread and blocks this thread until it is done. Returns `None` after `max_wait` plus
/// `MAX_STORE_WAIT`, and at once on the background thread itself, which would wait for itself.
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
        // The receiver is gone after a timeout.
        let _ = done.send(future.await);
    }));
    result.recv_timeout(max_wait.saturating_add(MAX_STORE_WAIT)).ok()
}

/// Runs a future on the runtime of this task, or otherwise on the background thread, because waiting needs a timer.
/// `None` if neither is available.
pub async fn run_in_runtime<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(_) => Some(future.await),
        Err(_) => AbortOnDrop(handle()?.spawn(future)).await,
    }
}

/// Runs a future to completion on the background thread, even if the caller is cancelled. `None` without that thread.
pub async fn run_to_completion<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    handle()?.spawn(future).await.ok()
}

/// Runs a future to completion even if the caller is cancelled: the store may have charged by then, and the charge must
/// be refundable. Uses the current runtime if there is one. `None` if the runtime ends.
pub(crate) async fn run_uncancelled<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn(future).await.ok(),
        Err(_) => Some(future.await),
    }
}

/// Spawns a future on the current runtime, or on the background thread; `None` if neither is available.
pub(crate) fn spawn_in_current(future: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
    match Handle::try_current() {
        Ok(runtime) => Some(runtime.spawn(future)),
        Err(_) => Some(handle()?.spawn(future)),
    }
}

/// Calls a function inside the background runtime, so that its tasks run there. `None` without that thread.
pub fn enter<R>(call: impl FnOnce() -> R) -> Option<R> {
    let _entered = handle()?.enter();
    Some(call())
}

/// Spawns a future on the background thread, without waiting for it.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if let Some(handle) = handle() {
        handle.spawn(future);
    }
}

/// A future on another runtime that is aborted on drop.
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

/// A store whose calls run on the background thread.
#[derive(Debug)]
pub struct BackgroundStore(pub Arc<dyn Store>);

impl Store for BackgroundStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let Some(handle) = handle() else {
            return Box::pin(async {
                Err(StoreError::Unavailable("cannot start the background thread".to_owned()))
            });
        };
        let reply = handle.spawn(self.0.execute(request));
        Box::pin(async {
            reply.await.unwrap_or_else(|_| Err(StoreError::Unavailable("call cancelled".to_owned())))
        })
    }

    fn overrides(&self, request: OverrideRequest) -> StoreFuture<Result<OverrideReply, StoreError>> {
        let Some(handle) = handle() else {
            return Box::pin(async {
                Err(StoreError::Unavailable("cannot start the background thread".to_owned()))
            });
        };
        let reply = handle.spawn(self.0.overrides(request));
        Box::pin(async {
            reply.await.unwrap_or_else(|_| Err(StoreError::Unavailable("call cancelled".to_owned())))
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
