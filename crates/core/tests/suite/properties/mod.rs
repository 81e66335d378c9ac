//! The laws of Tidegate, held against every algorithm on random stories.
//!
//! | law | file |
//! |---|---|
//! | 1 deterministic, 4 a denial changes nothing, 5 parts and sums, taking all | `counting.rs` |
//! | 2 never above the stated bound | `bounds.rs` |
//! | 3 honest retry | `retry.rs` |
//! | 6 time running backwards, 7 forgetting | `time.rs` |
//! | 8 change of quota | `change.rs` |
//! | 9 refunds create nothing | `refund.rs` |
//! | 2 on credit and by force | `overdraft.rs` |
//! | 2, 3 and 9 for permits that expire | `lease.rs` |

mod admissions;
mod bounds;
mod change;
mod counting;
mod lease;
mod overdraft;
mod refund;
mod retry;
mod time;

use tidegate_core::{AlgorithmKind, Quota};

/// Guava's two, whose callers pay for those before them and never for themselves.
fn is_shaper(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_))
}

fn is_concurrency(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Concurrency(_))
}

/// Windows whose phase depends on who came first.
fn starts_at_first_hit(quota: &Quota) -> bool {
    quota.to_string().ends_with("from-first-hit")
}
