//! What operators see of a gateway at work.
//!
//! ```text
//!   worker ─▶ Shard ─▶ Tally ─┐
//!   denied ─▶ Ring<Denial>    ├─▶ Observer ─▶ Snapshot ─▶ status, live, metrics
//!   gate, stores, servers ────┘
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`Observer`] | all that is seen of one gateway; it outlives policies |
//! | [`Tally`] | the counts of one policy, by thread |
//! | [`Scene`] | what is in force now |
//! | [`Snapshot`] | all numbers at one moment |
//! | [`Denial`] | why one request was denied |
//! | [`OperatorBans`] | who is banned by an operator |

mod bans;
mod denial;
mod history;
mod json;
mod live;
mod metrics;
mod observer;
#[cfg(feature = "otel")]
mod otlp;
mod recorder;
mod ring;
mod scene;
#[cfg(feature = "otel")]
mod sending;
mod shard;
mod snapshot;
mod status;
mod tally;
mod times;
#[cfg(not(feature = "otel"))]
mod unsent;
mod who;

pub(crate) use bans::{Banned, NoRoom, OperatorBans};
pub(crate) use denial::{Denial, DenialId};
pub(crate) use history::HistoryEntry;
pub(crate) use json::quota_json;
pub(crate) use live::{Event as LiveEvent, Live, Watching};
pub(crate) use observer::Observer;
pub(crate) use recorder::RequestRecorder;
pub(crate) use scene::{Listening, Scene, said, shown, version};
#[cfg(feature = "otel")]
pub(crate) use sending::Sending;
pub(crate) use shard::{Count, Outcome as Counted, Sampled};
pub(crate) use snapshot::Snapshot;
pub(crate) use status::Changes;
pub(crate) use tally::{SAMPLED, Tally, TopBy};
pub(crate) use times::{Times, TimesRecorder};
#[cfg(not(feature = "otel"))]
pub(crate) use unsent::Sending;
pub(crate) use who::{Who, shown_keys};
