//! Policies from the configuration of other programs: nginx.

mod nginx;

use std::{fmt, fs, io, path::Path};
use tidegate_policy::{DiskFiles, FileSource, Policy, PolicyFormat, Problems};

/// A policy that says what another program's configuration said, and what it does not say.
#[derive(Clone, Debug)]
pub struct ImportedPolicy {
    /// The policy. It can be put in force.
    pub policy: Policy,
    /// What was not carried over, or means something else, in the order of the files.
    pub losses: Vec<Loss>,
    source: String,
}

/// Something that was not carried over, or that means something else now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Whether something is less protected now.
    pub kind: LossKind,
    /// The name of the directive: `auth_basic`.
    pub directive: String,
    /// The file and the line: `nginx.conf:12`.
    pub location: String,
    /// What stands there.
    pub text: String,
    /// What became of it.
    pub reason: String,
}

/// What a loss means for the requests that a gateway lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// Requests that were kept away, limited or checked are not any longer: a policy like this should not be used before
    /// somebody has accepted that.
    Protection,
    /// Anything else.
    Cosmetic,
}

/// Gives files, and the names of those in a folder: `include conf.d/*.conf` asks for them.
pub trait FileTree: FileSource {
    /// The names in a folder, in any order.
    fn list_names(&self, folder: &Path) -> io::Result<Vec<String>>;
}

impl FileTree for DiskFiles {
    fn list_names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }
}

impl ImportedPolicy {
    /// What an `nginx.conf` and all that it includes say about limits, upstreams and where requests come in.
    ///
    /// An error tells what is wrong with the files themselves: nginx would not start with them either. Whatever nginx
    /// understands and a policy does not say is no error, but one of [`losses`](Self::losses). Those of
    /// [`LossKind::Protection`] have to be accepted before the policy is used.
    pub fn nginx(path: impl AsRef<Path>, files: &dyn FileTree) -> Result<Self, Problems> {
        nginx::import(path.as_ref(), files)
    }

    /// The policy as a text, with all losses on top where the language has comments.
    pub fn print(&self, format: PolicyFormat) -> String {
        let policy = self.policy.print(format);
        if format == PolicyFormat::Json {
            return policy;
        }
        let mut text = format!("# From {}.", to_one_line(&self.source));
        let mut start = " ";
        let parts = [
            (LossKind::Protection, "Protection that is lost:"),
            (LossKind::Cosmetic, "Not carried over, or different now:"),
        ];
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

    /// Losses of one kind, in the order of the files.
    pub fn losses_of(&self, kind: LossKind) -> impl Iterator<Item = &Loss> {
        self.losses.iter().filter(move |loss| loss.kind == kind)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.location, self.text, self.reason)
    }
}

/// What stands in a comment must not leave it.
fn to_one_line(text: &str) -> String {
    let plain = |c: char| match c {
        c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => ' ',
        c => c,
    };
    text.chars().map(plain).collect()
}
