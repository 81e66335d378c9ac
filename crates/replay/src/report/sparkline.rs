//! Charts in one line of text.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns one block character for each value; zero is a space.
pub(super) fn sparkline(values: &[u64]) -> String {
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let sign = |value: &u64| match value {
        0 => ' ',
        value => BLOCKS[((value * 8).div_ceil(most) as usize).clamp(1, 8) - 1],
    };
    values.iter().map(sign).collect()
}

/// Sums adjacent values so that at most `width` remain.
pub(super) fn downsample(values: impl Iterator<Item = u64>, width: usize) -> Vec<u64> {
    let values: Vec<u64> = values.collect();
    let each = values.len().div_ceil(width.max(1)).max(1);
    values.chunks(each).map(|chunk| chunk.iter().sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparkline_fits_width() {
        assert_eq!(sparkline(&downsample([0, 1, 4, 8].into_iter(), 10)), " ▁▄█");
        assert_eq!(downsample([1, 1, 4, 4].into_iter(), 2), [2, 8]);
        assert_eq!(sparkline(&[2, 8]), "▂█");
        assert_eq!(sparkline(&downsample([].into_iter(), 10)), "");
    }
}
