//! Named limits: declared in code, changed by configuration, checked for functions and for requests.
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
//! rules.apply(Settings::new().quota("login", "100/min")?)?;   // replaces the quota at run time
//! assert!(login.admit("alice", 1).await.is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`Rule`] | a named limit: its quotas, its mode and its store |
//! | [`Rules`] | all rules of a program and their settings |
//! | [`Settings`] | stores, modes, and the quotas that replace those in code |
//! | [`Limited`] | the error of a call that a rule rejected |
//! | [`RequestContext`] | context of the request that the current task serves |
//! | [`request`] | the framework-independent view of a request |
//! | [`body`] | values in the bodies of requests and responses |
//! | [`Gate`] | a set of limits on requests, evaluated together |
//! | [`LimitQueue`] | limits the number of waiting requests |
//! | [`Verdict`] | the decisions of a gate on one request |
//! | [`RejectionResponse`] | the response to a rejected request |
//! | [`ProblemDetails`] | problem details (RFC 9457) of an error response |
//! | [`HeaderStyle`] | which rate limit headers responses contain |
//! | [`middleware`] | framework-independent settings of other middleware |
//!
//! It does not
//!
//! - serve or parse HTTP: layers and middleware convert requests and responses. The features `http`, `axum`, `tonic` and
//!   `actix` only convert [`Limited`] and [`RejectionResponse`] into framework types;
//! - read policy files: `tidegate-policy` compiles them into [`Settings`];
//! - connect to stores: a [`ConnectStore`] function does.

pub mod body;
mod context;
mod events;
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

pub use context::RequestContext;
pub use gate::{
    BodyCost, ChargePolicy, Evaluation, Gate, KeyQueue, LimitDecision, LimitOutcome, LimitQueue,
    LimitSelection, PendingEvaluation, PolicyFields, PreparedCheck, QueueGuard, RejectionShape, RequestLimit,
    RequestPermits, ResponseValues, RunMode, SettledCost, StatedCost, Verdict, is_in_rollout, key_hash,
    measure_wait,
};
pub use limited::{FromLimited, Limited};
pub use metered_store::StoreStatus;
pub use mode::Mode;
pub use permit::RulePermit;
pub use rejection::{
    HeaderStyle, Hole, NumberForm, ProblemDetails, ProblemMember, RejectionNumbers, RejectionResponse,
    RejectionTemplate, SharedRejection,
};
pub use rule::Rule;
pub use rule_config::RuleConfig;
pub use rule_update::{ConnectStore, StoreConnection};
pub use rules::Rules;
pub use settings::{CallCheck, LoadScale, RuleSettings, Settings, SettingsError, StoreAddress};
pub use tidegate_limiter::{KeyPair, LimitKey as RuleKey};
