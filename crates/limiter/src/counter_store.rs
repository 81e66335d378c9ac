//! Plain integer counters in a store, which other programs can increment too.

use crate::store::{StoreError, StoreFuture};
use std::{fmt, time::Duration};

/// Holds plain integer counters under keys that other programs can share. It makes no decisions: the caller compares.
pub trait CounterStore: fmt::Debug + Send + Sync + 'static {
    /// Applies all increments in order and returns the new value of each counter. The increments are not atomic as a group.
    ///
    /// # Errors
    ///
    /// An error means that the result is unknown. Increments may have been applied, but never twice.
    fn add(&self, increments: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>>;

    /// Deletes these counters.
    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>>;
}

/// An increment of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Increment {
    /// The key of the counter, used verbatim.
    pub key: String,
    /// The amount to add; negative values subtract.
    pub count: i64,
    /// How long the counter lives from now on, in whole seconds.
    pub ttl: Duration,
}
