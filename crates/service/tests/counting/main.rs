//! Stories of the decision service: what is counted, what is said, and what is told to operators.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod crowd;
mod day;
mod outage;
mod reference;
mod reload;
mod settle;
mod shared;
mod stage;
mod tables;
mod told;
