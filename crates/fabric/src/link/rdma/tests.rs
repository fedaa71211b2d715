//! The link over simulated connections: nothing changes the stream, and whatever gets lost is noticed.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::frame::FrameKind;
use super::link::RdmaLink;
use super::rail::Session;
use super::simulated::{Fate, Judge, SimulatedWire, kind, pair, rails};
use super::wire::{Lane, RailShape};
use crate::error::Cause;
use crate::link::{Interest, Link};

const SHAPES: [RailShape; 2] = [RailShape::RELIABLE, RailShape::UNRELIABLE];

type Simulated = RdmaLink<SimulatedWire>;

/// Sends `bytes` from one to the other in steps of these lengths, taking turns. Returns what came, and the first error.
fn transfer(a: &mut Simulated, b: &mut Simulated, bytes: &[u8], steps: &[usize]) -> (Vec<u8>, Option<Cause>) {
    let mut received = Vec::new();
    let mut sent = 0;
    let mut steps = steps.iter().cycle();
    let started = Instant::now();
    while received.len() < bytes.len() {
        assert!(started.elapsed() < Duration::from_secs(60), "{} of {} came", received.len(), bytes.len());
        let mut moved = 0;
        if sent < bytes.len() {
            let end = bytes.len().min(sent + steps.next().unwrap());
            let (left, right) = bytes[sent..end].split_at((end - sent) / 3);
            match a.try_send(&[IoSlice::new(left), IoSlice::new(right)]) {
                Ok(count) => moved += count,
                Err(cause) => return (received, Some(cause)),
            }
            sent += moved;
        }
        let mut target = vec![0; *steps.next().unwrap()];
        match b.try_recv(&mut [IoSliceMut::new(&mut target)]) {
            Ok(count) => {
                received.extend_from_slice(&target[..count]);
                moved += count;
            }
            Err(cause) => return (received, Some(cause)),
        }
        if moved == 0 {
            // Both wait, as ranks do.
            let interest = Interest { receive: true, send: false };
            a.rest(interest, Duration::from_millis(1)).unwrap();
            b.rest(interest, Duration::from_millis(1)).unwrap();
        }
    }
    (received, None)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn streams_arrive_whatever_lane_and_rail_is_late(
        shape in prop::sample::select(&SHAPES[..]),
        count in 1usize..4,
        length in 0usize..600_000,
        steps in prop::collection::vec(1usize..200_000, 2..8),
        late in prop::collection::vec(0usize..5, 7),
    ) {
        let judge: Judge = Arc::new(move |_, _, number| match late[number % late.len()] {
            0 => Fate::Arrives,
            late => Fate::IsLate(late),
        });
        let [mut a, mut b] = pair(shape, count, &judge);
        let bytes = pattern(length);
        for _ in 0..2 {
            let (received, cause) = transfer(&mut a, &mut b, &bytes, &steps);
            prop_assert!(cause.is_none(), "{}", cause.unwrap());
            prop_assert!(received == bytes);
            std::mem::swap(&mut a, &mut b);
        }
    }

    #[test]
    fn losses_and_damage_end_in_an_error_and_never_in_other_bytes(
        at in 0usize..40,
        damaged: bool,
        side in 0usize..2,
        length in 0usize..400_000,
        steps in prop::collection::vec(1usize..100_000, 2..8),
    ) {
        let fate = if damaged { Fate::GetsDamaged } else { Fate::GetsLost };
        let judge: Judge =
            Arc::new(move |from, _, number| if from == side && number == at { fate } else { Fate::Arrives });
        let [mut a, mut b] = pair(RailShape::UNRELIABLE, 1, &judge);
        let bytes = pattern(length);
        let (received, cause) = transfer(&mut a, &mut b, &bytes, &steps);
        prop_assert!(received == bytes[..received.len()]);
        match cause {
            None => prop_assert!(received.len() == bytes.len()),
            Some(cause) => prop_assert!(matches!(cause, Cause::Damaged(_)), "{cause}"),
        }
    }
}

