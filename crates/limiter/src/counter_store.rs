//! Plain numbers in a store, which programs of others add to as well.

use crate::store::{StoreError, StoreFuture};
use std::{fmt, time::Duration};

/// Keeps plain numbers under keys that are not ours alone. It decides nothing: whoever adds compares.
pub trait CounterStore: fmt::Debug + Send + Sync + 'static {
    /// Does all additions in their order, and says what each number is then. Each stands for itself: there is no moment at
    /// which all are done and nothing else is.
    ///
    /// An error means that the answer is not known; additions may have been done nevertheless, but never twice.
    fn add(&self, increments: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>>;

    /// Forgets these numbers.
    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>>;
}

/// What is added to one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Increment {
    /// Under which key it is, letter by letter.
    pub key: String,
    /// How many; fewer than none are taken away.
    pub count: i64,
    /// How long the number is kept from now on, in whole seconds.
    pub ttl: Duration,
}
