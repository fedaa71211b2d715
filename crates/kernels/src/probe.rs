//! How fast this machine reads memory and multiplies at best: the limits against which kernels are held.
//!
//! The functions do a known amount of work on all threads of a pool; whoever calls them takes the time.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Pool;
use crate::simd::{CODES, Simd, Task, dispatch, peak};

/// Bytes that are read at a time.
const STRIDE: usize = 8 * CODES;

/// Reads all of `bytes`, `times` times, each thread a part of its own, and returns something that depends on them.
pub fn read(pool: &Pool, bytes: &[u8], times: usize) -> u64 {
    let part = bytes.len().div_ceil(pool.threads()).next_multiple_of(STRIDE);
    let combined = AtomicU64::new(0);
    pool.run(&|thread| {
        let bytes = bytes.get(thread * part..).unwrap_or_default();
        let bytes = &bytes[..part.min(bytes.len())];
        for _ in 0..times {
            combined.fetch_xor(dispatch(Read { bytes: black_box(bytes) }), Ordering::Relaxed);
        }
    });
    combined.into_inner()
}

/// Adds up products of 8-bit integers in registers, and returns how many multiplications and additions all threads made
/// together. More `steps` take longer.
pub fn integer_products(pool: &Pool, steps: u64) -> u64 {
    on_all_threads(pool, || peak::integer_products(steps))
}

/// The same with 32-bit floats.
pub fn float_products(pool: &Pool, steps: u64) -> u64 {
    on_all_threads(pool, || peak::float_products(steps))
}

fn on_all_threads(pool: &Pool, work: impl Fn() -> u64 + Sync) -> u64 {
    let operations = AtomicU64::new(0);
    pool.run(&|_| {
        operations.fetch_add(work(), Ordering::Relaxed);
    });
    operations.into_inner()
}

/// All bits that are set in some bytes.
struct Read<'a> {
    bytes: &'a [u8],
}

impl Task for Read<'_> {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u64 {
        let (strides, rest) = self.bytes.as_chunks::<STRIDE>();
        let mut seen = [simd.splat_codes(&[0; 4]); STRIDE / CODES];
        for stride in strides {
            for (seen, codes) in seen.iter_mut().zip(stride.as_chunks().0) {
                *seen = simd.or(*seen, simd.load_codes(codes));
            }
        }
        let mut all = [0; CODES];
        simd.store_codes(seen.into_iter().fold(seen[0], |all, seen| simd.or(all, seen)), &mut all);
        all.iter().chain(rest).fold(0, |all, byte| all.rotate_left(8) ^ u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let mut bytes = vec![0; 3 * STRIDE + 5];
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            let before = read(&pool, &bytes, 1);
            for place in [0, STRIDE, 2 * STRIDE + 9, 3 * STRIDE + 4] {
                bytes[place] ^= 1;
                assert_ne!(read(&pool, &bytes, 1), before, "byte {place} on {threads} threads");
                bytes[place] ^= 1;
            }
        }
        assert_eq!(read(&Pool::new(1).unwrap(), &[], 1), 0);
    }

    #[test]
    fn all_threads_count() {
        let (one, three) = (Pool::new(1).unwrap(), Pool::new(3).unwrap());
        assert_eq!(integer_products(&three, 5), 3 * integer_products(&one, 5));
        assert_eq!(float_products(&three, 5), 3 * float_products(&one, 5));
    }
}
