//! What was counted, and can still be given back.

use std::{sync::Arc, time::Duration};
use tidegate_limiter::{CombinedReservation, CounterStore, Increment, Reservation};

/// What was counted for one descriptor, and can still be given back.
#[derive(Debug)]
pub enum Hold {
    /// Nothing: it was not counted, or nobody knows.
    Nothing,
    /// By a limiter.
    Tokens(Reservation),
    /// In a number that others add to as well.
    Number { tally: Arc<dyn CounterStore>, key: String, kept: Duration, count: u64 },
}

/// What was counted for a whole request.
pub(crate) type Reserved = Vec<Hold>;

impl Hold {
    /// Slots are given back at once: nobody tells when a request ends.
    pub(crate) fn of(claim: CombinedReservation) -> Self {
        claim.into_parts().0.map_or(Self::Nothing, Self::Tokens)
    }

    /// Leaves it counted.
    pub(crate) fn keep(self) {
        if let Self::Tokens(tokens) = self {
            tokens.keep();
        }
    }

    /// Gives it back, and waits until it has been: whoever asks next must not be told of it.
    pub(crate) async fn give_back(self) {
        match self {
            Self::Nothing => {}
            Self::Tokens(tokens) => tokens.cancel().await,
            Self::Number { .. } => self.commit(0).await,
        }
    }

    /// Has it cost this instead.
    pub(crate) async fn commit(self, hits: u64) {
        match self {
            Self::Nothing => {}
            Self::Tokens(tokens) => tokens.commit(hits).await,
            Self::Number { tally, key, kept, count } => {
                let more = i64::try_from(i128::from(hits) - i128::from(count)).unwrap_or(i64::MAX);
                if more != 0 {
                    // What a store that is away could not be told stays as it was.
                    let _ = tally.add(vec![Increment { key, count: more, ttl: kept }]).await;
                }
            }
        }
    }
}
