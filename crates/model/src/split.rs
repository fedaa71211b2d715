//! Who computes what: shares of heads, rows and layers. Pure arithmetic.

use std::ops::Range;

/// Cuts `count` units into consecutive ranges, one per share, in proportion to the shares (largest remainder).
///
/// Shares need not be whole or sum to anything; a share of 0, or more shares than units, gives empty ranges. Shares
/// that are not positive numbers count as 0; if none is positive, all are equal.
pub fn proportional(count: usize, shares: &[f64]) -> Vec<Range<usize>> {
    let usable = |share: f64| if share.is_finite() && share > 0.0 { share } else { 0.0 };
    let total: f64 = shares.iter().map(|&share| usable(share)).sum();
    let part = |share: f64| if total > 0.0 { usable(share) / total } else { 1.0 / shares.len() as f64 };
    let exact: Vec<f64> = shares.iter().map(|&share| part(share) * count as f64).collect();
    let mut sizes: Vec<usize> = exact.iter().map(|size| size.floor() as usize).collect();
    let mut by_remainder: Vec<usize> = (0..shares.len()).collect();
    by_remainder.sort_by(|&a, &b| {
        let remainder = |index: usize| exact[index] - exact[index].floor();
        remainder(b).total_cmp(&remainder(a)).then(a.cmp(&b))
    });
    let missing = count.saturating_sub(sizes.iter().sum());
    for &index in by_remainder.iter().cycle().take(missing) {
        sizes[index] += 1;
    }
    let mut start = 0;
    sizes
        .into_iter()
        .map(|size| {
            let range = start..(start + size).min(count);
            start = range.end;
            range
        })
        .collect()
}

/// The same with every cut at a multiple of `unit`, except at the end of the whole.
pub fn proportional_units(count: usize, unit: usize, shares: &[f64]) -> Vec<Range<usize>> {
    let units = proportional(count.div_ceil(unit), shares);
    units.into_iter().map(|range| (range.start * unit).min(count)..(range.end * unit).min(count)).collect()
}

/// Shares `layers` out over the stages of a pipeline, the last of which has a head to compute as well that is worth `head`
/// layers. No stage goes without a layer as long as there are enough.
pub fn stages(layers: usize, head: f64, stages: usize) -> Vec<Range<usize>> {
    let even = (layers as f64 + head) / stages as f64;
    let last = ((even - head).round().max(1.0) as usize).min(layers / stages.max(1));
    let mut ranges = proportional(layers - last, &vec![1.0; stages.saturating_sub(1)]);
    ranges.push(layers - last..layers);
    ranges
}

/// The KV heads that a range of query heads needs, where `group` query heads share each. A KV head whose group is cut
/// is needed on both sides of the cut.
pub fn kv_heads_for(heads: &Range<usize>, group: usize) -> Range<usize> {
    if heads.is_empty() {
        return 0..0;
    }
    heads.start / group..heads.end.div_ceil(group)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nine_heads_over_two_and_five_ranks() {
        assert_eq!(proportional(9, &[1.0, 1.0]), [0..5, 5..9]);
        assert_eq!(proportional(9, &[1.0; 5]), [0..2, 2..4, 4..6, 6..8, 8..9]);
        assert_eq!(kv_heads_for(&(0..5), 3), 0..2);
        assert_eq!(kv_heads_for(&(5..9), 3), 1..3);
    }

    #[test]
    fn shares_may_be_uneven_or_more_than_the_units() {
        assert_eq!(proportional(30, &[2.0, 1.0]), [0..20, 20..30]);
        assert_eq!(proportional(2, &[1.0; 3]), [0..1, 1..2, 2..2]);
        assert_eq!(proportional(4, &[0.0, f64::NAN]), [0..2, 2..4]);
        assert_eq!(proportional_units(100, 32, &[1.0, 1.0]), [0..64, 64..100]);
        assert_eq!(kv_heads_for(&(3..3), 3), 0..0);
    }

    #[test]
    fn a_head_takes_the_place_of_layers() {
        assert_eq!(stages(7, 0.0, 3), [0..3, 3..5, 5..7]);
        assert_eq!(stages(30, 4.0, 3), [0..12, 12..23, 23..30]);
        assert_eq!(stages(18, 15.0, 3), [0..9, 9..17, 17..18]);
        assert_eq!(stages(18, 15.0, 1)[0], 0..18);
        assert_eq!(stages(2, 1.0, 3), [0..1, 1..2, 2..2]);
    }

    proptest! {
        #[test]
        fn stages_cover_all_layers_in_order(layers in 0_usize..200, head in 0.0..50.0, count in 1_usize..12) {
            let ranges = stages(layers, head, count);
            prop_assert_eq!(ranges.len(), count);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert_eq!((ranges[0].start, ranges[count - 1].end), (0, layers));
            prop_assert!(layers < count || ranges.iter().all(|range| !range.is_empty()));
        }

        #[test]
        fn ranges_cover_everything_once_in_order(
            count in 0_usize..5_000,
            unit in 1_usize..64,
            shares in prop::collection::vec(-1.0_f64..100.0, 1..12),
        ) {
            for ranges in [proportional(count, &shares), proportional_units(count, unit, &shares)] {
                prop_assert_eq!(ranges.len(), shares.len());
                let mut next = 0;
                for range in &ranges {
                    prop_assert_eq!(range.start, next);
                    prop_assert!(range.start <= range.end);
                    next = range.end;
                }
                prop_assert_eq!(next, count);
            }
        }
    }
}
