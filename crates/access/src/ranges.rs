//! A million prefixes of one family, laid flat: which of them is the longest around an address.
//!
//! Where prefixes nest, the longest wins; that is settled when the table is built. What is left are ranges side by
//! side, each of one answer, so that a question is: which is the last range that starts at or before the address?
//!
//! ```text
//!   10.0.0.0/8 denied   ├──────────────────────────────┤
//!   10.1.0.0/16 allowed        ├─────┤
//!   ranges              ┊ deny ┊allow┊      deny       ┊ unlisted
//!
//!   address − base ──top bits──▶ index ──▶ run of words: │rest of start·answer│rest of start·answer│…
//! ```
//!
//! The index has so many slots that a run is a part of a cache line: two places in memory are touched. Where many
//! prefixes crowd into one slot it is cut into slots of its own. The surprise: a word holds the answer in the two bits
//! that its start can spare, because the index knows the top bits.

/// An address as a number, and a word of a table.
pub(super) trait Word: Copy + Ord {
    const ZERO: Self;
    const BITS: u32;
    fn minus(self, other: Self) -> Option<Self>;
    /// The next number, if there is one.
    fn next(self) -> Option<Self>;
    /// The last of all numbers that share the first `bits` with this one.
    fn last_of(self, bits: u8) -> Self;
    /// Bits that are needed to write it.
    fn length(self) -> u32;
    fn shifted(self, by: u32) -> usize;
    /// The low bits of a start, with an answer.
    fn packed(self, bits: u32, answer: u8) -> Self;
    fn answer(self) -> u8;
}

macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            const ZERO: Self = 0;
            const BITS: u32 = Self::BITS;

            #[inline]
            fn minus(self, other: Self) -> Option<Self> {
                self.checked_sub(other)
            }

            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }

            fn last_of(self, bits: u8) -> Self {
                self | Self::MAX.checked_shr(bits.into()).unwrap_or(0)
            }

            fn length(self) -> u32 {
                Self::BITS - self.leading_zeros()
            }

            #[inline]
            fn shifted(self, by: u32) -> usize {
                usize::try_from(self >> by).unwrap_or(usize::MAX)
            }

            #[inline]
            fn packed(self, bits: u32, answer: u8) -> Self {
                ((self & ((1 << bits) - 1)) << ANSWER_BITS) | Self::from(answer)
            }

            #[inline]
            fn answer(self) -> u8 {
                (self & 0b11) as u8
            }
        }
    };
}

word!(u32);
word!(u128);

const ANSWER_BITS: u32 = 2;
/// What the words of a slot take on average, or up to half of that.
const BYTES_PER_SLOT: usize = 16;

/// One prefix with an answer from 1 to 3; 0 is for addresses without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry<W> {
    pub(super) first: W,
    pub(super) bits: u8,
    pub(super) answer: u8,
}

/// All addresses of one family, each with its answer.
#[derive(Debug)]
pub(super) struct Ranges<W> {
    root: Node<W>,
    /// The parts of slots that are too crowded to be searched.
    nodes: Box<[Node<W>]>,
    /// For each slot of a node where its words start, and at the end of a node where they end. If [`CROWDED`], the
    /// number of the node that the slot is cut into.
    index: Box<[u32]>,
    words: Box<[W]>,
    /// The length of the prefix that made a range; only needed to explain it.
    bits: Box<[u8]>,
}

/// A stretch of the address space, cut into slots of equal size.
#[derive(Clone, Copy, Debug)]
struct Node<W> {
    /// The first start in it.
    base: W,
    /// Bits of an offset that are left to the word.
    rest: u32,
    /// Where its slots are in the index.
    slots: usize,
    last_slot: usize,
    /// Where its words are.
    start: u32,
    end: u32,
}

const CROWDED: u32 = 1 << 31;
/// Words of a slot that are searched one by one, by halves; with more, the slot is cut again.
const MOST_WORDS: usize = 256;

impl<W: Word> Ranges<W> {
    /// Lays prefixes flat that are sorted by first address and length, none of them twice.
    pub(super) fn new(entries: &[Entry<W>]) -> Self {
        let ranges = flatten(entries);
        let mut table = Building { words: vec![W::ZERO; ranges.len()], nodes: Vec::new(), index: Vec::new() };
        let root = table.node(&ranges, 0);
        Self {
            root,
            nodes: table.nodes.into(),
            index: table.index.into(),
            words: table.words.into(),
            bits: ranges.iter().map(|range| range.bits).collect(),
        }
    }

    /// The answer for an address; 0 if there is none.
    #[inline]
    pub(super) fn answer(&self, address: W) -> u8 {
        self.word_of(address).map_or(0, |(_, word)| word.answer())
    }

    /// The answer, and the length of the prefix that gave it.
    pub(super) fn find(&self, address: W) -> Option<(u8, u8)> {
        let (position, word) = self.word_of(address)?;
        let bits = *self.bits.get(position)?;
        (word.answer() != 0).then(|| (word.answer(), bits))
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let index = size_of_val(&*self.nodes) + size_of_val(&*self.index);
        index + size_of_val(&*self.words) + size_of_val(&*self.bits)
    }

