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
pub(super) trait AddressInt: Copy + Ord {
    const ZERO: Self;
    const BITS: u32;
    fn offset_from(self, other: Self) -> Option<Self>;
    /// The next number, if there is one.
    fn successor(self) -> Option<Self>;
    /// The last of all numbers that share the first `bits` with this one.
    fn last_in_prefix(self, bits: u8) -> Self;
    /// Bits that are needed to write it.
    fn bit_len(self) -> u32;
    fn shift_right(self, by: u32) -> usize;
    /// The low bits of a start, with an answer.
    fn pack(self, bits: u32, code: u8) -> Self;
    fn code(self) -> u8;
}

macro_rules! impl_address_int {
    ($word:ty) => {
        impl AddressInt for $word {
            const ZERO: Self = 0;
            const BITS: u32 = Self::BITS;

            #[inline]
            fn offset_from(self, other: Self) -> Option<Self> {
                self.checked_sub(other)
            }

            fn successor(self) -> Option<Self> {
                self.checked_add(1)
            }

            fn last_in_prefix(self, bits: u8) -> Self {
                self | Self::MAX.checked_shr(bits.into()).unwrap_or(0)
            }

            fn bit_len(self) -> u32 {
                Self::BITS - self.leading_zeros()
            }

            #[inline]
            fn shift_right(self, by: u32) -> usize {
                usize::try_from(self >> by).unwrap_or(usize::MAX)
            }

            #[inline]
            fn pack(self, bits: u32, code: u8) -> Self {
                ((self & ((1 << bits) - 1)) << CODE_BITS) | Self::from(code)
            }

            #[inline]
            fn code(self) -> u8 {
                (self & 0b11) as u8
            }
        }
    };
}

impl_address_int!(u32);
impl_address_int!(u128);

const CODE_BITS: u32 = 2;
/// What the words of a slot take on average, or up to half of that.
const BYTES_PER_SLOT: usize = 16;

/// One prefix with an answer from 1 to 3; 0 is for addresses without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PrefixEntry<W> {
    pub(super) first: W,
    pub(super) bits: u8,
    pub(super) code: u8,
}

/// All addresses of one family, each with its answer.
#[derive(Debug)]
pub(super) struct Ranges<W> {
    root: RangeNode<W>,
    /// The parts of slots that are too crowded to be searched.
    nodes: Box<[RangeNode<W>]>,
    /// For each slot of a node where its words start, and at the end of a node where they end. If [`NODE_FLAG`], the
    /// number of the node that the slot is cut into.
    index: Box<[u32]>,
    words: Box<[W]>,
    /// The length of the prefix that made a range; only needed to explain it.
    bits: Box<[u8]>,
}

/// A stretch of the address space, cut into slots of equal size.
#[derive(Clone, Copy, Debug)]
struct RangeNode<W> {
    /// The first start in it.
    base: W,
    /// Bits of an offset that are left to the word.
    offset_bits: u32,
    /// Where its slots are in the index.
    slots: usize,
    last_slot: usize,
    /// Where its words are.
    start: u32,
    end: u32,
}

const NODE_FLAG: u32 = 1 << 31;
/// Words of a slot that are searched one by one, by halves; with more, the slot is cut again.
const MAX_SLOT_WORDS: usize = 256;

impl<W: AddressInt> Ranges<W> {
    /// Lays prefixes flat that are sorted by first address and length, none of them twice.
    pub(super) fn new(entries: &[PrefixEntry<W>]) -> Self {
        let ranges = flatten(entries);
        let mut table =
            RangesBuilder { words: vec![W::ZERO; ranges.len()], nodes: Vec::new(), index: Vec::new() };
        let root = table.build_node(&ranges, 0);
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
    pub(super) fn code(&self, address: W) -> u8 {
        self.find_word(address).map_or(0, |(_, word)| word.code())
    }

    /// The answer, and the length of the prefix that gave it.
    pub(super) fn find(&self, address: W) -> Option<(u8, u8)> {
        let (position, word) = self.find_word(address)?;
        let bits = *self.bits.get(position)?;
        (word.code() != 0).then(|| (word.code(), bits))
    }

    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let index = size_of_val(&*self.nodes) + size_of_val(&*self.index);
        index + size_of_val(&*self.words) + size_of_val(&*self.bits)
    }

    /// The last word that starts at or before the address, and where it lies.
    #[inline]
    fn find_word(&self, address: W) -> Option<(usize, W)> {
        let mut node = &self.root;
        let after = loop {
            let Some(offset) = address.offset_from(node.base) else { break node.start as usize };
            let slot = offset.shift_right(node.offset_bits);
            if slot > node.last_slot {
                break node.end as usize;
            }
            let start = *self.index.get(node.slots + slot)?;
            if start & NODE_FLAG == 0 {
                let end = self.slot_start(*self.index.get(node.slots + slot + 1)?)?;
                let run = self.words.get(start as usize..end)?;
                let sought = offset.pack(node.offset_bits, 0b11);
                break start as usize + run.partition_point(|word| *word <= sought);
            }
            node = self.nodes.get((start & !NODE_FLAG) as usize)?;
        };
        // In a slot without a start before the address, what started last goes on.
        let at = after.checked_sub(1)?;
        Some((at, *self.words.get(at)?))
    }

