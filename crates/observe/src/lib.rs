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
//! | [`PolicyCounters`] | the counts of one policy, by thread |
//! | [`ConfigSnapshot`] | what is in force now |
//! | [`Snapshot`] | all numbers at one moment |
//! | [`DenialRecord`] | why one request was denied |
//! | [`OperatorBans`] | who is banned by an operator |

mod bans;
mod config_snapshot;
mod counters;
mod denial;
mod history;
mod json;
mod key_label;
mod latency;
mod live;
mod metrics;
mod observer;
mod recorder;
mod response_origin;
mod ring_buffer;
mod shard;
mod snapshot;
mod status;
mod upstream;

pub use bans::{BanLimitReached, BanTarget, OperatorBans};
pub use config_snapshot::{ConfigSnapshot, ListenerInfo, policy_version, redact, summarize_rules};
pub use counters::{PolicyCounters, SAMPLE_INTERVAL, TopBy};
pub use denial::{DenialId, DenialRecord};
pub use history::HistoryEntry;
pub use json::quota_json;
pub use key_label::{KeyLabel, effective_key_display};
pub use latency::{LatencyBuckets, LatencyRecorder};
pub use live::{LiveEvent, LiveFeed, LiveSubscription};
pub use observer::Observer;
pub use recorder::RequestRecorder;
pub use response_origin::ResponseOrigin;
pub use shard::{RuleOutcome, Sampled, SingleWriterCounter};
pub use snapshot::Snapshot;
pub use status::ChangeAccess;
pub use upstream::{HealthReport, ServerState, UpstreamReporter, UpstreamReports};
