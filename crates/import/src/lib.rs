//! Imports nginx configuration as a Tidegate policy.
//!
//! ```
//! use tidegate_import::{ImportedPolicy, LossKind};
//! use tidegate_policy::DiskFiles;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::env::temp_dir().join(format!("tidegate-import-{}.conf", std::process::id()));
//! let zone = "limit_req_zone $binary_remote_addr zone=one:1m rate=10r/s;";
//! std::fs::write(&path, format!("{zone} server {{ limit_req zone=one; gzip on; }}"))?;
//!
//! let imported = ImportedPolicy::nginx(&path, &DiskFiles)?;
//! assert_eq!(imported.policy.rules[0].name, "one");
//! assert_eq!(imported.losses[0].directive, "gzip");
//! assert_eq!(imported.losses_of(LossKind::Protection).count(), 0);
//! # std::fs::remove_file(path)?;
//! # Ok(())
//! # }
//! ```
//!
//! | item | meaning |
//! |---|---|
//! | [`ImportedPolicy`] | the policy and the losses of an import |
//! | [`Loss`] | a directive that is not imported, or that has a different effect |
//! | [`LossKind`] | whether a loss reduces protection |
//! | [`FileTree`] | reads files and lists directories, for `include` |
//!
//! It does not start nginx, change the configuration, or import `stream` and `mail`.

mod nginx;

use std::{fmt, fs, io, path::Path};
use tidegate_policy::{DiskFiles, FileSource, Policy, PolicyFormat, Problems};

/// A policy made from the configuration of another program, with the list of losses.
#[derive(Clone, Debug)]
pub struct ImportedPolicy {
    /// The policy. It is valid and compiles.
    pub policy: Policy,
    /// Directives that are not imported or have a different effect, in file order.
    pub losses: Vec<Loss>,
    source: String,
}

/// A directive that is not imported, or that has a different effect in the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Whether the loss reduces protection.
    pub kind: LossKind,
    /// The name of the directive: `auth_basic`.
    pub directive: String,
    /// The file and the line: `nginx.conf:12`.
    pub location: String,
    /// The text of the directive.
    pub text: String,
    /// Why the directive is not imported, or how its effect differs.
    pub reason: String,
}

/// Whether a loss changes which requests the gateway admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// Requests that nginx rejects, limits or checks are no longer rejected, limited or checked. An operator must accept
    /// the loss before the policy is used.
    Protection,
    /// Anything else.
    Cosmetic,
}

/// Reads files and lists folders, which `include conf.d/*.conf` needs.
pub trait FileTree: FileSource {
    /// Returns the names in a folder, in any order.
    fn list_names(&self, folder: &Path) -> io::Result<Vec<String>>;
}

impl FileTree for DiskFiles {
    fn list_names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }
}

impl ImportedPolicy {
    /// Imports the limits, upstreams, routes and listeners of an `nginx.conf` and of the files that it includes.
    ///
    /// A valid directive that a policy cannot express is not an error; it is listed in [`losses`](Self::losses). An
    /// operator must accept losses of [`LossKind::Protection`] before the policy is used.
    ///
    /// # Errors
    ///
    /// Returns the problems of a configuration that nginx would reject, too.
    pub fn nginx(path: impl AsRef<Path>, files: &dyn FileTree) -> Result<Self, Problems> {
        nginx::import(path.as_ref(), files)
    }

    /// Prints the policy, with all losses as leading comments in formats that have comments.
    pub fn print(&self, format: PolicyFormat) -> String {
        let policy = self.policy.print(format);
        if format == PolicyFormat::Json {
            return policy;
        }
        let mut text = format!("# From {}.", to_one_line(&self.source));
        let mut start = " ";
        let parts =
            [(LossKind::Protection, "Lost protection:"), (LossKind::Cosmetic, "Not imported, or different:")];
        for (kind, head) in parts {
            let mut losses = self.losses_of(kind).peekable();
            if losses.peek().is_none() {
                continue;
            }
            text.extend([start, head, "\n"]);
            for loss in losses {
                text.extend(["#   ", &to_one_line(&loss.to_string()), "\n"]);
            }
            start = "# ";
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text + &policy
    }

    /// Returns the losses of one kind, in file order.
    pub fn losses_of(&self, kind: LossKind) -> impl Iterator<Item = &Loss> {
        self.losses.iter().filter(move |loss| loss.kind == kind)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.location, self.text, self.reason)
    }
}

/// Replaces line breaks and control characters, so that the text cannot end a comment.
fn to_one_line(text: &str) -> String {
    let plain = |c: char| match c {
        c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => ' ',
        c => c,
    };
    text.chars().map(plain).collect()
}