    #[inline]
    fn slot_start(&self, slot: u32) -> Option<usize> {
        match slot & NODE_FLAG {
            0 => Some(slot as usize),
            _ => self.nodes.get((slot & !NODE_FLAG) as usize).map(|node| node.start as usize),
        }
    }
}

struct RangesBuilder<W> {
    nodes: Vec<RangeNode<W>>,
    index: Vec<u32>,
    words: Vec<W>,
}

impl<W: AddressInt> RangesBuilder<W> {
    /// Cuts ranges, of which the first has the word at `start`, into slots.
    fn build_node(&mut self, ranges: &[AddressRange<W>], start: usize) -> RangeNode<W> {
        let base = ranges.first().map_or(W::ZERO, |range| range.first);
        let offset = |range: &AddressRange<W>| range.first.offset_from(base).unwrap_or(W::ZERO);
        let span = ranges.last().map_or(W::ZERO, offset);
        let slots = (ranges.len() * size_of::<W>() / BYTES_PER_SLOT).max(4);
        // Two bits fewer than a word has, so that the answer fits beside them.
        let rest = span.bit_len().saturating_sub(slots.next_power_of_two().ilog2()).min(W::BITS - CODE_BITS);
        let last_slot = span.shift_right(rest);

        let slots = self.index.len();
        self.index.resize(slots + last_slot + 2, to_position(start + ranges.len()));
        let mut at = 0;
        for slot in 0..=last_slot {
            let rest_of_them = ranges.get(at..).unwrap_or_default();
            let here = rest_of_them.partition_point(|range| offset(range).shift_right(rest) <= slot);
            let here = rest_of_them.get(..here).unwrap_or_default();
            let entry = if here.len() > MAX_SLOT_WORDS {
                let node = self.build_node(here, start + at);
                self.nodes.push(node);
                NODE_FLAG | to_position(self.nodes.len() - 1)
            } else {
                let words = self.words.iter_mut().skip(start + at);
                words.zip(here).for_each(|(word, range)| *word = offset(range).pack(rest, range.code));
                to_position(start + at)
            };
            if let Some(place) = self.index.get_mut(slots + slot) {
                *place = entry;
            }
            at += here.len();
        }
        let (start, end) = (to_position(start), to_position(start + ranges.len()));
        RangeNode { base, offset_bits: rest, slots, last_slot, start, end }
    }
}

/// A list is refused long before its positions do not fit.
fn to_position(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// From its first address to the next range.
#[derive(Clone, Copy)]
struct AddressRange<W> {
    first: W,
    bits: u8,
    code: u8,
}

/// Cuts nested prefixes into ranges side by side.
fn flatten<W: AddressInt>(entries: &[PrefixEntry<W>]) -> Vec<AddressRange<W>> {
    let mut ranges = Vec::with_capacity(entries.len());
    // The prefixes around where we are, the innermost last, with their last addresses.
    let mut around: Vec<(W, PrefixEntry<W>)> = Vec::new();
    for entry in entries {
        while let Some((last, _)) = around.pop_if(|(last, _)| *last < entry.first) {
            close_range(&mut ranges, last, around.last().map(|(_, outer)| *outer));
        }
        push_range(&mut ranges, AddressRange { first: entry.first, bits: entry.bits, code: entry.code });
        around.push((entry.first.last_in_prefix(entry.bits), *entry));
    }
    while let Some((last, _)) = around.pop() {
        close_range(&mut ranges, last, around.last().map(|(_, outer)| *outer));
    }
    ranges
}

/// Behind a prefix the one around it goes on, or nothing.
fn close_range<W: AddressInt>(ranges: &mut Vec<AddressRange<W>>, last: W, outer: Option<PrefixEntry<W>>) {
    if let Some(first) = last.successor() {
        let (bits, code) = outer.map_or((0, 0), |outer| (outer.bits, outer.code));
        push_range(ranges, AddressRange { first, bits, code });
    }
}

/// Starts a range: in place of one that would start at the same address, and as part of one that says the same.
fn push_range<W: AddressInt>(ranges: &mut Vec<AddressRange<W>>, range: AddressRange<W>) {
    ranges.pop_if(|before| before.first == range.first);
    // Neighbours of the same length stay apart by their bits, so one range can stand for both.
    let goes_on = |before: &AddressRange<W>| (before.bits, before.code) == (range.bits, range.code);
    if !ranges.last().is_some_and(goes_on) {
        ranges.push(range);
    }
}
