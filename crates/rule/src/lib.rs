//! Limits with a name: declared in code, changed by configuration, asked for functions and for requests.
//!
//! ```
//! use tidegate_rule::{RuleConfig, Rules, Settings};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let rules = Rules::new();
//! let login = rules.declare(RuleConfig::new("login").quota("2/min")?)?;
//! assert!(login.admit("alice", 2).await.is_ok());
//! let limited = login.admit("alice", 1).await.unwrap_err();
//! assert_eq!(limited.rule(), "login");
//!
//! rules.apply(Settings::new().quota("login", "100/min")?)?;   // replaces the quota, without a build
//! assert!(login.admit("alice", 1).await.is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`Rule`] | a limit with a name: its quotas, whether it is enforced, where it is counted |
//! | [`Rules`] | all rules of a program, and the settings that they follow |
//! | [`Settings`] | where state lives, which rules are enforced, and the quotas that replace those in code |
//! | [`Limited`] | the error of a call that a rule refused |
//! | [`Facts`] | what is known of the request that this task serves |
//! | [`request`] | a request as rules see it, whatever wire it came by |
//! | [`Gate`] | rules for requests, evaluated together |
//! | [`LimitQueue`] | who may wait for their turn |
//! | [`Verdict`] | their decisions on one request |
//! | [`RejectionResponse`] | what to answer to whoever was refused |
//! | [`ProblemDetails`] | problem details (RFC 9457) of an error response |
//! | [`HeaderStyle`] | which header fields tell of quotas |
//! | [`middleware`] | what else layers and middleware take, said without a wire |
//!
//! It knows no wire: layers and middleware translate. Only where a framework must be told by the type itself how to send
//! a [`Limited`] or an [`RejectionResponse`], a feature does that here: `http`, `axum`, `tonic`, `actix`.

mod facts;
mod gate;
mod integrations;
mod limited;
mod metered_store;
pub mod middleware;
mod mode;
mod notice;
mod permit;
mod rejection;
pub mod request;
mod rule;
mod rule_config;
mod rule_state;
mod rule_update;
mod rules;
mod settings;
pub mod site;

pub use facts::Facts;
pub use gate::{
    ChargePolicy, Evaluation, Gate, KeyQueue, LimitDecision, LimitOutcome, LimitQueue, LimitSelection,
    PendingEvaluation, PolicyFields, PreparedCheck, QueueGuard, RequestLimit, RequestPermits, RunMode,
    Verdict, is_in_rollout, key_hash, measure_wait,
};
pub use limited::{FromLimited, Limited};
pub use metered_store::StoreStatus;
pub use mode::Mode;
pub use permit::RulePermit;
pub use rejection::{HeaderStyle, ProblemDetails, ProblemMember, RejectionResponse};
pub use rule::Rule;
pub use rule_config::RuleConfig;
pub use rule_update::{ConnectStore, StoreConnection};
pub use rules::Rules;
pub use settings::{RuleSettings, Settings, SettingsError, StoreAddress};
pub use tidegate_limiter::{KeyPair, LimitKey as RuleKey};
