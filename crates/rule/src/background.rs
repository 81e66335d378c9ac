//! A thread that waits for stores on behalf of functions that cannot.

use std::{
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};
use tokio::runtime::{Builder, Handle};

/// A store answers within its deadline or not at all; this is only so that nothing can ever hang.
const LONGEST: Duration = Duration::from_secs(5);

/// The runtime of that thread, which is started when it is first needed; `None` if the machine has no thread to give.
pub(crate) fn handle() -> Option<&'static Handle> {
    static HANDLE: OnceLock<Option<Handle>> = OnceLock::new();
    HANDLE.get_or_init(start).as_ref()
}

fn start() -> Option<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("tidegate".to_owned()).spawn(run).ok()?;
    Some(handle)
}

/// Runs a future there and blocks this thread until it is done; `None` if that takes longer than `patience` and anything
/// a store may take.
pub(crate) fn block_on<F>(patience: Duration, future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (done, result) = mpsc::sync_channel(1);
    drop(handle()?.spawn(async move {
        // Nobody listens any more if it took too long.
        let _ = done.send(future.await);
    }));
    result.recv_timeout(patience.saturating_add(LONGEST)).ok()
}

/// Runs a future on this task's runtime, or on that thread if it has none: stores need a timer. `None` if there is neither.
pub(crate) async fn within_runtime<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(_) => Some(future.await),
        Err(_) => handle()?.spawn(future).await.ok(),
    }
}

/// Calls a function that may want to spawn, on this thread.
pub(crate) fn enter<R>(call: impl FnOnce() -> R) -> R {
    let _entered = match Handle::try_current() {
        Ok(_) => None,
        Err(_) => handle().map(Handle::enter),
    };
    call()
}

/// Calls a function whose tasks are to outlive the runtime of its caller; `None` if there is no thread for them.
pub(crate) fn enter_own<R>(call: impl FnOnce() -> R) -> Option<R> {
    let _entered = handle()?.enter();
    Some(call())
}
