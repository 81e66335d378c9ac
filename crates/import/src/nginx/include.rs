//! Expands `include` into one list of directives.
//!
//! The directives of an included file replace the `include`. Names are relative to the folder of the first file. `*`, `?`
//! and `[a-z]` match zero or more files, in the order of their names.

use super::lexer::{self, Directive, MAX_NESTING};
use crate::{FileTree, LossKind};
use std::{
    io::ErrorKind,
    path::{Component, Path, PathBuf},
};
use tidegate_policy::source::{SourceSpan, Sources, SpannedError};

/// The maximum number of included files. More are a mistake, such as files that include each other many times.
const MAX_INCLUDES: usize = 1_000;
/// The maximum total size of the included files.
const MAX_INCLUDE_BYTES: usize = 16 * 1024 * 1024;

/// Loads all directives of a file and of the files that it includes.
pub(super) fn load(
    path: &Path,
    files: &dyn FileTree,
    sources: &mut Sources,
) -> Result<LoadedDirectives, SpannedError> {
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut loader = NginxIncludeLoader {
        files,
        sources,
        folder,
        open_files: Vec::new(),
        depth: 0,
        files_read: 0,
        bytes_read: 0,
        missing: Vec::new(),
    };
    let directives = loader.load_file(path, None)?;
    Ok((directives, loader.missing))
}

/// All directives, and each `include` of a missing file with the kind of its loss.
pub(super) type LoadedDirectives = (Vec<Directive>, Vec<(Directive, LossKind)>);

/// Files of the nginx packages that contain no access control. Other files may contain any directive.
const COSMETIC_FILES: [&str; 10] = [
    "mime.types",
    "fastcgi_params",
    "fastcgi.conf",
    "uwsgi_params",
    "scgi_params",
    "proxy_params",
    "koi-utf",
    "koi-win",
    "win-utf",
    "options-ssl-nginx.conf",
];

struct NginxIncludeLoader<'a> {
    files: &'a dyn FileTree,
    sources: &'a mut Sources,
    folder: PathBuf,
    /// The chain of files that include the current one.
    open_files: Vec<PathBuf>,
    /// The number of blocks and files around the current directive.
    depth: usize,
    files_read: usize,
    bytes_read: usize,
    missing: Vec<(Directive, LossKind)>,
}

