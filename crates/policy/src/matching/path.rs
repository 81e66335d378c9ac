//! Normalized paths, and patterns that match them.
//!
//! A backend may treat `/login`, `//login`, `/./login`, `/%6Cogin`, `/login/` and `/login;v=1` as the same path. A client must
//! not bypass a rule by a different spelling, so rules compare a normalized form: escapes are decoded once, with an escaped
//! slash as part of its segment; parameters after `;`, empty segments and `.` are removed; `..` removes the previous segment.
//! Paths are case-sensitive, as in most backends.
//!
//! The gateway normalizes a path before it evaluates rules, and forwards that form: [`normalize_path`](super::normalize_path).

use super::glob::GlobMatcher;
use crate::model::{PathPattern, PathTail, Segment};
use std::{borrow::Cow, fmt};
use tidegate_rule::request::{PlusDecoding, percent_decode};

/// A normalized path: segments separated by slashes, without a slash at either end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NormalizedPath<'a>(Cow<'a, [u8]>);

impl<'a> NormalizedPath<'a> {
    pub(crate) fn new(path: &'a str) -> Self {
        let path = path.as_bytes();
        let inner = path.strip_prefix(b"/").unwrap_or(path);
        let inner = inner.strip_suffix(b"/").unwrap_or(inner);
        match is_normalized(inner) {
            true => Self(inner.into()),
            false => Self(normalize(path).into()),
        }
    }

    /// The segments; `/` has none.
    pub(crate) fn segments(&self) -> Segments<'_> {
        Segments(Some(&*self.0).filter(|text| !text.is_empty()))
    }

    /// The path with a leading slash, for display.
    pub(crate) fn to_display(&self) -> String {
        format!("/{}", String::from_utf8_lossy(&self.0))
    }
}

/// An iterator over the remaining segments of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments<'a>(Option<&'a [u8]>);

impl<'a> Segments<'a> {
    /// The remaining path.
    pub(crate) fn remaining(self) -> &'a [u8] {
        self.0.unwrap_or_default()
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.0?;
        match text.iter().position(|byte| *byte == b'/') {
            Some(slash) => {
                self.0 = Some(&text[slash + 1..]);
                Some(&text[..slash])
            }
            None => {
                self.0 = None;
                Some(text)
            }
        }
    }
}

/// Whether a path needs no normalization.
fn is_normalized(inner: &[u8]) -> bool {
    let mut before = b'/';
    for byte in inner {
        match (before, byte) {
            (_, b'%' | b';') | (b'/', b'/' | b'.') => return false,
            _ => before = *byte,
        }
    }
    before != b'/' || inner.is_empty()
}

/// Removes parameters before decoding, because an escaped `;` is a literal one, and resolves dots after decoding, because most
/// backends treat an escaped dot as a dot.
fn normalize(path: &[u8]) -> Vec<u8> {
    let mut plain: Vec<u8> = Vec::with_capacity(path.len());
    for segment in path.split(|byte| *byte == b'/') {
        let end = segment.iter().position(|byte| *byte == b';').unwrap_or(segment.len());
        match &*percent_decode(&segment[..end], PlusDecoding::Literal) {
            b"" | b"." => {}
            b".." => plain.truncate(plain.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            segment => {
                if !plain.is_empty() {
                    plain.push(b'/');
                }
                for byte in segment {
                    match byte {
                        b'/' => plain.extend_from_slice(ESCAPED_SLASH),
                        byte => plain.push(*byte),
                    }
                }
            }
        }
    }
    plain
}

/// A slash within a segment.
const ESCAPED_SLASH: &[u8] = b"%2F";

/// A compiled path pattern.
#[derive(Clone, Debug)]
pub(crate) struct PathMatcher {
    segments: Box<[SegmentMatcher]>,
    tail: Option<PathTail>,
    pattern: String,
}

/// A compiled segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SegmentMatcher {
    Text(Box<[u8]>),
    Glob(GlobMatcher),
    Capture(String),
}

impl SegmentMatcher {
    /// Whether a segment matches. Segments are never empty.
    pub(crate) fn matches(&self, segment: &[u8]) -> bool {
        match self {
            Self::Text(text) => **text == *segment,
            Self::Glob(glob) => glob.matches(segment),
            Self::Capture(_) => true,
        }
    }
}

impl PathMatcher {
    /// Compiles a pattern, without its empty segments.
    pub(crate) fn new(pattern: &PathPattern) -> Self {
        let step = |segment: &Segment| match segment {
            Segment::Text(text) if text.is_empty() => None,
            Segment::Text(text) => Some(SegmentMatcher::Text(text.as_bytes().into())),
            Segment::Glob(glob) => Some(SegmentMatcher::Glob(GlobMatcher::new(glob))),
            Segment::Capture(name) => Some(SegmentMatcher::Capture(name.clone())),
        };
        let steps = pattern.segments.iter().filter_map(step).collect();
        Self { segments: steps, tail: pattern.tail.clone(), pattern: PatternDisplay(pattern).to_string() }
    }

    pub(crate) fn segments(&self) -> (&[SegmentMatcher], Option<&PathTail>) {
        (&self.segments, self.tail.as_ref())
    }

    /// The notation of the pattern.
    pub(crate) fn pattern(&self) -> &str {
        &self.pattern
    }

    pub(crate) fn matches(&self, path: &NormalizedPath<'_>) -> bool {
        let mut segments = path.segments();
        self.segments.iter().all(|step| segments.next().is_some_and(|segment| step.matches(segment)))
            && (self.tail.is_some() || segments.next().is_none())
    }

