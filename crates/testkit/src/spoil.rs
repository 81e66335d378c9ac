//! Texts that are spoiled as people, editors and attackers spoil them: what parsers of texts of others must bear.

use proptest::{prelude::*, sample::Index, test_runner::TestRunner};

/// Calls `target` with so many spoiled inputs, each made of one of the seeds; the smallest that panics is told.
pub fn each(seeds: &[Vec<u8>], cases: u32, target: impl Fn(&[u8])) -> Result<(), String> {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let inputs = (any::<Index>(), prop::collection::vec(spoils(), 1..6));
    let outcome = TestRunner::new(config).run(&inputs, |(seed, spoils)| {
        let input = spoils.iter().fold(seed.get(seeds).clone(), |text, spoil| spoiled(text, spoil, seeds));
        target(&input);
        Ok(())
    });
    outcome.map_err(|error| error.to_string())
}

/// One change.
#[derive(Clone, Debug)]
enum Spoil {
    /// A token of the input in place of another.
    Swap(Index, Index),
    /// A line twice: a duplicate key, often.
    Repeat(Index),
    /// A line into another place, or away.
    Move(Index, Index),
    Cut(Index, Index),
    /// So many brackets around a token.
    Nest(Index, u16),
    /// One of those in place of a token, or beside it.
    Word(Index, &'static [u8]),
    Insert(Index, &'static [u8]),
    Byte(Index, u8),
    /// The end of another seed behind the beginning of this one.
    Splice(Index, Index, Index),
    /// References to references to references.
    Bomb(u8),
}

const WORDS: &[&[u8]] = &[
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

fn spoils() -> impl Strategy<Value = Spoil> {
    let at = any::<Index>;
    let word = || prop::sample::select(WORDS);
    prop_oneof![
        3 => (at(), at()).prop_map(|(one, other)| Spoil::Swap(one, other)),
        1 => at().prop_map(Spoil::Repeat),
        1 => (at(), at()).prop_map(|(from, to)| Spoil::Move(from, to)),
        1 => (at(), at()).prop_map(|(from, to)| Spoil::Cut(from, to)),
        1 => (at(), prop_oneof![0_u16..4, 60_u16..70, Just(2_000)]).prop_map(|(at, deep)| Spoil::Nest(at, deep)),
        3 => (at(), word()).prop_map(|(at, word)| Spoil::Word(at, word)),
        2 => (at(), word()).prop_map(|(at, word)| Spoil::Insert(at, word)),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Spoil::Byte(at, byte)),
        1 => (at(), at(), at()).prop_map(|(seed, from, to)| Spoil::Splice(seed, from, to)),
        1 => (1_u8..12).prop_map(Spoil::Bomb),
    ]
}

/// Where the tokens of a text are.
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

fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn replaced(text: &[u8], (start, end): (usize, usize), by: &[u8]) -> Vec<u8> {
    [&text[..start], by, &text[end..]].concat()
}

fn spoiled(text: Vec<u8>, spoil: &Spoil, seeds: &[Vec<u8>]) -> Vec<u8> {
    let tokens = tokens(&text);
    if tokens.is_empty() {
        return text;
    }
    match spoil {
        Spoil::Swap(one, other) => {
            let (one, other) = (*one.get(&tokens), *other.get(&tokens));
            replaced(&text, one, &text[other.0..other.1])
        }
        Spoil::Repeat(line) => {
            let mut lines = lines(&text);
            let at = line.index(lines.len());
            lines.insert(at, lines[at].clone());
            lines.join(&b'\n')
        }
        Spoil::Move(from, to) => {
            let mut lines = lines(&text);
            let line = lines.remove(from.index(lines.len()));
            lines.insert(to.index(lines.len() + 1), line);
            lines.join(&b'\n')
        }
        Spoil::Cut(from, to) => {
            let (one, other) = (from.index(text.len()), to.index(text.len()));
            replaced(&text, (one.min(other), one.max(other)), b"")
        }
        Spoil::Nest(at, deep) => {
            let (start, end) = *at.get(&tokens);
            let (open, close) = if deep % 2 == 0 { (b"[", b"]") } else { (b"(", b")") };
            let deep = usize::from(*deep);
            replaced(
                &text,
                (start, end),
                &[&open.repeat(deep)[..], &text[start..end], &close.repeat(deep)].concat(),
            )
        }
        Spoil::Word(at, word) => replaced(&text, *at.get(&tokens), word),
        Spoil::Insert(at, word) => {
            let at = at.index(text.len() + 1);
            replaced(&text, (at, at), word)
        }
        Spoil::Byte(at, byte) => {
            let at = at.index(text.len());
            replaced(&text, (at, at + 1), &[*byte])
        }
        Spoil::Splice(seed, from, to) => {
            let other = seed.get(seeds);
            [&text[..from.index(text.len() + 1)], &other[to.index(other.len() + 1)..]].concat()
        }
        Spoil::Bomb(doublings) => {
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
