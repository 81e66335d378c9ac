//! What was counted, and can still be given back.

use std::{sync::Arc, time::Duration};
use tidegate_limiter::{CombinedReservation, CounterStore, Increment, Reservation};

/// What was counted for one descriptor, and can still be given back.
#[derive(Debug)]
pub enum CountReservation {
    /// Nothing: it was not counted, or nobody knows.
    None,
    /// By a limiter.
    Tokens(Reservation),
    /// In a number that others add to as well.
    Counter { store: Arc<dyn CounterStore>, key: String, ttl: Duration, count: u64 },
}

/// What was counted for a whole request.
pub(crate) type CountReservations = Vec<CountReservation>;

impl CountReservation {
    /// Slots are given back at once: nobody tells when a request ends.
    pub(crate) fn from_claim(claim: CombinedReservation) -> Self {
        claim.into_parts().0.map_or(Self::None, Self::Tokens)
    }

    /// Leaves it counted.
    pub(crate) fn keep(self) {
        if let Self::Tokens(tokens) = self {
            tokens.keep();
        }
    }

    /// Gives it back, and waits until it has been: whoever asks next must not be told of it.
    pub(crate) async fn cancel(self) {
        match self {
            Self::None => {}
            Self::Tokens(tokens) => tokens.cancel().await,
            Self::Counter { .. } => self.commit(0).await,
        }
    }

    /// Has it cost this instead.
    pub(crate) async fn commit(self, hits: u64) {
        match self {
            Self::None => {}
            Self::Tokens(tokens) => tokens.commit(hits).await,
            Self::Counter { store: tally, key, ttl: kept, count } => {
                let delta = i64::try_from(i128::from(hits) - i128::from(count)).unwrap_or(i64::MAX);
                if delta != 0 {
                    // What a store that is away could not be told stays as it was.
                    let _ = tally.add(vec![Increment { key, count: delta, ttl: kept }]).await;
                }
            }
        }
    }
}
