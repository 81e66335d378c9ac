//! Mutated texts, with errors as people, editors and attackers make them, for tests of parsers.

use proptest::{prelude::*, sample::Index, test_runner::TestRunner};

/// Calls `target` with `cases` mutations of the seeds.
///
/// # Errors
///
/// Returns the smallest input on which `target` panics.
pub fn run_mutated(seeds: &[Vec<u8>], cases: u32, target: impl Fn(&[u8])) -> Result<(), String> {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let inputs = (any::<Index>(), prop::collection::vec(mutations(), 1..6));
    let outcome = TestRunner::new(config).run(&inputs, |(seed, mutations)| {
        let input = mutations
            .iter()
            .fold(seed.get(seeds).clone(), |text, mutation| apply_mutation(text, mutation, seeds));
        target(&input);
        Ok(())
    });
    outcome.map_err(|error| error.to_string())
}

/// One change of a text.
#[derive(Clone, Debug)]
enum Mutation {
    /// Replaces a token by another token of the text.
    Swap(Index, Index),
    /// Duplicates a line, often a key.
    Repeat(Index),
    /// Moves a line.
    Move(Index, Index),
    /// Deletes a range of bytes.
    Cut(Index, Index),
    /// Wraps a token in this number of brackets.
    Nest(Index, u16),
    /// Replaces a token by a word of the dictionary.
    Replace(Index, &'static [u8]),
    /// Inserts a word of the dictionary.
    Insert(Index, &'static [u8]),
    Byte(Index, u8),
    /// Appends the end of another seed to the start of this one.
    Splice(Index, Index, Index),
    /// Prepends nested YAML aliases that expand exponentially.
    Bomb(u8),
}

const DICTIONARY: &[&[u8]] = &[
    b"18446744073709551616",
    b"-1",
    b"1e999",
    b"0",
    b"9007199254740993/s",
    b"99999999999999999999999/us burst 18446744073709551615",
    b"1/d sliding-log",
    b"1000000000/d sliding-log",
    b"10 at once lease 99999d",
    b"~",
    b"null",
    b"true",
    b"!!binary x",
    b"!x",
    b"&a",
    b"*a",
    b"<<",
    b"? x",
    b"|",
    b">-",
    b"'",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"---",
    b"...",
    b"%YAML 9.9",
    b"#",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xef\xbb\xbf",
    b"\r",
    b"\t",
    b"\xe2\x80\xa8",
    b"\xf0\x9f\x98\x80",
    b"\\ud800",
    b"/{a}/{a}",
    b"/{a**}/b",
    b"%2f..%2f%00",
    b"***",
    b"a*a*a*a*a*a*a*a*b",
    b"0.0.0.0/33",
    b"::/129",
    b"x.exists(y, y)",
    b"'a' + 'a'",
    b"9223372036854775807 + 1",
    b"1 / 0",
    b"request",
    b"matches",
    b"redis://:x@y",
    b"1e400",
    b"1.0",
    b"-0",
    b"0.5",
    b"9007199254740993",
    b"\"\\u0000\"",
    b"{}",
    b"[]",
];

fn mutations() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let word = || prop::sample::select(DICTIONARY);
    prop_oneof![
        3 => (at(), at()).prop_map(|(one, other)| Mutation::Swap(one, other)),
        1 => at().prop_map(Mutation::Repeat),
        1 => (at(), at()).prop_map(|(from, to)| Mutation::Move(from, to)),
        1 => (at(), at()).prop_map(|(from, to)| Mutation::Cut(from, to)),
        1 => (at(), prop_oneof![0_u16..4, 60_u16..70, Just(2_000)]).prop_map(|(at, deep)| Mutation::Nest(at, deep)),
        3 => (at(), word()).prop_map(|(at, word)| Mutation::Replace(at, word)),
        2 => (at(), word()).prop_map(|(at, word)| Mutation::Insert(at, word)),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Byte(at, byte)),
        1 => (at(), at(), at()).prop_map(|(seed, from, to)| Mutation::Splice(seed, from, to)),
        1 => (1_u8..12).prop_map(Mutation::Bomb),
    ]
}

/// The byte ranges of the tokens of a text.
fn tokens(text: &[u8]) -> Vec<(usize, usize)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte >= 0x80;
    let mut tokens: Vec<(usize, usize)> = Vec::new();
    for (at, byte) in text.iter().enumerate().filter(|(_, byte)| !byte.is_ascii_whitespace()) {
        match tokens.last_mut() {
            Some((_, end)) if *end == at && is_word(*byte) && is_word(text[at - 1]) => *end = at + 1,
            _ => tokens.push((at, at + 1)),
        }
    }
    tokens
}

fn split_lines(text: &[u8]) -> Vec<Vec<u8>> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn replace_range(text: &[u8], (start, end): (usize, usize), by: &[u8]) -> Vec<u8> {
    [&text[..start], by, &text[end..]].concat()
}

fn apply_mutation(text: Vec<u8>, mutation: &Mutation, seeds: &[Vec<u8>]) -> Vec<u8> {
    let tokens = tokens(&text);
    if tokens.is_empty() {
        return text;
    }
    match mutation {
        Mutation::Swap(one, other) => {
            let (one, other) = (*one.get(&tokens), *other.get(&tokens));
            replace_range(&text, one, &text[other.0..other.1])
        }
        Mutation::Repeat(line) => {
            let mut lines = split_lines(&text);
            let at = line.index(lines.len());
            lines.insert(at, lines[at].clone());
            lines.join(&b'\n')
        }
        Mutation::Move(from, to) => {
            let mut lines = split_lines(&text);
            let line = lines.remove(from.index(lines.len()));
            lines.insert(to.index(lines.len() + 1), line);
            lines.join(&b'\n')
        }
        Mutation::Cut(from, to) => {
            let (one, other) = (from.index(text.len()), to.index(text.len()));
            replace_range(&text, (one.min(other), one.max(other)), b"")
        }
        Mutation::Nest(at, deep) => {
            let (start, end) = *at.get(&tokens);
            let (open, close) = if deep % 2 == 0 { (b"[", b"]") } else { (b"(", b")") };
            let deep = usize::from(*deep);
            replace_range(
                &text,
                (start, end),
                &[&open.repeat(deep)[..], &text[start..end], &close.repeat(deep)].concat(),
            )
        }
        Mutation::Replace(at, word) => replace_range(&text, *at.get(&tokens), word),
        Mutation::Insert(at, word) => {
            let at = at.index(text.len() + 1);
            replace_range(&text, (at, at), word)
        }
        Mutation::Byte(at, byte) => {
            let at = at.index(text.len());
            replace_range(&text, (at, at + 1), &[*byte])
        }
        Mutation::Splice(seed, from, to) => {
            let other = seed.get(seeds);
            [&text[..from.index(text.len() + 1)], &other[to.index(other.len() + 1)..]].concat()
        }
        Mutation::Bomb(doublings) => {
            let mut bomb = b"z0: &z0 [x, x, x, x, x, x, x, x, x]\n".to_vec();
            for at in 1..=*doublings {
                let before = at - 1;
                let many = format!("*z{before}, ").repeat(9);
                bomb.extend(format!("z{at}: &z{at} [{many}]\n").as_bytes());
            }
            [bomb, text].concat()
        }
    }
}
