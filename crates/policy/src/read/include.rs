//! Several files as one.
//!
//! What a file includes is appended to it, in the order in which it is named. A file counts once, however often it is
//! included. What has a name, or can be said only once, is said in one of them.

use crate::source::{Fault, Files, Format, Name, Node, Sources, Span, Value, short};
use std::{
    collections::{HashMap, HashSet},
    path::{Component, Path, PathBuf},
};

/// Keys whose lists are appended to each other.
const LISTS: [&str; 4] = ["listen", "routes", "rules", "trusted-proxies"];

/// Keys whose names are put together.
const NAMED: [&str; 4] = ["upstreams", "stores", "lists", "templates"];

/// Whoever includes more than this includes by accident.
const MOST_FILES: usize = 64;

/// The tree of a file and of all that it includes.
pub(super) fn load(path: &Path, files: &dyn Files, sources: &mut Sources) -> Result<Node, Vec<Fault>> {
    let mut loader = Loader {
        files,
        sources,
        roots: Vec::new(),
        open: Vec::new(),
        seen: HashSet::new(),
        faults: Vec::new(),
    };
    loader.visit(path, None);
    let Loader { roots, faults, .. } = loader;
    match faults.is_empty() {
        true => merged(roots, sources),
        false => Err(faults),
    }
}

/// A text by itself has no place that others could be relative to.
pub(super) fn refuse(root: &Node) -> Result<(), Vec<Fault>> {
    let Value::Map(entries) = &root.value else { return Ok(()) };
    match entries.iter().find(|(name, _)| name.text == "include") {
        None => Ok(()),
        Some((name, _)) => {
            let fix = "read the policy from a file, or put everything into it";
            Err(vec![Fault::new(name.at, "a text that comes from no file includes none", fix)])
        }
    }
}

struct Loader<'a> {
    files: &'a dyn Files,
    sources: &'a mut Sources,
    roots: Vec<Node>,
    /// The files that include the one that is being read.
    open: Vec<PathBuf>,
    seen: HashSet<PathBuf>,
    faults: Vec<Fault>,
}

impl Loader<'_> {
    fn visit(&mut self, path: &Path, from: Option<Span>) {
        let path = plain(path);
        if let Some(at) = from.filter(|_| self.open.contains(&path)) {
            let problem = format!("`{}` includes itself", path.display());
            let problem = match self.open.last() {
                Some(last) if *last != path => format!("{problem}, through `{}`", last.display()),
                _ => problem,
            };
            self.faults.push(Fault::new(at, problem, "leave it out"));
            return;
        }
        if !self.seen.insert(path.clone()) {
            return;
        }
        if self.seen.len() > MOST_FILES {
            let at = from.unwrap_or(Span { file: 0, start: 0, end: 0 });
            self.faults.push(Fault::new(at, format!("more than {MOST_FILES} files"), "include fewer"));
            return;
        }
        let Some(root) = self.parse(&path, from) else { return };
        let includes = self.includes(&root);
        self.roots.push(root);
        self.open.push(path.clone());
        for (name, at) in includes {
            let folder = path.parent().unwrap_or(Path::new(""));
            self.visit(&folder.join(name), Some(at));
        }
        self.open.pop();
    }

    fn parse(&mut self, path: &Path, from: Option<Span>) -> Option<Node> {
        let read = match Format::of_path(path) {
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
                    self.faults.extend(faults);
                    None
                }
            },
            Err((problem, fix)) => {
                let at = from.unwrap_or_else(|| self.sources.unread(path));
                self.faults.push(Fault::new(at, problem, fix));
                None
            }
        }
    }

    /// The files that a file names.
    fn includes(&mut self, root: &Node) -> Vec<(String, Span)> {
        let Value::Map(entries) = &root.value else { return Vec::new() };
        let Some((_, node)) = entries.iter().find(|(name, _)| name.text == "include") else {
            return Vec::new();
        };
        let items = match &node.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let mut names = Vec::new();
        for item in items {
            match &item.value {
                Value::Text(name) if !name.trim().is_empty() => names.push((name.clone(), item.at)),
                _ => {
                    let problem = format!("the name of a file is needed here, not {}", item.kind());
                    self.faults.push(Fault::new(item.at, problem, "write it as in `more.yaml`"));
                }
            }
        }
        names
    }
}

