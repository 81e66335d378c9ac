//! The properties of Tidegate, checked for every algorithm on random calls.
//!
//! | property | file |
//! |---|---|
//! | 1 deterministic, 4 a denial changes nothing, 5 two costs equal their sum | `counting.rs` |
//! | 2 never above the stated bound | `bounds.rs` |
//! | 3 exact retry times | `retry.rs` |
//! | 6 clocks that go back, 7 expiry of state | `time.rs` |
//! | 8 change of quota | `change.rs` |
//! | 9 refunds create nothing | `refund.rs` |
//! | 2 with overdrafts and forced charges | `overdraft.rs` |
//! | 2, 3 and 9 for permits that expire | `lease.rs` |
//! | 2 and 9 for quotas that never refill | `total.rs` |
//! | 2, 3, 7, 8 and 9 for buckets with initial tokens | `initial.rs` |

mod admissions;
mod bounds;
mod change;
mod counting;
mod initial;
mod lease;
mod overdraft;
mod refund;
mod retry;
mod time;
mod total;

use tidegate_core::{AlgorithmKind, Quota};

/// Guava's two algorithms, in which a call waits for earlier calls and never for itself.
fn is_smooth_rate(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_))
}

fn is_concurrency(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Concurrency(_))
}

/// Whether the phase of the windows depends on the first call.
fn starts_at_first_hit(quota: &Quota) -> bool {
    quota.to_string().ends_with("from-first-hit")
}