impl NginxIncludeLoader<'_> {
    fn load_file(&mut self, path: &Path, from: Option<SourceSpan>) -> Result<Vec<Directive>, SpannedError> {
        let path = normalize_path(path);
        let bytes = self.files.read(&path).map_err(|error| {
            let at = from.unwrap_or_else(|| self.sources.add_unreadable(&path));
            let problem = format!("cannot read `{}`: {error}", path.display());
            SpannedError::new(at, problem, "name a file that exists and is readable")
        })?;
        self.files_read += 1;
        self.bytes_read = self.bytes_read.saturating_add(bytes.len());
        if let Some(at) = from {
            if self.open_files.contains(&path) {
                let problem = format!("`{}` includes itself", path.display());
                return Err(SpannedError::new(at, problem, "remove the `include`"));
            }
            if self.files_read > MAX_INCLUDES || self.bytes_read > MAX_INCLUDE_BYTES {
                let problem =
                    format!("more than {MAX_INCLUDES} included files, or {MAX_INCLUDE_BYTES} bytes");
                return Err(SpannedError::new(at, problem, "include fewer files"));
            }
        }
        let file = self.sources.add(&path, &bytes)?;
        let whole = SourceSpan { file, start: 0, end: 0 };
        let text = self.sources.file(whole).map_or(String::new(), |source| source.text.clone());
        let directives = lexer::parse(file, &text)?;
        self.open_files.push(path);
        let directives = self.expand_includes(directives)?;
        self.open_files.pop();
        Ok(directives)
    }

    fn expand_includes(&mut self, directives: Vec<Directive>) -> Result<Vec<Directive>, SpannedError> {
        let mut all = Vec::with_capacity(directives.len());
        if let (true, Some(first)) = (self.depth > MAX_NESTING, directives.first()) {
            let problem = format!("more than {MAX_NESTING} levels of blocks and files");
            return Err(SpannedError::new(first.span, problem, "use fewer levels"));
        }
        self.depth += 1;
        for mut directive in directives {
            if directive.name == "include" && directive.block.is_none() {
                all.extend(self.load_include(&directive)?);
                continue;
            }
            if let Some(block) = directive.block.take() {
                directive.block = Some(self.expand_includes(block)?);
            }
            all.push(directive);
        }
        self.depth -= 1;
        Ok(all)
    }

    fn load_include(&mut self, directive: &Directive) -> Result<Vec<Directive>, SpannedError> {
        let [word] = &directive.args[..] else {
            return Err(SpannedError::new(
                directive.span,
                "`include` takes one file name",
                "write `include FILE;`",
            ));
        };
        let mut all = Vec::new();
        for path in self.resolve_paths(&word.text) {
            if self.files.read(&normalize_path(&path)).is_err_and(|error| error.kind() == ErrorKind::NotFound)
            {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let kind = match COSMETIC_FILES.contains(&name) {
                    true => LossKind::Cosmetic,
                    false => LossKind::Protection,
                };
                self.missing.push((directive.clone(), kind));
                continue;
            }
            all.extend(self.load_file(&path, Some(word.span))?);
        }
        Ok(all)
    }

    /// Returns the files that a name matches. Globs are supported only in the last part of the path.
    fn resolve_paths(&self, name: &str) -> Vec<PathBuf> {
        let path = self.folder.join(name);
        let Some(last) = path.file_name().and_then(|last| last.to_str()).filter(|last| is_glob(last)) else {
            return vec![path];
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut names = self.files.list_names(folder).unwrap_or_default();
        // A glob matches a leading dot only if it starts with one, as in a shell.
        names.retain(|name| matches_glob(last, name) && (last.starts_with('.') || !name.starts_with('.')));
        names.sort();
        names.iter().map(|name| folder.join(name)).collect()
    }
}

/// Removes `.` and `..`, so that each file has one path.
fn normalize_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

fn is_glob(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// Returns whether a name matches a glob. The time is bounded by the product of both lengths.
fn matches_glob(glob: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    // The prefixes of the name that the glob so far matches.
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    let mut signs = glob.chars().peekable();
    while let Some(sign) = signs.next() {
        if sign == '*' {
            let first = reached.iter().position(|is| *is).unwrap_or(reached.len());
            reached.iter_mut().skip(first).for_each(|is| *is = true);
            continue;
        }
        let set = if sign == '[' { parse_set(&mut signs) } else { Vec::new() };
        let is_such = |c: char| match sign {
            '?' => true,
            '[' => set.iter().any(|(from, to)| (*from..=*to).contains(&c)),
            sign => sign == c,
        };
        let mut next = vec![false; reached.len()];
        for (at, c) in name.iter().enumerate() {
            next[at + 1] = reached[at] && is_such(*c);
        }
        reached = next;
    }
    reached.last().copied().unwrap_or_default()
}

/// Parses the content of `[…]`.
fn parse_set(signs: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Vec<(char, char)> {
    let mut set: Vec<(char, char)> = Vec::new();
    while let Some(sign) = signs.next() {
        match (sign, signs.peek()) {
            (']', _) if !set.is_empty() => break,
            ('-', Some(&to)) if to != ']' && !set.is_empty() => {
                signs.next();
                if let Some(last) = set.last_mut() {
                    last.1 = to;
                }
            }
            (sign, _) => set.push((sign, sign)),
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::matches_glob;

    #[test]
    fn globs_match_like_shell() {
        let cases = [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf.bak", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("?-[0-9a].conf", "x-7.conf", true),
            ("?-[0-9a].conf", "x-b.conf", false),
            ("[]]", "]", true),
        ];
        for (glob, name, is_such) in cases {
            assert_eq!(matches_glob(glob, name), is_such, "{glob} {name}");
        }
    }
}
