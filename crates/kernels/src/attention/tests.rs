//! Attention against its definition, and its independence of everything that must not matter.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::KvType;
use crate::kv_cache::Part;

#[test]
fn sees_only_the_window() {
    let pool = Pool::new(1).unwrap();
    let mut cache = KvCache::new(KvType::F16, 1, 1, 2);
    let tables = [vec![0]];
    cache.store(&tables[0], 0, &[0.0; 8], &[8.0, 1.0, 4.0, 1.0, 2.0, 1.0, 100.0, 1.0]);
    let mut scratch = AttentionScratch::new(1, 1, 2, 4);
    let mut shape = Attention { query_heads: 1, head_dim: 2, scale: 1.0, window: None, kv_head_of: &[0] };
    let stretches = [Stretch { slot: 0, first_position: 1, tokens: 2 }];
    let batch = Batch { cache: &cache, tables: &tables, stretches: &stretches };
    let mut out = [0.0; 4];
    attend(&pool, &shape, batch, &[1.0; 4], &mut out, &mut scratch);
    assert_eq!(out, [6.0, 1.0, 14.0 / 3.0, 1.0]);
    shape.window = Some(2);
    attend(&pool, &shape, batch, &[1.0; 4], &mut out, &mut scratch);
    assert_eq!(out, [6.0, 1.0, 3.0, 1.0]);
}

/// A filled cache and the queries of all its positions.
struct Case {
    kv_head_of: Vec<usize>,
    head_dim: usize,
    window: Option<usize>,
    positions: usize,
    cache: KvCache,
    /// Of one sequence, whose blocks lie in the cache anyhow.
    tables: [Vec<u32>; 1],
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { kv_head_of, head_dim, window, positions, .. } = self;
        let kind = self.cache.kind();
        write!(formatter, "{kind:?}, heads {kv_head_of:?} of {head_dim}, window {window:?}, {positions} positions")
    }
}

