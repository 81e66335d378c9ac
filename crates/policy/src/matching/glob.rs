//! Globs: patterns with `*` for any text.

use crate::model::Glob;

/// A glob, split at its stars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GlobMatcher {
    /// The text before the first star; the whole glob if it has none.
    prefix: Box<[u8]>,
    /// The text after each star.
    parts: Box<[Box<[u8]>]>,
}

impl GlobMatcher {
    pub(crate) fn new(glob: &Glob) -> Self {
        let mut parts = glob.0.split('*').map(|part| part.as_bytes().into());
        Self { prefix: parts.next().unwrap_or_default(), parts: parts.collect() }
    }

    /// The text, if the glob has no star.
    pub(crate) fn literal(&self) -> Option<&[u8]> {
        self.parts.is_empty().then_some(&*self.prefix)
    }

    /// Whether the text matches. Each part is searched after the previous one, so a star takes as little as possible; the last
    /// part must be at the end. The time is that of one search per part.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        let Some(mut text) = text.strip_prefix(&*self.prefix) else { return false };
        let Some((last, between)) = self.parts.split_last() else { return text.is_empty() };
        for part in between {
            match find(text, part) {
                Some(start) => text = &text[start + part.len()..],
                None => return false,
            }
        }
        text.ends_with(last)
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn glob_matches(glob: &str, text: &str) -> bool {
        GlobMatcher::new(&Glob(glob.to_owned())).matches(text.as_bytes())
    }

    /// A slow reference implementation.
    fn naive_match(glob: &[u8], text: &[u8]) -> bool {
        match glob {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|end| naive_match(rest, &text[end..])),
            [sign, rest @ ..] => {
                text.split_first().is_some_and(|(first, text)| first == sign && naive_match(rest, text))
            }
        }
    }

    #[test]
    fn star_matches_any_text() {
        let cases = [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "a", true),
            ("a*a", "a", false),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.jpg", "x.jpg.exe", false),
            ("a*b*c", "a-b-b-c", true),
            ("a**c", "ac", true),
            ("*ab", "aab", true),
        ];
        for (glob, text, is_match) in cases {
            assert_eq!(glob_matches(glob, text), is_match, "{glob} {text}");
        }
    }

    proptest! {
        #[test]
        fn glob_agrees_with_naive_match(glob in "[ab*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(glob_matches(&glob, &text), naive_match(glob.as_bytes(), text.as_bytes()));
        }
    }
}