#[test]
fn the_loss_of_the_last_message_is_noticed() {
    for lane in Lane::BOTH {
        let judge: Judge =
            Arc::new(
                move |side, of, number| {
                    if side == 0 && of == lane && number == 0 { Fate::GetsLost } else { Fate::Arrives }
                },
            );
        let [mut a, mut b] = pair(RailShape::UNRELIABLE, 1, &judge);
        let length = if lane == Lane::Small { 10 } else { 60_000 };
        assert_eq!(a.try_send(&[IoSlice::new(&pattern(length))]).unwrap(), length);
        let started = Instant::now();
        let cause = loop {
            assert!(started.elapsed() < Duration::from_secs(20), "never noticed");
            let interest = Interest { receive: true, send: false };
            a.rest(interest, Duration::from_millis(5)).unwrap();
            match b.try_recv(&mut [IoSliceMut::new(&mut [0; 100])]) {
                Ok(count) => assert_eq!(count, 0),
                Err(cause) => break cause,
            }
        };
        assert!(matches!(cause, Cause::Damaged(_)), "{cause}");
    }
}

#[test]
fn a_side_that_does_not_read_is_not_overrun() {
    for shape in SHAPES {
        let [mut a, mut b] = pair(shape, 2, &kind());
        let bytes = pattern(8 << 20);
        let mut sent = 0;
        loop {
            match a.try_send(&[IoSlice::new(&bytes[sent..])]).unwrap() {
                0 => break,
                count => sent += count,
            }
        }
        assert!(!a.rest(Interest { receive: true, send: true }, Duration::from_millis(200)).unwrap());
        assert!(sent < bytes.len());
        let (received, cause) = transfer(&mut a, &mut b, &bytes[sent..], &[70_000]);
        assert!(cause.is_none());
        assert_eq!(received, bytes[..received.len()]);
    }
}

#[test]
fn long_messages_use_all_rails() {
    let [mut a, _b] = pair(RailShape::RELIABLE, 3, &kind());
    let bytes = pattern(16 << 20);
    let one_rail = RailShape::RELIABLE.lanes[1].pieces as usize * RailShape::RELIABLE.lanes[1].bytes;
    let sent = a.try_send(&[IoSlice::new(&bytes)]).unwrap();
    assert!(sent > 2 * one_rail && sent <= 3 * one_rail, "{sent}");
}

#[test]
fn frames_of_an_older_generation_are_dropped_and_of_a_newer_one_refused() {
    let session = |generation, number| Session { generation, number };
    for (theirs, dropped) in [(session(4, 9), true), (session(5, 8), true), (session(6, 9), false)] {
        let [mut a, b] = rails(RailShape::RELIABLE, [theirs, session(5, 9)], kind());
        let mut b = RdmaLink::new(vec![b], Vec::new());
        assert!(a.send_note(Lane::Small, FrameKind::Goodbye, 0).unwrap());
        let result = b.try_recv(&mut [IoSliceMut::new(&mut [0; 10])]);
        if dropped {
            assert_eq!(result.unwrap(), 0);
            assert_eq!(b.counters().errors, 1);
        } else {
            assert!(matches!(result, Err(Cause::Corrupt(_))));
        }
    }
}

#[test]
fn last_words_come_before_the_goodbye() {
    for shape in SHAPES {
        let judge: Judge = Arc::new(|_, lane, _| if lane == Lane::Bulk { Fate::IsLate(3) } else { Fate::Arrives });
        let [mut a, mut b] = pair(shape, 2, &judge);
        let words = pattern(150_000);
        assert_eq!(a.try_send(&[IoSlice::new(&words)]).unwrap(), words.len());
        drop(a);
        let mut heard = vec![0; words.len()];
        let mut at = 0;
        while at < heard.len() {
            at += b.try_recv(&mut [IoSliceMut::new(&mut heard[at..])]).unwrap();
        }
        assert!(heard == words);
        assert!(matches!(b.is_readable(), Err(Cause::Closed)));
        assert!(matches!(b.try_send(&[IoSlice::new(&words)]), Err(Cause::Closed)));
    }
}
