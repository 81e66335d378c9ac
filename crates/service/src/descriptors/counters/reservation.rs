//! Counted hits that can still be refunded.

use std::{sync::Arc, time::Duration};
use tidegate_limiter::{CombinedReservation, CounterStore, Increment, Reservation};

/// The counted hits of one descriptor, which can still be refunded.
#[derive(Debug)]
pub enum CountReservation {
    /// Nothing was counted, or the store did not confirm it.
    None,
    /// Tokens of a limiter.
    Tokens(Reservation),
    /// Hits in a counter that other processes increment too.
    Counter { store: Arc<dyn CounterStore>, key: String, ttl: Duration, count: u64 },
}

/// The counted hits of a whole request.
pub(crate) type CountReservations = Vec<CountReservation>;

impl CountReservation {
    /// Keeps the tokens and releases slots at once, since the client does not report the end of a request.
    pub(crate) fn from_claim(claim: CombinedReservation) -> Self {
        claim.into_parts().0.map_or(Self::None, Self::Tokens)
    }

    /// Keeps the hits counted.
    pub(crate) fn keep(self) {
        if let Self::Tokens(tokens) = self {
            tokens.keep();
        }
    }

    /// Refunds the hits and waits for the store, so that the next request does not see them.
    pub(crate) async fn cancel(self) {
        match self {
            Self::None => {}
            Self::Tokens(tokens) => tokens.cancel().await,
            Self::Counter { .. } => self.commit(0).await,
        }
    }

    /// Charges the actual number of hits instead.
    pub(crate) async fn commit(self, hits: u64) {
        match self {
            Self::None => {}
            Self::Tokens(tokens) => tokens.commit(hits).await,
            Self::Counter { store, key, ttl, count } => {
                let delta = i64::try_from(i128::from(hits) - i128::from(count)).unwrap_or(i64::MAX);
                if delta != 0 {
                    // If the store is unavailable, the counter keeps its value.
                    let _ = store.add(vec![Increment { key, count: delta, ttl }]).await;
                }
            }
        }
    }
}