    /// The last word that starts at or before the address, and where it lies.
    #[inline]
    fn word_of(&self, address: W) -> Option<(usize, W)> {
        let mut node = &self.root;
        let after = loop {
            let Some(offset) = address.minus(node.base) else { break node.start as usize };
            let slot = offset.shifted(node.rest);
            if slot > node.last_slot {
                break node.end as usize;
            }
            let start = *self.index.get(node.slots + slot)?;
            if start & CROWDED == 0 {
                let end = self.start_of(*self.index.get(node.slots + slot + 1)?)?;
                let run = self.words.get(start as usize..end)?;
                let sought = offset.packed(node.rest, 0b11);
                break start as usize + run.partition_point(|word| *word <= sought);
            }
            node = self.nodes.get((start & !CROWDED) as usize)?;
        };
        // In a slot without a start before the address, what started last goes on.
        let at = after.checked_sub(1)?;
        Some((at, *self.words.get(at)?))
    }

    #[inline]
    fn start_of(&self, slot: u32) -> Option<usize> {
        match slot & CROWDED {
            0 => Some(slot as usize),
            _ => self.nodes.get((slot & !CROWDED) as usize).map(|node| node.start as usize),
        }
    }
}

struct Building<W> {
    nodes: Vec<Node<W>>,
    index: Vec<u32>,
    words: Vec<W>,
}

impl<W: Word> Building<W> {
    /// Cuts ranges, of which the first has the word at `start`, into slots.
    fn node(&mut self, ranges: &[Range<W>], start: usize) -> Node<W> {
        let base = ranges.first().map_or(W::ZERO, |range| range.first);
        let offset = |range: &Range<W>| range.first.minus(base).unwrap_or(W::ZERO);
        let span = ranges.last().map_or(W::ZERO, offset);
        let slots = (ranges.len() * size_of::<W>() / BYTES_PER_SLOT).max(4);
        // Two bits fewer than a word has, so that the answer fits beside them.
        let rest = span.length().saturating_sub(slots.next_power_of_two().ilog2()).min(W::BITS - ANSWER_BITS);
        let last_slot = span.shifted(rest);

        let slots = self.index.len();
        self.index.resize(slots + last_slot + 2, position(start + ranges.len()));
        let mut at = 0;
        for slot in 0..=last_slot {
            let rest_of_them = ranges.get(at..).unwrap_or_default();
            let here = rest_of_them.partition_point(|range| offset(range).shifted(rest) <= slot);
            let here = rest_of_them.get(..here).unwrap_or_default();
            let entry = if here.len() > MOST_WORDS {
                let node = self.node(here, start + at);
                self.nodes.push(node);
                CROWDED | position(self.nodes.len() - 1)
            } else {
                let words = self.words.iter_mut().skip(start + at);
                words.zip(here).for_each(|(word, range)| *word = offset(range).packed(rest, range.answer));
                position(start + at)
            };
            if let Some(place) = self.index.get_mut(slots + slot) {
                *place = entry;
            }
            at += here.len();
        }
        let (start, end) = (position(start), position(start + ranges.len()));
        Node { base, rest, slots, last_slot, start, end }
    }
}

/// A list is refused long before its positions do not fit.
fn position(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// From its first address to the next range.
#[derive(Clone, Copy)]
struct Range<W> {
    first: W,
    bits: u8,
    answer: u8,
}

/// Cuts nested prefixes into ranges side by side.
fn flatten<W: Word>(entries: &[Entry<W>]) -> Vec<Range<W>> {
    let mut ranges = Vec::with_capacity(entries.len());
    // The prefixes around where we are, the innermost last, with their last addresses.
    let mut around: Vec<(W, Entry<W>)> = Vec::new();
    for entry in entries {
        while let Some((last, _)) = around.pop_if(|(last, _)| *last < entry.first) {
            close(&mut ranges, last, around.last().map(|(_, outer)| *outer));
        }
        start(&mut ranges, Range { first: entry.first, bits: entry.bits, answer: entry.answer });
        around.push((entry.first.last_of(entry.bits), *entry));
    }
    while let Some((last, _)) = around.pop() {
        close(&mut ranges, last, around.last().map(|(_, outer)| *outer));
    }
    ranges
}

/// Behind a prefix the one around it goes on, or nothing.
fn close<W: Word>(ranges: &mut Vec<Range<W>>, last: W, outer: Option<Entry<W>>) {
    if let Some(first) = last.next() {
        let (bits, answer) = outer.map_or((0, 0), |outer| (outer.bits, outer.answer));
        start(ranges, Range { first, bits, answer });
    }
}

/// Starts a range: in place of one that would start at the same address, and as part of one that says the same.
fn start<W: Word>(ranges: &mut Vec<Range<W>>, range: Range<W>) {
    ranges.pop_if(|before| before.first == range.first);
    // Neighbours of the same length stay apart by their bits, so one range can stand for both.
    let goes_on = |before: &Range<W>| (before.bits, before.answer) == (range.bits, range.answer);
    if !ranges.last().is_some_and(goes_on) {
        ranges.push(range);
    }
}