impl Case {
    fn new(kind: KvType, kv_head_of: Vec<usize>, head_dim: usize, window: Option<usize>, positions: usize) -> Case {
        let kv_heads = 3;
        let numbers = |count: usize, factor: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * factor + i / 7 * 31) % 257) as f32 / 64.0 - 2.0).collect()
        };
        let mut keys = numbers(positions * kv_heads * head_dim, 101);
        let mut values = numbers(positions * kv_heads * head_dim, 67);
        let queries = numbers(positions * kv_head_of.len() * head_dim, 151);
        let blocks = positions.div_ceil(KEYS) as u32;
        let mut cache = KvCache::new(kind, blocks as usize + 1, kv_heads, head_dim);
        // Some of them are adjacent, others are not.
        let table: Vec<u32> =
            (0..blocks).map(|block| if block < blocks / 2 { block } else { 3 * blocks / 2 - block }).collect();
        cache.store(&table, 0, &keys, &values);
        // What the reference takes is what the cache holds.
        for (part, numbers) in [(Part::Keys, &mut keys), (Part::Values, &mut values)] {
            for (i, number) in numbers.chunks_mut(head_dim).enumerate() {
                number.copy_from_slice(&cache.stored(part, i % kv_heads, &table, i / kv_heads)[..head_dim]);
            }
        }
        Case { kv_head_of, head_dim, window, positions, cache, tables: [table], keys, values, queries }
    }

    fn attend(&self, threads: usize, positions: Range<usize>) -> Vec<f32> {
        self.attend_all(threads, &[positions])
    }

    /// The outputs of several stretches, all of which see the same sequence.
    fn attend_all(&self, threads: usize, positions: &[Range<usize>]) -> Vec<f32> {
        let heads = self.kv_head_of.len();
        let token = heads * self.head_dim;
        let shape = Attention {
            query_heads: heads,
            head_dim: self.head_dim,
            scale: 0.3,
            window: self.window,
            kv_head_of: &self.kv_head_of,
        };
        let mut scratch = AttentionScratch::new(threads, heads, self.head_dim, self.positions);
        let pool = Pool::new(threads).unwrap();
        let queries = positions.iter().flat_map(|range| &self.queries[range.start * token..range.end * token]);
        let q: Vec<f32> = queries.copied().collect();
        let stretch = |range: &Range<usize>| Stretch { slot: 0, first_position: range.start, tokens: range.len() };
        let stretches: Vec<_> = positions.iter().map(stretch).collect();
        let mut out = vec![f32::NAN; q.len()];
        let batch = Batch { cache: &self.cache, tables: &self.tables, stretches: &stretches };
        attend(&pool, &shape, batch, &q, &mut out, &mut scratch);
        out
    }

    /// The output of one head at one position, in double precision.
    fn reference(&self, position: usize, head: usize) -> Vec<f64> {
        let (dim, heads) = (self.head_dim, self.kv_head_of.len());
        let query = &self.queries[(position * heads + head) * dim..][..dim];
        let at = |data: &[f32], key: usize| data[(key * 3 + self.kv_head_of[head]) * dim..][..dim].to_vec();
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let scores = (first..=position).map(|key| {
            let products = query.iter().zip(at(&self.keys, key)).map(|(q, k)| f64::from(*q) * f64::from(k));
            products.sum::<f64>() * f64::from(0.3f32)
        });
        let scores: Vec<f64> = scores.collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; dim];
        for (key, weight) in (first..=position).zip(weights) {
            for (out, value) in out.iter_mut().zip(at(&self.values, key)) {
                *out += weight / sum * f64::from(value);
            }
        }
        out
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let heads = select(vec![vec![0], vec![0, 0, 0, 1, 1, 1, 2, 2, 2], vec![2, 0, 1, 0], vec![1; 19]]);
    let dims = select(vec![3usize, 8, 16, 40, 64]);
    let window = prop_oneof![Just(None), (1usize..100).prop_map(Some), (500usize..700).prop_map(Some)];
    let positions = prop_oneof![1usize..70, 500usize..1200];
    (select(vec![KvType::F32, KvType::F16, KvType::Q8_0]), heads, dims, window, positions)
        .prop_map(|(kind, heads, dim, window, positions)| Case::new(kind, heads, dim, window, positions))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn agrees_with_the_definition_however_it_is_called(
        case in any_case(),
        threads in 1usize..4,
        places in prop::array::uniform3(any::<prop::sample::Index>()),
    ) {
        let (heads, dim) = (case.kv_head_of.len(), case.head_dim);
        let whole = case.attend(threads, 0..case.positions);
        for place in places {
            let position = place.index(case.positions);
            let head = place.index(heads);
            let found = &whole[(position * heads + head) * dim..][..dim];
            for (found, expected) in found.iter().zip(case.reference(position, head)) {
                prop_assert!((f64::from(*found) - expected).abs() < 2e-5, "{} is not {}", found, expected);
            }
            let token = &whole[position * heads * dim..][..heads * dim];
            for threads in [1, 2] {
                let alone = case.attend(threads, position..position + 1);
                prop_assert!(alone.iter().zip(token).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            let end = case.positions.min(position + 37);
            let part = case.attend(threads, position..end);
            let expected = &whole[position * heads * dim..end * heads * dim];
            prop_assert!(part.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        let several = places.map(|place| place.index(case.positions)).map(|first| first..case.positions.min(first + 9));
        let together = case.attend_all(threads, &several);
        let expected = several.iter().flat_map(|range| &whole[range.start * heads * dim..range.end * heads * dim]);
        prop_assert!(together.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn plain_code_computes_the_same_bits() {
    for kind in [KvType::F16, KvType::Q8_0] {
        check_plain_code(kind);
    }
}

fn check_plain_code(kind: KvType) {
    let case = Case::new(kind, vec![0, 0, 1, 1], 24, None, 600);
    let shape = Attention { query_heads: 4, head_dim: 24, scale: 0.3, window: None, kv_head_of: &case.kv_head_of };
    let (cache, table) = (&case.cache, &case.tables[0][..]);
    let queries = Queries { cache, table, token: 590, first_position: 590, count: 4 };
    let expected = case.attend(1, 590..594);
    let mut rows = Rows::new(ROWS, 24);
    let portion = Portion { shape: &shape, q: &case.queries, queries, heads: &[2, 3], spans: None, rows: &mut rows };
    crate::simd::run_portable(portion);
    let mut found = vec![0.0; 8 * 24];
    rows.write(|row| row * 24, 24, SharedValues::new(&mut found));
    for (row, found) in found.chunks(24).enumerate() {
        assert_eq!(found, &expected[(row / 2 * 4 + 2 + row % 2) * 24..][..24]);
    }
}
