//! Limits with a name: declared in code, changed by configuration, asked for functions and for requests.
//!
//! ```
//! use tidegate_rule::{Declaration, Rules, Settings};
//!
//! # tokio::runtime::RedisServerBuilder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let rules = Rules::new();
//! let login = rules.rule(Declaration::of("login").quota("2/min")?)?;
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
//! | [`Queue`] | who may wait for their turn |
//! | [`Verdict`] | their decisions on one request |
//! | [`Answer`] | what to answer to whoever was refused |
//! | [`ProblemDetails`] | problem details (RFC 9457) of an error response |
//! | [`Fields`] | which header fields tell of quotas |
//! | [`surface`] | what else layers and middleware take, said without a wire |
//!
//! It knows no wire: layers and middleware translate. Only where a framework must be told by the type itself how to send
//! a [`Limited`] or an [`Answer`], a feature does that here: `http`, `axum`, `tonic`, `actix`.

mod answer;
mod declaration;
mod facts;
mod gate;
mod hold;
mod limited;
mod measured;
mod mode;
mod notice;
mod plan;
pub mod request;
mod rule;
mod rules;
mod settings;
pub mod site;
pub mod surface;
mod terms;
mod wire;

pub use answer::{Answer, Fields, ProblemDetails, ProblemMember};
pub use declaration::Declaration;
pub use facts::Facts;
pub use gate::{
    Charge, Evaluation, Gate, HeldSlots, KeyQueue, Labels, LimitDecision, LimitOutcome, Limits, Pending,
    PreparedCheck, Queue, RequestLimit, Run, Verdict, Waiting, add_wait, is_chosen, key_hash,
};
pub use hold::Hold;
pub use limited::{FromLimited, Limited};
pub use measured::StoreStatus;
pub use mode::Mode;
pub use plan::{Connect, Connection};
pub use rule::Rule;
pub use rules::Rules;
pub use settings::{RuleSettings, Settings, SettingsError, StoreAddress};
pub use tidegate_limiter::{KeyPair, LimitKey as RuleKey};
