//! From nginx: what its files say about limits, as a policy.
//!
//! ```text
//!   files ──lexer, include──▶ directives ──level, location──▶ servers with locations ──rules──▶ policy
//!                                              zones, variables ──┘        └──▶ losses
//! ```
//!
//! A zone becomes a rule for all locations that are limited by it alike: what one of them lets through, the others have to
//! count. How nginx counts is in `limit_req`'s own words: the queue of a leaky bucket, first come, first served.

mod access;
mod bodies;
mod condition;
mod include;
mod known;
mod level;
mod lexer;
mod listen;
mod location;
mod names;
mod numbers;
mod proxies;
mod region;
mod respond;
mod rules;
mod servers;
mod sites;
mod upstreams;
mod variables;
mod zones;

use crate::{Imported, Loss, LossKind, Tree};
use lexer::Directive;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
    sync::Arc,
};
use tidegate_policy::{
    Policy, PolicyFormat, Problems, compile,
    source::{SourceSpan, Sources, SpannedError, line_and_column, truncate},
};
use upstreams::Group;
use variables::{KeyPlan, Variables};
use zones::{ConnectionZone, RequestZone};

/// Reads a configuration.
pub(super) fn import(path: &Path, files: &dyn Tree) -> Result<Imported, Problems> {
    let mut sources = Sources::default();
    let (directives, missing) = match include::load(path, files, &mut sources) {
        Ok(loaded) => loaded,
        Err(fault) => return Err(Problems::from_errors(vec![fault], &sources)),
    };
    let mut importer = Importer::new(&sources, path.parent().unwrap_or(Path::new("")));
    for (include, kind) in &missing {
        importer.lose_as(
            *kind,
            include.at,
            "there is no such file; nothing that stands in it is carried over",
        );
    }
    importer.main(&directives);
    importer.check();
    let Importer { faults, mut losses, policy, .. } = importer;
    if !faults.is_empty() {
        return Err(Problems::from_errors(faults, &sources));
    }
    losses.sort_by_key(|(at, _)| *at);
    losses.dedup();
    let losses = losses.into_iter().map(|(_, loss)| loss).collect();
    Ok(Imported { policy, losses, source: path.display().to_string() })
}

/// A configuration that is being read.
struct Importer<'a> {
    sources: &'a Sources,
    folder: &'a Path,
    faults: Vec<SpannedError>,
    losses: Vec<(SourceSpan, Loss)>,
    /// What has been told once.
    told: BTreeSet<&'static str>,
    variables: Variables,
    /// What keys mean that have been asked for.
    plans: HashMap<String, Result<Arc<KeyPlan>, String>>,
    request_zones: BTreeMap<String, RequestZone>,
    connection_zones: BTreeMap<String, ConnectionZone>,
    groups: BTreeMap<String, Group>,
    rule_names: HashSet<String>,
    /// Zones that limit something, by where they stand.
    used_zones: HashSet<SourceSpan>,
    /// Whether `http` and `https` have to be told apart.
    needs_scheme: bool,
    left: Budget,
    policy: Policy,
}

/// How much of each is read yet: more is generated, and what is made of it would grow with the square of it.
struct Budget {
    servers: usize,
    names: usize,
    locations: usize,
    rules: usize,
}

const MOST: Budget = Budget { servers: 2_000, names: 10_000, locations: 5_000, rules: 1_000 };

impl<'a> Importer<'a> {
    fn new(sources: &'a Sources, folder: &'a Path) -> Self {
        Self {
            sources,
            folder,
            faults: Vec::new(),
            losses: Vec::new(),
            told: BTreeSet::new(),
            variables: Variables::default(),
            plans: HashMap::new(),
            request_zones: BTreeMap::new(),
            connection_zones: BTreeMap::new(),
            groups: BTreeMap::new(),
            rule_names: HashSet::new(),
            used_zones: HashSet::new(),
            needs_scheme: false,
            left: MOST,
            policy: Policy::default(),
        }
    }

    /// The whole of a configuration; a file of `conf.d` by itself is what stands in `http`.
    fn main(&mut self, directives: &[Directive]) {
        let has_http = directives.iter().any(|directive| directive.name == "http");
        let of_http = directives.iter().find(|directive| known::is_of_http(&directive.name));
        match (has_http, of_http) {
            (false, Some(_)) => return self.http(directives),
            (true, Some(stray)) => {
                let problem = format!("`{}` outside of `http`", stray.name);
                return self.blame(stray.at, problem, "put it into `http { … }`");
            }
            _ => {}
        }
        for directive in directives {
            match (directive.name.as_str(), &directive.block) {
                ("http", Some(block)) => self.http(block),
                _ => self.other(directive),
            }
        }
    }

    /// nginx would not start with this.
    fn blame(&mut self, at: SourceSpan, problem: impl Into<String>, fix: impl Into<String>) {
        self.faults.push(SpannedError::new(at, problem, fix));
    }

    /// This is not carried over, or means something else.
    fn lose(&mut self, directive: &Directive, reason: impl Into<String>) {
        self.lose_at(directive.at, reason);
    }

    /// The same of what keeps requests away.
    fn lose_protection(&mut self, directive: &Directive, reason: impl Into<String>) {
        self.lose_as(LossKind::Protection, directive.at, reason);
    }

    fn lose_at(&mut self, at: SourceSpan, reason: impl Into<String>) {
        self.lose_as(LossKind::Decoration, at, reason);
    }

    fn lose_as(&mut self, kind: LossKind, at: SourceSpan, reason: impl Into<String>) {
        let text = self.sources.file(at).and_then(|source| source.text.get(at.start..at.end));
        let words: Vec<_> = text.unwrap_or_default().split_whitespace().collect();
        let directive = words.first().map_or(String::new(), |name| truncate(name));
        let said = truncate(&words.join(" "));
        self.losses.push((at, Loss { kind, directive, place: self.line(at), said, reason: reason.into() }));
    }

    /// `nginx.conf:12`
    fn line(&self, at: SourceSpan) -> String {
        let Some(source) = self.sources.file(at) else { return String::new() };
        format!("{}:{}", source.path.display(), line_and_column(&source.text, at.start).0)
    }

    /// The same, where it is said again and again.
    fn lose_once(&mut self, directive: &Directive, reason: &'static str) {
        if self.told.insert(reason) {
            self.lose(directive, reason);
        }
    }

    /// What nobody here has a use for.
    fn other(&mut self, directive: &Directive) {
        if let Some((kind, reason)) = known::loss(directive) {
            self.lose_as(kind, directive.at, reason);
        }
    }

    /// A policy that cannot be read or used would be no help to anybody.
    fn check(&mut self) {
        if !self.faults.is_empty() {
            return;
        }
        // Its places are those of a text that nobody sees.
        let problem = match self.policy.print(PolicyFormat::Yaml).parse::<Policy>() {
            Ok(read) => compile::check(&read).err().map(|error| error.to_string()),
            Err(problems) => problems.iter().next().map(|first| first.problem().to_owned()),
        };
        if let Some(problem) = problem {
            let at = SourceSpan { file: 0, start: 0, end: 0 };
            let problem = format!("what it says makes no policy: {problem}");
            self.blame(at, problem, "import a part of it, and write the rest by hand");
        }
    }
}
