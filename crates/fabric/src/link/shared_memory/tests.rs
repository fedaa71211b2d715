//! What only this kind of link has to stand.

use std::sync::atomic::Ordering;

use super::ring::{Board, LINE_BYTES, Reader, SEGMENT_BYTES, Sleeper, Writer};
use super::*;

const RING_BYTES: usize = 256 << 10;

fn pair() -> (SharedMemoryLink, SharedMemoryLink) {
    let mut memory = SharedFile::named(RING_BYTES).unwrap();
    let same = SharedFile::open(memory.name());
    memory.unlink();
    (SharedMemoryLink::acceptor(memory), SharedMemoryLink::dialer(same.unwrap()))
}

fn send(link: &mut SharedMemoryLink, bytes: &[u8]) -> usize {
    link.try_send(&[IoSlice::new(bytes)]).unwrap()
}

#[test]
fn positions_wrap_around() {
    let (mut a, mut b) = pair();
    // As after nearly 2^32 lines.
    let position = u32::MAX - 300;
    for ring in 0..2 {
        a.mapping.direction(ring).tail().store(position, Ordering::Relaxed);
    }
    for link in [&mut a, &mut b] {
        link.side = Side { writer: Writer::at(position), reader: Reader::at(position) };
    }
    // Each segment has other bytes than the one before on the same lines, and none of them passes for a flag.
    for round in 0..2000usize {
        let length = round * 7 % 3000 + 1;
        let sent: Vec<u8> = (0..length).map(|index| (round + index) as u8).collect();
        let (first, second) = sent.split_at(length / 3);
        assert_eq!(a.try_send(&[IoSlice::new(first), IoSlice::new(second)]).unwrap(), length);
        let mut received = vec![0; 4000];
        let (first, second) = received.split_at_mut(length / 2);
        assert_eq!(b.try_recv(&mut [IoSliceMut::new(first), IoSliceMut::new(second)]).unwrap(), length);
        assert_eq!(received[..length], sent);
        assert!(!b.is_readable().unwrap());
    }
}

#[test]
fn a_full_ring_takes_no_more() {
    let (mut a, mut b) = pair();
    let bytes: Vec<u8> = (0..SEGMENT_BYTES).map(|index| (index / 3) as u8).collect();
    let mut taken = Vec::new();
    loop {
        match send(&mut a, &bytes) {
            0 => break,
            count => taken.push(count),
        }
    }
    let lines = RING_BYTES / LINE_BYTES;
    let used = taken.iter().map(|count| (count + 8).div_ceil(LINE_BYTES)).sum::<usize>();
    assert_eq!(used, lines - 1, "all lines but one");
    assert!(!a.rest(Interest { receive: true, send: true }, Duration::from_millis(1)).unwrap());
    // A segment that is read in part gives nothing back yet.
    let mut target = vec![0; SEGMENT_BYTES];
    assert_eq!(b.try_recv(&mut [IoSliceMut::new(&mut target[..10])]).unwrap(), 10);
    assert_eq!(send(&mut a, &bytes), 0);
    assert_eq!(b.try_recv(&mut [IoSliceMut::new(&mut target[10..])]).unwrap(), SEGMENT_BYTES - 10);
    assert_eq!(target, bytes);
    assert_eq!(send(&mut a, &bytes), SEGMENT_BYTES);
    for expected in taken.into_iter().skip(1) {
        assert_eq!(b.try_recv(&mut [IoSliceMut::new(&mut target)]).unwrap(), expected);
        assert_eq!(target[..expected], bytes[..expected]);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]
    /// Whatever a neighbour writes into the shared memory, calls end with bytes or an error.
    #[test]
    fn a_hostile_neighbour_does_no_harm(
        words in proptest::collection::vec((proptest::num::u64::ANY, proptest::num::u32::ANY, 0u32..9), 24),
    ) {
        let (mut a, b) = pair();
        let mut target = vec![0; 100_000];
        let (mut received, mut sent) = (0u32, 0u32);
        for (flag, word, kind) in words {
            let (incoming, outgoing) = (b.mapping.direction(1), b.mapping.direction(0));
            match kind {
                // Flags: any, of the right place with any length, and right ones.
                0 => incoming.flag(received).store(flag, Ordering::Relaxed),
                1 => incoming.flag(received).store(u64::from(received) << 32 | u64::from(word), Ordering::Relaxed),
                2 | 3 => {
                    let length = u64::from(word) % SEGMENT_BYTES as u64 + 1;
                    incoming.flag(received).store(u64::from(received) << 32 | length, Ordering::Relaxed);
                }
                4 => outgoing.tail().store(word, Ordering::Relaxed),
                5 => outgoing.tail().store(sent.wrapping_sub(word % 4000), Ordering::Relaxed),
                6 => b.mapping.bed(0).waiting().store(word, Ordering::Relaxed),
                7 => b.mapping.bed(1).waiting().store(word, Ordering::Relaxed),
                _ => b.mapping.bed(0).bell().store(word, Ordering::Relaxed),
            }
            if let Ok(count @ 1..) = a.try_recv(&mut [IoSliceMut::new(&mut target)]) {
                proptest::prop_assert!(count <= SEGMENT_BYTES);
                received = received.wrapping_add((count + 8).div_ceil(LINE_BYTES) as u32);
            }
            if let Ok(count @ 1..) = a.try_send(&[IoSlice::new(&target)]) {
                sent = sent.wrapping_add((count + 8).div_ceil(LINE_BYTES) as u32);
            }
            let _ = a.rest(Interest { receive: true, send: true }, Duration::from_micros(10));
        }
    }
}

#[test]
fn what_cannot_be_is_an_error() {
    let (mut a, b) = pair();
    let incoming = b.mapping.direction(1);
    let impossible = [1 << 32 | 5, SEGMENT_BYTES as u64 + 1, u64::from(u32::MAX), 1 << 32, u64::MAX];
    for flag in impossible {
        incoming.flag(0).store(flag, Ordering::Relaxed);
        let error = a.try_recv(&mut [IoSliceMut::new(&mut [0; 8])]).unwrap_err();
        assert!(matches!(error, Cause::Corrupt(_)), "{flag:#x}: {error}");
    }
    b.mapping.direction(0).tail().store(1, Ordering::Relaxed);
    let error = a.rest(Interest { receive: false, send: true }, Duration::ZERO).unwrap_err();
    assert!(matches!(error, Cause::Corrupt(_)), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_shared_core_is_noticed() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    // On a thread of its own, which may not change cores.
    let pinned = std::thread::spawn(|| {
        let core = (0..CpuSet::MAX_CPU).find(|&core| sched_getaffinity(None).unwrap().is_set(core)).unwrap();
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).unwrap();
        assert_eq!(sched_getcpu(), core);
        let (a, b) = pair();
        assert!(!a.shares_core(), "nothing is known of the other side");
        assert!(b.shares_core());
        assert!(a.shares_core());
        // A side that has slept says where it woke up.
        let (a, mut c) = pair();
        assert!(!a.shares_core());
        assert!(!c.rest(Interest { receive: true, send: false }, Duration::from_micros(1)).unwrap());
        assert!(a.shares_core());
    });
    pinned.join().unwrap();
}