/// All trees as one.
fn merged(roots: Vec<Node>, sources: &Sources) -> Result<Node, Vec<Fault>> {
    let mut roots = roots.into_iter();
    let Some(first) = roots.next() else { return Err(Vec::new()) };
    let at = first.at;
    let mut whole = Whole { entries: Vec::new(), index: HashMap::new(), sources, faults: Vec::new() };
    match first.value {
        Value::Map(entries) => whole.add_all(entries),
        Value::Null => {}
        value => return Ok(Node { value, at }),
    }
    for root in roots {
        match root.value {
            Value::Map(entries) => whole.add_all(entries),
            Value::Null => {}
            _ => {
                let problem = format!("a policy is a map, not {}", root.kind());
                whole.faults.push(Fault::new(
                    root.at,
                    problem,
                    "write a key and a value for each thing it says",
                ));
            }
        }
    }
    match whole.faults.is_empty() {
        true => Ok(Node { value: Value::Map(whole.entries), at }),
        false => Err(whole.faults),
    }
}

struct Whole<'a> {
    entries: Vec<(Name, Node)>,
    /// Where a key, or a name under it, stands among the entries.
    index: HashMap<(Option<&'static str>, String), (usize, Span)>,
    sources: &'a Sources,
    faults: Vec<Fault>,
}

impl Whole<'_> {
    fn add_all(&mut self, entries: Vec<(Name, Node)>) {
        for (name, node) in entries {
            // Nobody reads more than this, and to find the place of each takes its time.
            if self.faults.len() < MOST_FILES {
                self.add(name, node);
            }
        }
    }

    fn add(&mut self, name: Name, node: Node) {
        let section = NAMED.into_iter().find(|key| *key == name.text).filter(|_| node.value.is_map());
        let place = match self.index.get(&(None, name.text.clone())) {
            None => {
                let place = self.entries.len();
                self.index.insert((None, name.text.clone()), (place, name.at));
                let empty = match section {
                    None => node.clone(),
                    Some(_) => Node { value: Value::Map(Vec::new()), at: node.at },
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
            (Some(section), Value::Map(more)) if known.value.is_map() => self.add_names(place, section, more),
            (_, value) if LISTS.contains(&name.text.as_str()) => {
                let listed = |value: Value, at: Span| match value {
                    Value::List(items) => items,
                    value => vec![Node { value, at }],
                };
                let mut items = listed(std::mem::replace(&mut known.value, Value::Null), known.at);
                items.extend(listed(value, node.at));
                known.value = Value::List(items);
            }
            _ if name.text == "include" => {}
            _ => {
                let problem = format!("`{}` is said in two files", short(&name.text));
                self.blame(&(None, name.text), name.at, problem);
            }
        }
    }

    fn add_names(&mut self, place: usize, section: &'static str, more: Vec<(Name, Node)>) {
        for (name, node) in more {
            let key = (Some(section), name.text.clone());
            if self.index.contains_key(&key) {
                let problem = format!("`{}` is defined twice in `{section}`", short(&name.text));
                self.blame(&key, name.at, problem);
                continue;
            }
            self.index.insert(key, (place, name.at));
            if let Some((_, Node { value: Value::Map(names), .. })) = self.entries.get_mut(place) {
                names.push((name, node));
            }
        }
    }

    fn blame(&mut self, key: &(Option<&'static str>, String), at: Span, problem: String) {
        if self.faults.len() < MOST_FILES
            && let Some((_, first)) = self.index.get(key)
        {
            let fix = format!("leave one out; the first is at {}", self.sources.place(*first));
            self.faults.push(Fault::new(at, problem, fix));
        }
    }
}

/// A path without `.` and, where that can be told, without `..`: so that one file has one name.
fn plain(path: &Path) -> PathBuf {
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
