//! Several files as one.
//!
//! What a file includes is appended to it, in the order in which it is named. A file counts once, however often it is
//! included. What has a name, or can be said only once, is said in one of them.

use crate::source::{
    FileSource, PolicyFormat, SourceSpan, Sources, SpannedError, SyntaxKey, SyntaxNode, SyntaxValue, truncate,
};
use std::{
    collections::{HashMap, HashSet},
    path::{Component, Path, PathBuf},
};

/// Keys whose lists are appended to each other.
const APPENDED_KEYS: [&str; 4] = ["listen", "routes", "rules", "trusted-proxies"];

/// Keys whose names are put together.
const MERGED_SECTIONS: [&str; 4] = ["upstreams", "stores", "lists", "templates"];

/// Whoever includes more than this includes by accident.
const MAX_FILES: usize = 64;

/// The tree of a file and of all that it includes.
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

/// A text by itself has no place that others could be relative to.
pub(super) fn reject_include(root: &SyntaxNode) -> Result<(), Vec<SpannedError>> {
    let SyntaxValue::Map(entries) = &root.value else { return Ok(()) };
    match entries.iter().find(|(name, _)| name.text == "include") {
        None => Ok(()),
        Some((name, _)) => {
            let fix = "read the policy from a file, or put everything into it";
            Err(vec![SpannedError::new(name.span, "a text that comes from no file includes none", fix)])
        }
    }
}

struct IncludeLoader<'a> {
    files: &'a dyn FileSource,
    sources: &'a mut Sources,
    roots: Vec<SyntaxNode>,
    /// The files that include the one that is being read.
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
            self.errors.push(SpannedError::new(at, problem, "leave it out"));
            return;
        }
        if !self.loaded.insert(path.clone()) {
            return;
        }
        if self.loaded.len() > MAX_FILES {
            let at = from.unwrap_or(SourceSpan { file: 0, start: 0, end: 0 });
            self.errors.push(SpannedError::new(at, format!("more than {MAX_FILES} files"), "include fewer"));
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
                format!("`{}` is neither YAML nor TOML nor JSON", path.display()),
                "give it a name that ends with .yaml, .toml or .json",
            )),
            Some(format) => match self.files.read(path) {
                Ok(bytes) => Ok((bytes, format)),
                Err(error) => Err((
                    format!("`{}` cannot be read: {error}", path.display()),
                    "name a file that is there and may be read",
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

    /// The files that a file names.
    fn includes(&mut self, root: &SyntaxNode) -> Vec<(String, SourceSpan)> {
        let SyntaxValue::Map(entries) = &root.value else { return Vec::new() };
        let Some((_, node)) = entries.iter().find(|(name, _)| name.text == "include") else {
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
                    let problem = format!("the name of a file is needed here, not {}", item.kind_name());
                    self.errors.push(SpannedError::new(item.span, problem, "write it as in `more.yaml`"));
                }
            }
        }
        names
    }
}

/// All trees as one.
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
                let problem = format!("a policy is a map, not {}", root.kind_name());
                whole.errors.push(SpannedError::new(
                    root.span,
                    problem,
                    "write a key and a value for each thing it says",
                ));
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
    /// Where a key, or a name under it, stands among the entries.
    index: HashMap<(Option<&'static str>, String), (usize, SourceSpan)>,
    sources: &'a Sources,
    errors: Vec<SpannedError>,
}

impl MergedTree<'_> {
    fn add_entries(&mut self, entries: Vec<(SyntaxKey, SyntaxNode)>) {
        for (name, node) in entries {
            // Nobody reads more than this, and to find the place of each takes its time.
            if self.errors.len() < MAX_FILES {
                self.add(name, node);
            }
        }
    }

    fn add(&mut self, name: SyntaxKey, node: SyntaxNode) {
        let section =
            MERGED_SECTIONS.into_iter().find(|key| *key == name.text).filter(|_| node.value.is_map());
        let place = match self.index.get(&(None, name.text.clone())) {
            None => {
                let place = self.entries.len();
                self.index.insert((None, name.text.clone()), (place, name.span));
                let empty = match section {
                    None => node.clone(),
                    Some(_) => SyntaxNode { value: SyntaxValue::Map(Vec::new()), span: node.span },
                };
                self.entries.push((name.clone(), empty));
                match section {
                    None => return,
                    Some(_) => place,
                }
            }
            Some((place, _)) => *place,
        };
        let Some((_, known)) = self.entries.get_mut(place) else { return };
        match (section, node.value) {
            (Some(section), SyntaxValue::Map(more)) if known.value.is_map() => {
                self.add_names(place, section, more);
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
                let problem = format!("`{}` is said in two files", truncate(&name.text));
                self.report_duplicate(&(None, name.text), name.span, problem);
            }
        }
    }

    fn add_names(&mut self, place: usize, section: &'static str, more: Vec<(SyntaxKey, SyntaxNode)>) {
        for (name, node) in more {
            let key = (Some(section), name.text.clone());
            if self.index.contains_key(&key) {
                let problem = format!("`{}` is defined twice in `{section}`", truncate(&name.text));
                self.report_duplicate(&key, name.span, problem);
                continue;
            }
            self.index.insert(key, (place, name.span));
            if let Some((_, SyntaxNode { value: SyntaxValue::Map(names), .. })) = self.entries.get_mut(place)
            {
                names.push((name, node));
            }
        }
    }

    fn report_duplicate(&mut self, key: &(Option<&'static str>, String), at: SourceSpan, problem: String) {
        if self.errors.len() < MAX_FILES
            && let Some((_, first)) = self.index.get(key)
        {
            let fix = format!("leave one out; the first is at {}", self.sources.location(*first));
            self.errors.push(SpannedError::new(at, problem, fix));
        }
    }
}

/// A path without `.` and, where that can be told, without `..`: so that one file has one name.
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
