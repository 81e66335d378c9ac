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
//! The index has so many slots that a run is half a cache line on average: two places in memory are touched. The
//! surprise: a word holds the answer in the two bits that its start can spare, because the index knows the top bits.

/// An address as a number, and a word of a table.
pub(super) trait Word: Copy + Ord {
    const ZERO: Self;
    const MAX: Self;
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
            const MAX: Self = Self::MAX;
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
/// What the words of a slot take on average; at a million entries twice as much is no faster, and half is no smaller.
const BYTES_PER_SLOT: usize = 32;

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
    /// The lowest address of any prefix.
    base: W,
    /// Bits of a start that are left to its word.
    rest: u32,
    last_slot: usize,
    /// Where the run of a slot starts, and at the end where the last one ends.
    index: Box<[u32]>,
    words: Box<[W]>,
    /// The length of the prefix that made a range; only needed to explain it.
    bits: Box<[u8]>,
}

impl<W: Word> Ranges<W> {
    /// Lays prefixes flat that are sorted by first address and length, none of them twice.
    pub(super) fn new(entries: &[Entry<W>]) -> Self {
        let ranges = flatten(entries);
        let (Some(lowest), Some(highest)) = (ranges.first(), ranges.last()) else { return Self::empty() };
        let base = lowest.first;
        let span = highest.first.minus(base).unwrap_or(W::ZERO);
        let slots = (ranges.len() * size_of::<W>() / BYTES_PER_SLOT).max(4).next_power_of_two();
        // Two bits fewer than a word has, so that the answer fits beside them.
        let rest = span.length().saturating_sub(slots.ilog2()).min(W::BITS - ANSWER_BITS);
        let last_slot = span.shifted(rest);

        let mut table =
            Packing { index: Vec::with_capacity(last_slot + 2), words: Vec::new(), bits: Vec::new() };
        let mut ranges = ranges.into_iter().peekable();
        let mut before = Range { first: base, bits: 0, answer: 0 };
        for slot in 0..=last_slot {
            table.open_slot();
            // A slot says by itself what holds at its start, so that no run is ever empty.
            let offset = |range: &Range<W>| range.first.minus(base).unwrap_or(W::ZERO);
            let starts_here = |range: &Range<W>| offset(range).shifted(rest) == slot;
            if !ranges
                .peek()
                .is_some_and(|range| starts_here(range) && offset(range).packed(rest, 0) == W::ZERO)
            {
                table.push(W::ZERO.packed(rest, before.answer), before.bits);
            }
            while let Some(range) = ranges.next_if(starts_here) {
                table.push(offset(&range).packed(rest, range.answer), range.bits);
                before = range;
            }
        }
        table.open_slot();
        let Packing { index, words, bits } = table;
        Self { base, rest, last_slot, index: index.into(), words: words.into(), bits: bits.into() }
    }

    fn empty() -> Self {
        let nothing = Packing { index: Vec::new(), words: Vec::<W>::new(), bits: Vec::new() };
        Self {
            base: W::ZERO,
            rest: 0,
            last_slot: 0,
            index: nothing.index.into(),
            words: nothing.words.into(),
            bits: nothing.bits.into(),
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
        size_of_val(&*self.index) + size_of_val(&*self.words) + size_of_val(&*self.bits)
    }

    /// The last word that starts at or before the address, and where it lies.
    #[inline]
    fn word_of(&self, address: W) -> Option<(usize, W)> {
        let offset = address.minus(self.base)?;
        let slot = offset.shifted(self.rest);
        // Behind the last start there is one range more, to the end of all addresses.
        let (slot, sought) = match slot > self.last_slot {
            true => (self.last_slot, W::MAX),
            false => (slot, offset.packed(self.rest, 0b11)),
        };
        let start = *self.index.get(slot)? as usize;
        let end = *self.index.get(slot + 1)? as usize;
        let run = self.words.get(start..end)?;
        let at = run.partition_point(|word| *word <= sought).checked_sub(1)?;
        Some((start + at, *run.get(at)?))
    }
}

struct Packing<W> {
    index: Vec<u32>,
    words: Vec<W>,
    bits: Vec<u8>,
}

impl<W> Packing<W> {
    fn open_slot(&mut self) {
        // A list is refused long before this is too small.
        self.index.push(u32::try_from(self.words.len()).unwrap_or(u32::MAX));
    }

    fn push(&mut self, word: W, bits: u8) {
        self.words.push(word);
        self.bits.push(bits);
    }
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
