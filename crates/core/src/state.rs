//! The state of an algorithm: a few 64-bit words that a store provides.

/// The state of one key, as 64-bit words in a store. All zero means an unused key.
///
/// A store implements it on its own cells, so that a decision copies nothing; tests use a slice.
pub trait AlgorithmState {
    /// The word at `index`.
    fn get(&self, index: usize) -> u64;
    /// Replaces the word at `index`.
    fn set(&mut self, index: usize, value: u64);

    /// Returns the words from `start`, for a state that shares its cell with others.
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

/// The words of another state from an offset.
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
