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
pub mod matching;
pub mod model;
mod print;
mod problem;
mod read;
pub mod schema;
pub mod source;
mod table;

pub use credentials::{is_credential, without_credentials};
pub use document::{Diagnostic, Document};
pub use explain::{
    Applied, Counted, Explained, Explanation, Finding, KeyFound, Listed, Predicted, Spent, SpentQuota,
    explain, explain_request,
};
pub use file::{PolicyFile, poll_files};
pub use lint::{Advice, Lint, lint};
pub use model::Policy;
pub use problem::{Problem, Problems};
pub use read::{is_host, is_path, is_upstream_url};
pub use source::{Disk, Files, Format};
