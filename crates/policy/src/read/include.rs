//! Merges a policy file with the files that it includes.
//!
//! Included files are appended in the order of `include`. A file is read once, also if it is included several times. Named
//! items and scalar keys must be defined in only one of the files.

use super::key_hook::is_ignored;
use crate::source::{
    FileSource, PolicyFormat, SourceSpan, Sources, SpannedError, SyntaxKey, SyntaxNode, SyntaxValue, truncate,
};
use std::{
    collections::{HashMap, HashSet},
    path::{Component, Path, PathBuf},
};

/// Keys whose lists are appended to each other.
const APPENDED_KEYS: [&str; 4] = ["listen", "routes", "rules", "trusted-proxies"];

/// Keys whose maps are merged.
const MERGED_SECTIONS: [&str; 5] = ["upstreams", "stores", "features", "lists", "templates"];

/// The maximum number of files; more are an accident.
const MAX_FILES: usize = 64;

/// Reads a file and all included files, and merges their trees.
pub(super) fn load(
    path: &Path,
    files: &dyn FileSource,
    sources: &mut Sources,
) -> Result<SyntaxNode, Vec<SpannedError>> {
    let mut loader = IncludeLoader {
        files,
        sources,
        roots: Vec::new(),
        include_stack: Vec::new(),
        loaded: HashSet::new(),
        errors: Vec::new(),
    };
    loader.load_file(path, None);
    let IncludeLoader { roots, errors: faults, .. } = loader;
    match faults.is_empty() {
        true => merge_roots(roots, sources),
        false => Err(faults),
    }
}

/// Rejects `include` in a policy from a string, which has no directory that paths could be relative to.
pub(super) fn reject_include(root: &SyntaxNode) -> Result<(), Vec<SpannedError>> {
    let SyntaxValue::Map(entries) = &root.value else { return Ok(()) };
    match entries.iter().find(|(name, _)| name.text == "include") {
        None => Ok(()),
        Some((name, _)) => {
            let fix = "read the policy from a file, or remove `include`";
            Err(vec![SpannedError::new(name.span, "`include` in a policy that is not a file", fix)])
        }
    }
}

struct IncludeLoader<'a> {
    files: &'a dyn FileSource,
    sources: &'a mut Sources,
    roots: Vec<SyntaxNode>,
    /// The chain of files that include the current one.
    include_stack: Vec<PathBuf>,
    loaded: HashSet<PathBuf>,
    errors: Vec<SpannedError>,
}

impl IncludeLoader<'_> {
    fn load_file(&mut self, path: &Path, from: Option<SourceSpan>) {
        let path = normalize_path(path);
        if let Some(at) = from.filter(|_| self.include_stack.contains(&path)) {
            let problem = format!("`{}` includes itself", path.display());
            let problem = match self.include_stack.last() {
                Some(last) if *last != path => format!("{problem}, through `{}`", last.display()),
                _ => problem,
            };
            self.errors.push(SpannedError::new(at, problem, "remove it"));
            return;
        }
        if !self.loaded.insert(path.clone()) {
            return;
        }
        if self.loaded.len() > MAX_FILES {
            let at = from.unwrap_or(SourceSpan { file: 0, start: 0, end: 0 });
            self.errors.push(SpannedError::new(
                at,
                format!("more than {MAX_FILES} included files"),
                "include fewer",
            ));
            return;
        }
        let Some(root) = self.parse(&path, from) else { return };
        let includes = self.includes(&root);
        self.roots.push(root);
        self.include_stack.push(path.clone());
        for (name, at) in includes {
            let folder = path.parent().unwrap_or(Path::new(""));
            self.load_file(&folder.join(name), Some(at));
        }
        self.include_stack.pop();
    }

    fn parse(&mut self, path: &Path, from: Option<SourceSpan>) -> Option<SyntaxNode> {
        let read = match PolicyFormat::from_path(path) {
            None => Err((
                format!("unknown file format of `{}`", path.display()),
                "use the extension .yaml, .toml or .json",
            )),
            Some(format) => match self.files.read(path) {
                Ok(bytes) => Ok((bytes, format)),
                Err(error) => Err((
                    format!("cannot read `{}`: {error}", path.display()),
                    "check the path and its permissions",
                )),
            },
        };
        match read {
            Ok((bytes, format)) => match self.sources.parse(path, &bytes, format) {
                Ok(root) => Some(root),
                Err(faults) => {
                    self.errors.extend(faults);
                    None
                }
            },
            Err((problem, fix)) => {
                let at = from.unwrap_or_else(|| self.sources.add_unreadable(path));
                self.errors.push(SpannedError::new(at, problem, fix));
                None
            }
        }
    }

    /// Returns the paths in `include` of a file.
    fn includes(&mut self, root: &SyntaxNode) -> Vec<(String, SourceSpan)> {
        let SyntaxValue::Map(entries) = &root.value else { return Vec::new() };
        let Some((_, node)) =
            entries.iter().find(|(name, _)| name.text == "include" && !is_ignored("policy", "include"))
        else {
            return Vec::new();
        };
        let items = match &node.value {
            SyntaxValue::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let mut names = Vec::new();
        for item in items {
            match &item.value {
                SyntaxValue::Text(name) if !name.trim().is_empty() => names.push((name.clone(), item.span)),
                _ => {
                    let problem = format!("expected a file name, found {}", item.kind_name());
                    self.errors.push(SpannedError::new(
                        item.span,
                        problem,
                        "write a path, as in `more.yaml`",
                    ));
                }
            }
        }
        names
    }
}

