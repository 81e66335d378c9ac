//! Figures of a line of text.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One sign for each value, as high as it is large. Nothing is a blank.
pub(super) fn sparkline(values: impl Iterator<Item = u64> + Clone, width: usize) -> String {
    let values = squeezed(values, width);
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let sign = |value: &u64| match value {
        0 => ' ',
        value => BLOCKS[((value * 8).div_ceil(most) as usize).clamp(1, 8) - 1],
    };
    values.iter().map(sign).collect()
}

/// So many values at most, those that stand together added up.
fn squeezed(values: impl Iterator<Item = u64> + Clone, width: usize) -> Vec<u64> {
    let count = values.clone().count();
    let each = count.div_ceil(width.max(1)).max(1);
    let values: Vec<u64> = values.collect();
    values.chunks(each).map(|chunk| chunk.iter().sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_is_as_wide_as_there_is_room() {
        assert_eq!(sparkline([0, 1, 4, 8].into_iter(), 10), " ▁▄█");
        assert_eq!(sparkline([1, 1, 4, 4].into_iter(), 2), "▂█");
        assert_eq!(sparkline([].into_iter(), 10), "");
    }
}
