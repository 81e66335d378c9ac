//! Paths, in the one spelling in which patterns are compared with them.
//!
//! A backend may read `/login`, `//login`, `/./login`, `/%6Cogin`, `/login/` and `/login;v=1` as the same. Whoever could
//! choose a spelling that a rule does not know would choose that, so a rule sees what all of them have in common: escapes
//! undone once, an escaped slash being a part of its segment; parameters behind a `;` left out; empty segments and `.` left
//! out; and `..` takes away the segment before it. Large and small letters differ, as they do in most backends.
//!
//! The gateway normalizes a path before rules see it, and forwards it so: [`normalize_path`](super::normalize_path).

use super::glob::GlobMatcher;
use crate::model::{PathPattern, Rest, Segment};
use std::{borrow::Cow, fmt};
use tidegate_rule::request::{Plus, decoded};

/// A path in its one spelling: segments with a slash between two of them, and none at either end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainPath<'a>(Cow<'a, [u8]>);

impl<'a> PlainPath<'a> {
    pub(crate) fn of(path: &'a str) -> Self {
        let path = path.as_bytes();
        let inner = path.strip_prefix(b"/").unwrap_or(path);
        let inner = inner.strip_suffix(b"/").unwrap_or(inner);
        match is_plain(inner) {
            true => Self(inner.into()),
            false => Self(respelled(path).into()),
        }
    }

    /// Its segments; `/` has none.
    pub(crate) fn segments(&self) -> Segments<'_> {
        Segments(Some(&*self.0).filter(|text| !text.is_empty()))
    }

    /// The same with a slash in front, as it would be written.
    pub(crate) fn shown(&self) -> String {
        format!("/{}", String::from_utf8_lossy(&self.0))
    }
}

/// What is left of a path, segment by segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments<'a>(Option<&'a [u8]>);

