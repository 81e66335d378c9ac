//! Policies: files that define which requests are limited, by which keys and quotas, and what happens over the limit.
//!
//! ```yaml
//! upstreams:
//!   app: http://127.0.0.1:9000
//! routes:
//!   - upstream: app
//! rules:
//!   - name: everybody
//!     key: ip
//!     quota: 100/min burst 20
//!   - name: login
//!     match: { method: POST, path: /login }
//!     key: ip
//!     quota: 5/min
//!     charge: { if-status: [401] }
//! ```
//!
//! A policy is parsed, checked for likely mistakes, and compiled to a gate:
//!
//! ```
//! use tidegate_policy::{Policy, compile::Compiler, lint};
//! use tidegate_rule::Rules;
//!
//! let policy: Policy = "rules: [{ name: login, match: { path: /login }, key: ip, quota: 5/min }]".parse()?;
//! assert!(lint(&policy).is_empty());
//! let gate = Compiler::new(Rules::new()).compile(&policy, None)?;
//! assert_eq!(gate.rule_names().collect::<Vec<_>>(), ["login"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | type | meaning |
//! |---|---|
//! | [`Policy`] | the content of a policy file, in YAML, TOML or JSON |
//! | [`Problems`] | the errors of a file, each with position and fix |
//! | [`Document`] | a policy with its source, for errors that are found after parsing |
//! | [`LintWarning`] | a likely mistake in a valid policy |
//! | [`compile::PolicyGate`] | a compiled policy, which is evaluated for every request |
//! | [`compile::LivePolicy`] | the current policy, which can be replaced at run time |
//! | [`overrides::OverrideRecord`] | a change of the quota of one key by an operator |
//! | [`Explanation`] | the predicted outcome of a request |
//! | [`edit::RuleEdit`] | a change of one value of a rule in its file |
//! | [`descriptors::DescriptorSet`] | the configuration of a rate limit service for Envoy |
//!
//! It does not
//!
//! * count requests: the gate uses the limiters of `tidegate-rule`,
//! * accept connections or forward requests,
//! * write policy files.

pub mod compile;
mod credentials;
pub mod descriptors;
mod document;
pub mod edit;
mod events;
mod explain;
mod file;
pub mod head;
pub mod index;
mod lint;
mod map_schema;
pub mod matching;
pub mod model;
pub mod overrides;
mod print;
mod problem;
mod read;
#[cfg(test)]
mod reference;
pub mod schema;
pub mod source;

pub use credentials::{is_credential, redact_credentials};
pub use document::{Diagnostic, Document};
pub use explain::{
    Applicability, AppliedRule, CounterLocation, ExhaustedOutcome, Explanation, ListMatch, PredictedOutcome,
    QuotaExplanation, ResolvedKey, RuleExplanation, explain, explain_request,
};
pub use file::{WatchedPolicyFile, poll_files};
pub use lint::{Lint, LintWarning, lint};
pub use model::Policy;
pub use problem::{Problem, Problems};
pub use read::{is_host, is_path, is_upstream_url};
pub use source::{DiskFiles, FileSource, PolicyFormat};
