//! The prefixes of one address family, flattened to ranges for a fast longest-prefix match.
//!
//! The longest of nested prefixes wins, which is resolved when the table is built. The result is a list of
//! adjacent ranges with one code each; a lookup finds the last range that starts at or before the address.
//!
//! ```text
//!   10.0.0.0/8 denied   ├──────────────────────────────┤
//!   10.1.0.0/16 allowed        ├─────┤
//!   ranges              ┊ deny ┊allow┊      deny       ┊ unlisted
//!
//!   address − base ──top bits──▶ index ──▶ run of words: │low bits of start·code│low bits of start·code│…
//! ```
//!
//! The index has enough slots that a run fits in a cache line, so a lookup reads two places in memory. A slot with
//! many ranges is divided into slots again. A word stores the code in two bits, because the index already stores
//! the top bits of the start.

/// An address as an integer, and a word of the table.
pub(super) trait AddressInt: Copy + Ord {
    const ZERO: Self;
    const BITS: u32;
    fn offset_from(self, other: Self) -> Option<Self>;
    /// The next integer, if there is one.
    fn successor(self) -> Option<Self>;
    /// The last integer with the same first `bits`.
    fn last_in_prefix(self, prefix_len: u8) -> Self;
    /// The number of significant bits.
    fn bit_len(self) -> u32;
    fn shift_right(self, by: u32) -> usize;
    /// Packs the low `bits` of a start and a code.
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

            fn last_in_prefix(self, prefix_len: u8) -> Self {
                self | Self::MAX.checked_shr(prefix_len.into()).unwrap_or(0)
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
/// The target size of the words of a slot; the average is between half of it and all of it.
const BYTES_PER_SLOT: usize = 16;

/// A prefix with a code from 1 to 3; 0 is for addresses without a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PrefixEntry<W> {
    pub(super) network_address: W,
    pub(super) prefix_len: u8,
    pub(super) code: u8,
}

/// All addresses of one family, with a code each.
#[derive(Debug)]
pub(super) struct Ranges<W> {
    root: RangeNode<W>,
    /// The subdivisions of slots that are too large to search.
    nodes: Box<[RangeNode<W>]>,
    /// The position of the first word of each slot of a node, and a final entry with the end of its last word.
    /// With [`NODE_FLAG`], the number of the node that subdivides the slot.
    index: Box<[u32]>,
    words: Box<[W]>,
    /// The length of the prefix of each range, only to explain a match.
    prefix_lens: Box<[u8]>,
}

/// A part of the address space, divided into slots of equal size.
#[derive(Clone, Copy, Debug)]
struct RangeNode<W> {
    /// The first start in the node.
    base: W,
    /// The number of low bits of an offset that are stored in the word.
    offset_bits: u32,
    /// The position of its slots in the index.
    slots: usize,
    last_slot: usize,
    /// The positions of its words.
    start: u32,
    end: u32,
}

const NODE_FLAG: u32 = 1 << 31;
/// The maximum number of words of a slot for a binary search; larger slots are subdivided.
const MAX_SLOT_WORDS: usize = 256;

impl<W: AddressInt> Ranges<W> {
    /// Flattens prefixes that are sorted by first address and length, without duplicates.
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
            prefix_lens: ranges.iter().map(|range| range.prefix_len).collect(),
        }
    }

    /// The code of an address; 0 without a match.
    #[inline]
    pub(super) fn code(&self, address: W) -> u8 {
        self.find_word(address).map_or(0, |(_, word)| word.code())
    }

    /// The code of an address, and the length of the matching prefix.
    pub(super) fn find(&self, address: W) -> Option<(u8, u8)> {
        let (position, word) = self.find_word(address)?;
        let prefix_len = *self.prefix_lens.get(position)?;
        (word.code() != 0).then(|| (word.code(), prefix_len))
    }

    /// The memory of the table, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let index = size_of_val(&*self.nodes) + size_of_val(&*self.index);
        index + size_of_val(&*self.words) + size_of_val(&*self.prefix_lens)
    }

    /// The last word that starts at or before the address, and its position.
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
        // In a slot without a start before the address, the previous range continues.
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
    /// Divides ranges into slots; the word of the first range is at `start`.
    fn build_node(&mut self, ranges: &[AddressRange<W>], start: usize) -> RangeNode<W> {
        let base = ranges.first().map_or(W::ZERO, |range| range.first);
        let offset = |range: &AddressRange<W>| range.first.offset_from(base).unwrap_or(W::ZERO);
        let span = ranges.last().map_or(W::ZERO, offset);
        let slots = (ranges.len() * size_of::<W>() / BYTES_PER_SLOT).max(4);
        // Two bits less than a word, so that the code fits.
        let rest = span.bit_len().saturating_sub(slots.next_power_of_two().ilog2()).min(W::BITS - CODE_BITS);
        let last_slot = span.shift_right(rest);

        let slots = self.index.len();
        self.index.resize(slots + last_slot + 2, to_position(start + ranges.len()));
        let mut at = 0;
        for slot in 0..=last_slot {
            let unassigned = ranges.get(at..).unwrap_or_default();
            let here = unassigned.partition_point(|range| offset(range).shift_right(rest) <= slot);
            let here = unassigned.get(..here).unwrap_or_default();
            let entry = if here.len() > MAX_SLOT_WORDS {
                let node = self.build_node(here, start + at);
                self.nodes.push(node);
                NODE_FLAG | to_position(self.nodes.len() - 1)
            } else {
                let words = self.words.iter_mut().skip(start + at);
                words.zip(here).for_each(|(word, range)| *word = offset(range).pack(rest, range.code));
                to_position(start + at)
            };
            if let Some(slot_entry) = self.index.get_mut(slots + slot) {
                *slot_entry = entry;
            }
            at += here.len();
        }
        let (start, end) = (to_position(start), to_position(start + ranges.len()));
        RangeNode { base, offset_bits: rest, slots, last_slot, start, end }
    }
}