impl<'a> Segments<'a> {
    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
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

/// Whether there is nothing in it that could be spelled otherwise.
fn is_plain(inner: &[u8]) -> bool {
    let mut before = b'/';
    for byte in inner {
        match (before, byte) {
            (_, b'%' | b';') | (b'/', b'/' | b'.') => return false,
            _ => before = *byte,
        }
    }
    before != b'/' || inner.is_empty()
}

/// Parameters go before escapes are undone, since an escaped `;` is one that was meant; dots after it, since an escaped dot
/// is a dot to most.
fn respelled(path: &[u8]) -> Vec<u8> {
    let mut plain: Vec<u8> = Vec::with_capacity(path.len());
    for segment in path.split(|byte| *byte == b'/') {
        let end = segment.iter().position(|byte| *byte == b';').unwrap_or(segment.len());
        match &*decoded(&segment[..end], Plus::IsPlus) {
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

/// A slash inside of a segment.
const ESCAPED_SLASH: &[u8] = b"%2F";

/// A pattern that paths are compared with.
#[derive(Clone, Debug)]
pub(crate) struct PathMatcher {
    steps: Box<[Step]>,
    rest: Option<Rest>,
    shown: String,
}

/// What one segment must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Text(Box<[u8]>),
    Glob(GlobMatcher),
    Named(String),
}

impl Step {
    /// A glob does not stand for nothing, and there are no empty segments.
    pub(crate) fn fits(&self, segment: &[u8]) -> bool {
        match self {
            Self::Text(text) => **text == *segment,
            Self::Glob(glob) => glob.fits(segment),
            Self::Named(_) => true,
        }
    }
}

impl PathMatcher {
    /// A pattern is spelled in one way too: what it says of empty segments is that there are none.
    pub(crate) fn new(pattern: &PathPattern) -> Self {
        let step = |segment: &Segment| match segment {
            Segment::Text(text) if text.is_empty() => None,
            Segment::Text(text) => Some(Step::Text(text.as_bytes().into())),
            Segment::Glob(glob) => Some(Step::Glob(GlobMatcher::new(glob))),
            Segment::Named(name) => Some(Step::Named(name.clone())),
        };
        let steps = pattern.segments.iter().filter_map(step).collect();
        Self { steps, rest: pattern.rest.clone(), shown: Shown(pattern).to_string() }
    }

    pub(crate) fn steps(&self) -> (&[Step], Option<&Rest>) {
        (&self.steps, self.rest.as_ref())
    }

    /// The pattern as it is written.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) fn fits(&self, path: &PlainPath<'_>) -> bool {
        let mut segments = path.segments();
        self.steps.iter().all(|step| segments.next().is_some_and(|segment| step.fits(segment)))
            && (self.rest.is_some() || segments.next().is_none())
    }

    /// What a name stands for in a path that fits.
    pub(crate) fn capture<'p>(&self, name: &str, path: &'p PlainPath<'_>) -> Option<&'p [u8]> {
        let mut segments = path.segments();
        for step in &self.steps {
            let segment = segments.next()?;
            if matches!(step, Step::Named(known) if known == name) {
                return Some(segment);
            }
        }
        match &self.rest {
            Some(Rest::Named(known)) if known == name => {
                Some(segments.rest()).filter(|rest| !rest.is_empty())
            }
            _ => None,
        }
    }

    /// Whether it has such a name.
    pub(crate) fn names(&self, name: &str) -> bool {
        let is_step = self.steps.iter().any(|step| matches!(step, Step::Named(known) if known == name));
        is_step || matches!(&self.rest, Some(Rest::Named(known)) if known == name)
    }
}

/// A pattern as it is written.
struct Shown<'a>(&'a PathPattern);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.0.segments {
            match segment {
                Segment::Text(text) => write!(f, "/{text}")?,
                Segment::Glob(glob) => write!(f, "/{}", glob.0)?,
                Segment::Named(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match &self.0.rest {
            Some(Rest::Any) => f.write_str("/**"),
            Some(Rest::Named(name)) => write!(f, "/{{{name}**}}"),
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

    fn text(text: &str) -> Segment {
        Segment::Text(text.to_owned())
    }

    fn pattern(segments: Vec<Segment>, rest: Option<Rest>) -> PathMatcher {
        PathMatcher::new(&PathPattern { segments, rest })
    }

    #[test]
    fn one_path_has_one_spelling() {
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
            assert_eq!(PlainPath::of(path).shown(), plain, "{path}");
        }
    }

    #[test]
    fn no_spelling_of_a_path_is_missed_and_no_other_path_is_meant() {
        let login = pattern(vec![text("login")], None);
        let same = ["/login", "/login/", "//login", "/./login", "/%6cogin", "/login;x", "/a/../login"];
        for path in same {
            assert!(login.fits(&PlainPath::of(path)), "{path}");
        }
        // Letters differ by their case, and what is escaped twice is another text.
        for path in
            ["/LOGIN", "/login2", "/log", "/login/x", "/", "/%256cogin", "/login%20", "/login%2f", "/login\\"]
        {
            assert!(!login.fits(&PlainPath::of(path)), "{path}");
        }
    }

    #[test]
    fn names_stand_for_segments() {
        let photos = pattern(
            vec![text("users"), Segment::Named("id".to_owned()), Segment::Glob(Glob("*.jpg".to_owned()))],
            None,
        );
        let files = pattern(vec![text("files")], Some(Rest::Named("path".to_owned())));
        assert_eq!((photos.shown(), files.shown()), ("/users/{id}/*.jpg", "/files/{path**}"));
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
            let path = PlainPath::of(path);
            let found = pattern.fits(&path).then(|| pattern.capture(name, &path)).flatten();
            assert_eq!(found, value.map(str::as_bytes), "{path:?}");
        }
        assert!(files.fits(&PlainPath::of("/files")) && files.fits(&PlainPath::of("/files/")));
        assert!(!files.fits(&PlainPath::of("/filesystem")));
    }

    proptest! {
        /// What is spelled plainly already is not changed, and nothing is quicker to say so than to see so.
        #[test]
        fn the_quick_way_and_the_long_way_agree(path in "[/.;%2ef a]{0,12}") {
            let path = format!("/{path}");
            prop_assert_eq!(PlainPath::of(&path).0.into_owned(), respelled(path.as_bytes()));
        }
    }
}
