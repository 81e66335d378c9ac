//! Where an algorithm keeps its state: a few 64-bit words that a store lends it.

/// The state of one key, as the words that a store keeps for it. All zero means "never seen".
///
/// A store lends its own cells, so that a decision copies nothing; a test lends a plain slice.
pub trait AlgorithmState {
    /// The word at `index`.
    fn get(&self, index: usize) -> u64;
    /// Replaces the word at `index`.
    fn set(&mut self, index: usize, value: u64);

    /// A window on the words from `start` on, for a state that shares its cell with others.
    fn offset(&mut self, start: usize) -> OffsetState<'_, Self> {
        OffsetState { inner: self, start }
    }
}

impl AlgorithmState for [u64] {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self[index]
    }

    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self[index] = word;
    }
}

/// The words of another state, counted from a later start.
#[derive(Debug)]
pub struct OffsetState<'a, W: ?Sized> {
    inner: &'a mut W,
    start: usize,
}

impl<W: AlgorithmState + ?Sized> AlgorithmState for OffsetState<'_, W> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.inner.get(self.start + index)
    }

    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self.inner.set(self.start + index, word);
    }
}
