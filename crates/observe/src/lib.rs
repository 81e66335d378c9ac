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

mod answered_by;
mod bans;
mod denial;
mod history;
mod json;
mod live;
mod metrics;
mod observer;
mod recorder;
mod ring;
mod scene;
mod shard;
mod snapshot;
mod status;
mod tally;
mod times;
mod upstream;
mod who;

pub use answered_by::AnsweredBy;
pub use bans::{Banned, NoRoom, OperatorBans};
pub use denial::{Denial, DenialId};
pub use history::HistoryEntry;
pub use json::quota_json;
pub use live::{Live, LiveEvent, Watching};
pub use observer::Observer;
pub use recorder::RequestRecorder;
pub use scene::{Listening, Scene, said, shown, version};
pub use shard::{Count, Outcome as Counted, Sampled};
pub use snapshot::Snapshot;
pub use status::Changes;
pub use tally::{SAMPLED, Tally, TopBy};
pub use times::{Times, TimesRecorder};
pub use upstream::{HealthReport, ReportUpstreams, ServerState, UpstreamReports};
pub use who::{Who, shown_keys};