/// The builder rejects lists whose positions exceed 32 bits.
fn to_position(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// A range from its first address to the start of the next range.
#[derive(Clone, Copy)]
struct AddressRange<W> {
    first: W,
    prefix_len: u8,
    code: u8,
}

/// Flattens nested prefixes to adjacent ranges.
fn flatten<W: AddressInt>(entries: &[PrefixEntry<W>]) -> Vec<AddressRange<W>> {
    let mut ranges = Vec::with_capacity(entries.len());
    // The prefixes that contain the current address, innermost last, with their last addresses.
    let mut around: Vec<(W, PrefixEntry<W>)> = Vec::new();
    for entry in entries {
        while let Some((last, _)) = around.pop_if(|(last, _)| *last < entry.network_address) {
            close_range(&mut ranges, last, around.last().map(|(_, outer)| *outer));
        }
        push_range(
            &mut ranges,
            AddressRange { first: entry.network_address, prefix_len: entry.prefix_len, code: entry.code },
        );
        around.push((entry.network_address.last_in_prefix(entry.prefix_len), *entry));
    }
    while let Some((last, _)) = around.pop() {
        close_range(&mut ranges, last, around.last().map(|(_, outer)| *outer));
    }
    ranges
}

/// After the end of a prefix, the prefix around it continues, or none.
fn close_range<W: AddressInt>(ranges: &mut Vec<AddressRange<W>>, last: W, outer: Option<PrefixEntry<W>>) {
    if let Some(first) = last.successor() {
        let (prefix_len, code) = outer.map_or((0, 0), |outer| (outer.prefix_len, outer.code));
        push_range(ranges, AddressRange { first, prefix_len, code });
    }
}

/// Adds a range. It replaces one with the same start, and extends one with the same prefix length and code.
fn push_range<W: AddressInt>(ranges: &mut Vec<AddressRange<W>>, range: AddressRange<W>) {
    ranges.pop_if(|before| before.first == range.first);
    // Adjacent prefixes of the same length differ in their bits, so one range represents both.
    let continues =
        |before: &AddressRange<W>| (before.prefix_len, before.code) == (range.prefix_len, range.code);
    if !ranges.last().is_some_and(continues) {
        ranges.push(range);
    }
}
