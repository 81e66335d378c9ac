//! Imports an nginx configuration as a policy.
//!
//! ```text
//!   files ──lexer, include──▶ directives ──level, location──▶ servers with locations ──rules──▶ policy
//!                                              zones, variables ──┘        └──▶ losses
//! ```
//!
//! A zone becomes one rule for all locations that use it with the same parameters, because they share its counter.
//! `limit_req` is a leaky bucket with a FIFO queue.

mod access;
mod body_size;
mod condition;
mod directives;
mod include;
mod level;
mod lexer;
mod listen;
mod location;
mod match_set;
mod names;
mod numbers;
mod proxies;
mod responses;
mod rules;
mod servers;
mod sites;
mod upstreams;
mod variables;
mod zones;

use crate::{FileTree, ImportedPolicy, Loss, LossKind};
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
use upstreams::UpstreamGroup;
use variables::{NginxVariables, ZoneKey};
use zones::{ConnectionZone, RequestZone};

/// Imports the configuration at `path`.
pub(super) fn import(path: &Path, files: &dyn FileTree) -> Result<ImportedPolicy, Problems> {
    let mut sources = Sources::default();
    let (directives, missing) = match include::load(path, files, &mut sources) {
        Ok(loaded) => loaded,
        Err(fault) => return Err(Problems::from_errors(vec![fault], &sources)),
    };
    let mut importer = Importer::new(&sources, path.parent().unwrap_or(Path::new("")));
    for (include, kind) in &missing {
        importer.record_loss_of_kind(*kind, include.span, "file not found; its directives are not imported");
    }
    importer.import_main(&directives);
    importer.check_policy();
    let Importer { faults, mut losses, policy, .. } = importer;
    if !faults.is_empty() {
        return Err(Problems::from_errors(faults, &sources));
    }
    losses.sort_by_key(|(at, _)| *at);
    losses.dedup();
    let losses = losses.into_iter().map(|(_, loss)| loss).collect();
    Ok(ImportedPolicy { policy, losses, source: path.display().to_string() })
}

/// The state of one import.
struct Importer<'a> {
    sources: &'a Sources,
    folder: &'a Path,
    faults: Vec<SpannedError>,
    losses: Vec<(SourceSpan, Loss)>,
    /// Reasons that are already reported and are reported only once.
    reported: BTreeSet<&'static str>,
    variables: NginxVariables,
    /// Cache of resolved zone keys.
    zone_keys: HashMap<String, Result<Arc<ZoneKey>, String>>,
    request_zones: BTreeMap<String, RequestZone>,
    connection_zones: BTreeMap<String, ConnectionZone>,
    upstream_groups: BTreeMap<String, UpstreamGroup>,
    rule_names: HashSet<String>,
    /// Zones that a `limit_req` or `limit_conn` uses, by their position.
    used_zones: HashSet<SourceSpan>,
    /// Whether the policy must distinguish `http` and `https` listeners.
    needs_scheme: bool,
    budget: ImportBudget,
    policy: Policy,
}

/// How many more items the import accepts. The output grows with the square of the input, and larger inputs are
/// generated ones.
struct ImportBudget {
    servers: usize,
    names: usize,
    locations: usize,
    rules: usize,
}

const MAX_BUDGET: ImportBudget =
    ImportBudget { servers: 2_000, names: 10_000, locations: 5_000, rules: 1_000 };

impl<'a> Importer<'a> {
    fn new(sources: &'a Sources, folder: &'a Path) -> Self {
        Self {
            sources,
            folder,
            faults: Vec::new(),
            losses: Vec::new(),
            reported: BTreeSet::new(),
            variables: NginxVariables::default(),
            zone_keys: HashMap::new(),
            request_zones: BTreeMap::new(),
            connection_zones: BTreeMap::new(),
            upstream_groups: BTreeMap::new(),
            rule_names: HashSet::new(),
            used_zones: HashSet::new(),
            needs_scheme: false,
            budget: MAX_BUDGET,
            policy: Policy::default(),
        }
    }

    /// Imports the top level. A file of `conf.d` alone is treated as the content of `http`.
    fn import_main(&mut self, directives: &[Directive]) {
        let has_http = directives.iter().any(|directive| directive.name == "http");
        let of_http = directives.iter().find(|directive| directives::is_http_directive(&directive.name));
        match (has_http, of_http) {
            (false, Some(_)) => return self.import_http(directives),
            (true, Some(stray)) => {
                let problem = format!("`{}` outside of `http`", stray.name);
                return self.report_error(stray.span, problem, "move it into `http { … }`");
            }
            _ => {}
        }
        for directive in directives {
            match (directive.name.as_str(), &directive.block) {
                ("http", Some(block)) => self.import_http(block),
                _ => self.record_unsupported(directive),
            }
        }
    }

    /// Reports an error with which nginx does not start.
    fn report_error(&mut self, at: SourceSpan, problem: impl Into<String>, fix: impl Into<String>) {
        self.faults.push(SpannedError::new(at, problem, fix));
    }

    /// Records a directive that is not imported or has a different effect.
    fn record_loss(&mut self, directive: &Directive, reason: impl Into<String>) {
        self.record_loss_at(directive.span, reason);
    }

    /// Records the loss of a directive that rejects, limits or checks requests.
    fn record_protection_loss(&mut self, directive: &Directive, reason: impl Into<String>) {
        self.record_loss_of_kind(LossKind::Protection, directive.span, reason);
    }

    fn record_loss_at(&mut self, at: SourceSpan, reason: impl Into<String>) {
        self.record_loss_of_kind(LossKind::Cosmetic, at, reason);
    }

    fn record_loss_of_kind(&mut self, kind: LossKind, at: SourceSpan, reason: impl Into<String>) {
        let text = self.sources.file(at).and_then(|source| source.text.get(at.start..at.end));
        let args: Vec<_> = text.unwrap_or_default().split_whitespace().collect();
        let directive = args.first().map_or(String::new(), |name| truncate(name));
        let excerpt = truncate(&args.join(" "));
        self.losses.push((
            at,
            Loss { kind, directive, location: self.source_line(at), text: excerpt, reason: reason.into() },
        ));
    }

    /// `nginx.conf:12`
    fn source_line(&self, at: SourceSpan) -> String {
        let Some(source) = self.sources.file(at) else { return String::new() };
        format!("{}:{}", source.path.display(), line_and_column(&source.text, at.start).0)
    }

    /// Records only the first loss with this reason.
    fn record_loss_once(&mut self, directive: &Directive, reason: &'static str) {
        if self.reported.insert(reason) {
            self.record_loss(directive, reason);
        }
    }

    /// Records the loss of a directive that the importer does not handle.
    fn record_unsupported(&mut self, directive: &Directive) {
        if let Some((kind, reason)) = directives::describe_loss(directive) {
            self.record_loss_of_kind(kind, directive.span, reason);
        }
    }

    /// Reports an error if the resulting policy cannot be parsed or compiled.
    fn check_policy(&mut self) {
        if !self.faults.is_empty() {
            return;
        }
        // The positions refer to the printed policy, which the user does not see, so only the problem is reported.
        let problem = match self.policy.print(PolicyFormat::Yaml).parse::<Policy>() {
            Ok(read) => compile::check(&read).err().map(|error| error.to_string()),
            Err(problems) => problems.iter().next().map(|first| first.problem().to_owned()),
        };
        if let Some(problem) = problem {
            let at = SourceSpan { file: 0, start: 0, end: 0 };
            let problem = format!("the resulting policy is invalid: {problem}");
            let fix = "import a part of the configuration and write the remaining policy manually";
            self.report_error(at, problem, fix);
        }
    }
}
