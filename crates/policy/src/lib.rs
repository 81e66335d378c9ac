//! Policies: which requests are limited, by what, and what happens then, read from one file.
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
//! Nothing here waits, keeps a count or speaks to a network: a text becomes a [`Policy`], which can be
//! printed, looked through for mistakes, explained, and made into a gate of `tidegate-rule`.

pub mod compile;
mod credentials;
pub mod descriptors;
mod document;
pub mod edit;
mod explain;
mod file;
pub mod head;
pub mod index;
mod lint;
mod map_schema;
pub mod matching;
pub mod model;
mod print;
mod problem;
mod read;
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
