//! Counters, denial records and bans of a gateway, for metrics, the admin API and the dashboard.
//!
//! ```
//! use tidegate_core::Micros;
//! use tidegate_limiter::Clock;
//! use tidegate_observe::{BanNote, BanTarget, Observer};
//! use tidegate_rule::Rules;
//!
//! let observer = Observer::new(Rules::new(), Clock::system());
//! let client = BanTarget::client("192.0.2.7".parse()?);
//! let note = BanNote { author: "ann".into(), reason: Some("scanner".to_owned()) };
//! assert!(observer.bans.ban(client, Micros::from_secs(600), note).is_ok());
//! assert!(observer.snapshot().is_none(), "no policy is in force yet");
//! # Ok::<(), std::net::AddrParseError>(())
//! ```
//!
//! ```text
//!   worker ─▶ Shard ─▶ PolicyCounters ────┐
//!   denied ─▶ RingBuffer<DenialRecord>    ├─▶ Observer ─▶ Snapshot ─▶ status, live, metrics
//!   gate, stores, servers ────────────────┘              └─▶ SeriesBuffer: the last hour
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`Observer`] | the counters, denials, history and bans of one gateway; it outlives policies |
//! | [`PolicyCounters`] | the counters of one policy, by thread |
//! | [`ConfigSnapshot`] | the configuration in force |
//! | [`Snapshot`] | all metrics and states at one time |
//! | [`DenialRecord`] | one denied request, with the reason and the quota |
//! | [`OperatorBans`] | the bans that operators made |
//!
//! It does not decide about requests, except for operator bans, and it does not serve HTTP.

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
mod recorded_cost;
mod recorder;
mod response_origin;
mod ring_buffer;
mod series;
mod shard;
mod snapshot;
mod status;
mod upstream;

pub use bans::{BanLimitReached, BanNote, BanTarget, OperatorBans};
pub use config_snapshot::{
    CacheCounts, CacheReporter, ConfigSnapshot, ListenerInfo, SpanReporter, policy_version, redact,
    summarize_rules,
};
pub use counters::{PolicyCounters, ResponseEnd, SAMPLE_INTERVAL, TopBy};
pub use denial::{DenialId, DenialRecord};
pub use history::HistoryEntry;
pub use json::{feature_json, quota_json};
pub use key_label::{KeyLabel, effective_key_display};
pub use latency::{LatencyBuckets, LatencyRecorder};
pub use live::{LiveEvent, LiveFeed, LiveSubscription};
pub use observer::Observer;
pub use recorded_cost::RecordedCost;
pub use recorder::RequestRecorder;
pub use response_origin::ResponseOrigin;
pub use shard::{RequestBodyOutcome, RuleOutcome, Sampled, SingleWriterCounter};
pub use snapshot::Snapshot;
pub use status::ChangeAccess;
pub use upstream::{HealthReport, ServerState, UpstreamReporter, UpstreamReports};