/// Merges all trees into one.
fn merge_roots(roots: Vec<SyntaxNode>, sources: &Sources) -> Result<SyntaxNode, Vec<SpannedError>> {
    let mut roots = roots.into_iter();
    let Some(first) = roots.next() else { return Err(Vec::new()) };
    let at = first.span;
    let mut whole = MergedTree { entries: Vec::new(), index: HashMap::new(), sources, errors: Vec::new() };
    match first.value {
        SyntaxValue::Map(entries) => whole.add_entries(entries),
        SyntaxValue::Null => {}
        value => return Ok(SyntaxNode { value, span: at }),
    }
    for root in roots {
        match root.value {
            SyntaxValue::Map(entries) => whole.add_entries(entries),
            SyntaxValue::Null => {}
            _ => {
                let problem = format!("a policy must be a map, not {}", root.kind_name());
                whole.errors.push(SpannedError::new(root.span, problem, "write it as `key: value` pairs"));
            }
        }
    }
    match whole.errors.is_empty() {
        true => Ok(SyntaxNode { value: SyntaxValue::Map(whole.entries), span: at }),
        false => Err(whole.errors),
    }
}

struct MergedTree<'a> {
    entries: Vec<(SyntaxKey, SyntaxNode)>,
    /// The index in `entries` and the position of each key, and of each name in a merged section.
    index: HashMap<(Option<&'static str>, String), (usize, SourceSpan)>,
    sources: &'a Sources,
    errors: Vec<SpannedError>,
}

impl MergedTree<'_> {
    fn add_entries(&mut self, entries: Vec<(SyntaxKey, SyntaxNode)>) {
        for (name, node) in entries {
            // Bounds the work: finding the position of each error takes time.
            if self.errors.len() < MAX_FILES {
                self.add(name, node);
            }
        }
    }

    fn add(&mut self, name: SyntaxKey, node: SyntaxNode) {
        let section =
            MERGED_SECTIONS.into_iter().find(|key| *key == name.text).filter(|_| node.value.is_map());
        let position = match self.index.get(&(None, name.text.clone())) {
            None => {
                let position = self.entries.len();
                self.index.insert((None, name.text.clone()), (position, name.span));
                let empty = match section {
                    None => node.clone(),
                    Some(_) => SyntaxNode { value: SyntaxValue::Map(Vec::new()), span: node.span },
                };
                self.entries.push((name.clone(), empty));
                match section {
                    None => return,
                    Some(_) => position,
                }
            }
            Some((position, _)) => *position,
        };
        let Some((_, known)) = self.entries.get_mut(position) else { return };
        match (section, node.value) {
            (Some(section), SyntaxValue::Map(more)) if known.value.is_map() => {
                self.add_names(position, section, more);
            }
            (_, value) if APPENDED_KEYS.contains(&name.text.as_str()) => {
                let listed = |value: SyntaxValue, at: SourceSpan| match value {
                    SyntaxValue::List(items) => items,
                    value => vec![SyntaxNode { value, span: at }],
                };
                let mut items = listed(std::mem::replace(&mut known.value, SyntaxValue::Null), known.span);
                items.extend(listed(value, node.span));
                known.value = SyntaxValue::List(items);
            }
            _ if name.text == "include" => {}
            _ => {
                let problem = format!("duplicate key `{}` in two files", truncate(&name.text));
                self.report_duplicate(&(None, name.text), name.span, problem);
            }
        }
    }

    fn add_names(&mut self, position: usize, section: &'static str, more: Vec<(SyntaxKey, SyntaxNode)>) {
        for (name, node) in more {
            let key = (Some(section), name.text.clone());
            if self.index.contains_key(&key) {
                let problem = format!("duplicate name `{}` in `{section}`", truncate(&name.text));
                self.report_duplicate(&key, name.span, problem);
                continue;
            }
            self.index.insert(key, (position, name.span));
            if let Some((_, SyntaxNode { value: SyntaxValue::Map(names), .. })) =
                self.entries.get_mut(position)
            {
                names.push((name, node));
            }
        }
    }

    fn report_duplicate(&mut self, key: &(Option<&'static str>, String), at: SourceSpan, problem: String) {
        if self.errors.len() < MAX_FILES
            && let Some((_, first)) = self.index.get(key)
        {
            let fix = format!("remove one of them; the first is at {}", self.sources.location(*first));
            self.errors.push(SpannedError::new(at, problem, fix));
        }
    }
}

/// Removes `.` and, where possible, `..` from a path, so that each file has one name.
fn normalize_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            component => plain.push(component),
        }
    }
    plain
}
