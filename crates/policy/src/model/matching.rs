//! Which requests.

use super::Expression;
use std::collections::BTreeMap;
use tidegate_access::Prefix;

/// `match`: which requests a rule or a route is about; all that is said must hold.
///
/// ```yaml
/// match:
///   method: [GET, HEAD]                # one of these
///   path: /users/{id}/**               # * is within one segment, {id} is one, ** is any number of them at the end
///   host: "*.example.com"
///   header: { x-plan: free }           # a value, with * for any text; "*" alone: it is there
///   query: { debug: "*" }
///   cookie: { session: "*" }
///   client: [10.0.0.0/8, office]       # networks, or names of lists
///   listener: internal                 # the name of the listener that it came in through
///   not: { path: /users/me/** }        # and nothing of this
///   any: [{ path: /a }, { host: b.example.com }]    # and one of these
///   when: request.size > 1000          # CEL, for the rest
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    /// `method`: one of these, in upper case; empty: any.
    pub methods: Vec<String>,
    /// `path`: one of these; empty: any.
    pub paths: Vec<PathPattern>,
    /// `host`: one of these, in lower case, without a port; empty: any.
    pub hosts: Vec<Glob>,
    /// `header`: all of these, by names in lower case.
    pub headers: BTreeMap<String, ValueGlobs>,
    /// `query`: all of these.
    pub queries: BTreeMap<String, ValueGlobs>,
    /// `cookie`: all of these.
    pub cookies: BTreeMap<String, ValueGlobs>,
    /// `client`: from one of these; empty: from anywhere.
    pub clients: Vec<Network>,
    /// `listener`: came in through one of these; empty: any.
    pub listeners: Vec<String>,
    /// `not`: none of which this holds.
    pub not: Option<Box<Self>>,
    /// `any`: of which one of these holds; empty: any.
    pub any: Vec<Self>,
    /// `when`: of which this is true.
    pub when: Option<Expression>,
}

/// One of these values, with `*` for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueGlobs(pub Vec<Glob>);

/// A text with `*` for any text in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(pub String);

/// A network, or the name of a list; `all` is the list of all addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// These addresses.
    Prefix(Prefix),
    /// Those of a list.
    List(String),
}

/// A path, segment by segment: `/users/{id}/photos/*.jpg`, `/static/**`.
///
/// In the spelling in which paths are compared: escapes are undone, no segment is empty; `/` has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// The segments, without what stands for the rest.
    pub segments: Vec<Segment>,
    /// Whether anything may follow: `/**` at the end, which also fits where nothing does.
    pub tail: Option<PathTail>,
}

/// What stands for the rest of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathTail {
    /// `**`
    Any,
    /// `{name**}`: the same, with a name.
    Capture(String),
}

/// What stands between two slashes of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Exactly this.
    Text(String),
    /// This, with `*` for any text; `*` alone is a segment that is not empty.
    Glob(Glob),
    /// `{name}`: one that is not empty, and has a name.
    Capture(String),
}