    /// The segment that a name captures in a matching path.
    pub(crate) fn capture<'p>(&self, name: &str, path: &'p NormalizedPath<'_>) -> Option<&'p [u8]> {
        let mut segments = path.segments();
        for step in &self.segments {
            let segment = segments.next()?;
            if matches!(step, SegmentMatcher::Capture(known) if known == name) {
                return Some(segment);
            }
        }
        match &self.tail {
            Some(PathTail::Capture(known)) if known == name => {
                Some(segments.remaining()).filter(|rest| !rest.is_empty())
            }
            _ => None,
        }
    }

    /// Whether the pattern has a capture of this name.
    pub(crate) fn has_capture(&self, name: &str) -> bool {
        let is_step =
            self.segments.iter().any(|step| matches!(step, SegmentMatcher::Capture(known) if known == name));
        is_step || matches!(&self.tail, Some(PathTail::Capture(known)) if known == name)
    }
}

/// Displays the notation of a pattern.
struct PatternDisplay<'a>(&'a PathPattern);

impl fmt::Display for PatternDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.0.segments {
            match segment {
                Segment::Text(text) => write!(f, "/{text}")?,
                Segment::Glob(glob) => write!(f, "/{}", glob.0)?,
                Segment::Capture(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match &self.0.tail {
            Some(PathTail::Any) => f.write_str("/**"),
            Some(PathTail::Capture(name)) => write!(f, "/{{{name}**}}"),
            None if self.0.segments.is_empty() => f.write_str("/"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Glob;
    use proptest::prelude::*;

    fn literal(text: &str) -> Segment {
        Segment::Text(text.to_owned())
    }

    fn path_matcher(segments: Vec<Segment>, rest: Option<PathTail>) -> PathMatcher {
        PathMatcher::new(&PathPattern { segments, tail: rest })
    }

    #[test]
    fn path_is_normalized() {
        let cases = [
            ("/", "/"),
            ("", "/"),
            ("/login", "/login"),
            ("/login/", "/login"),
            ("//login", "/login"),
            ("/login//", "/login"),
            ("/./login", "/login"),
            ("/login/.", "/login"),
            ("/x/../login", "/login"),
            ("/../../login", "/login"),
            ("/%2e%2E/x/%2e./login", "/login"),
            ("/%6Cogin", "/login"),
            ("/login%2f", "/login%2F"),
            ("/a%2Flogin%2F..%2Flogin", "/a%2Flogin%2F..%2Flogin"),
            ("/login;v=1", "/login"),
            ("/;x/login;a=b;c/", "/login"),
            ("/..;/login", "/login"),
            ("/login%3Bv", "/login;v"),
            ("/login%00", "/login\0"),
            ("/%256Cogin", "/%6Cogin"),
            ("/a..b/.well-known/...", "/a..b/.well-known/..."),
            ("*", "/*"),
        ];
        for (path, plain) in cases {
            assert_eq!(NormalizedPath::new(path).to_display(), plain, "{path}");
        }
    }

    #[test]
    fn pattern_matches_every_spelling_of_its_path_only() {
        let login = path_matcher(vec![literal("login")], None);
        let same = ["/login", "/login/", "//login", "/./login", "/%6cogin", "/login;x", "/a/../login"];
        for path in same {
            assert!(login.matches(&NormalizedPath::new(path)), "{path}");
        }
        // Paths are case-sensitive, and escapes are decoded only once.
        for path in
            ["/LOGIN", "/login2", "/log", "/login/x", "/", "/%256cogin", "/login%20", "/login%2f", "/login\\"]
        {
            assert!(!login.matches(&NormalizedPath::new(path)), "{path}");
        }
    }

    #[test]
    fn captures_return_segments() {
        let photos = path_matcher(
            vec![
                literal("users"),
                Segment::Capture("id".to_owned()),
                Segment::Glob(Glob("*.jpg".to_owned())),
            ],
            None,
        );
        let files = path_matcher(vec![literal("files")], Some(PathTail::Capture("path".to_owned())));
        assert_eq!((photos.pattern(), files.pattern()), ("/users/{id}/*.jpg", "/files/{path**}"));
        let captures = [
            (&photos, "/users/7/a.jpg", "id", Some("7")),
            (&photos, "/users/7;v=2/a.jpg", "id", Some("7")),
            (&photos, "/users/%37/a.jpg", "id", Some("7")),
            (&photos, "/users//a.jpg", "id", None),
            (&photos, "/users/7/a.png", "id", None),
            (&files, "/files/a//b/../c", "path", Some("a/c")),
            (&files, "/files/a", "other", None),
            (&files, "/files", "path", None),
        ];
        for (pattern, path, name, value) in captures {
            let path = NormalizedPath::new(path);
            let found = pattern.matches(&path).then(|| pattern.capture(name, &path)).flatten();
            assert_eq!(found, value.map(str::as_bytes), "{path:?}");
        }
        assert!(
            files.matches(&NormalizedPath::new("/files")) && files.matches(&NormalizedPath::new("/files/"))
        );
        assert!(!files.matches(&NormalizedPath::new("/filesystem")));
    }

    proptest! {
        /// The fast path returns the same result as full normalization.
        #[test]
        fn fast_path_agrees_with_full_normalization(path in "[/.;%2ef a]{0,12}") {
            let path = format!("/{path}");
            prop_assert_eq!(NormalizedPath::new(&path).0.into_owned(), normalize(path.as_bytes()));
        }
    }
}
