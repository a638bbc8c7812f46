//! The accumulator over plain memory: limits, splits, ends.

mod support;

use core::mem::MaybeUninit;

use agent_sandbox_core::CoreError;
use agent_sandbox_core::capped::{Capped, Store};
use agent_sandbox_core::sha256::{Sha256, to_hex};

type Memory = Vec<MaybeUninit<u8>>;

fn over(limit: u64) -> CoreError {
    CoreError::SizeLimit { limit }
}

fn message(size: usize) -> Vec<u8> {
    (0..size).map(|i| i.to_le_bytes()[0]).collect()
}

#[test]
fn every_split_into_three_gives_the_whole_and_its_digest() {
    let whole = message(64);
    let mut hash = Sha256::default();
    hash.update(&whole);
    for first in 0..=64 {
        for second in first..=64 {
            let mut capped = Capped::<Memory>::new(64, true);
            for chunk in [&whole[..first], &whole[first..second], &whole[second..]] {
                capped.append(chunk).unwrap();
            }
            assert_eq!(capped.len(), Ok(64));
            assert_eq!(support::read(&capped.finish().unwrap()), whole);
            assert_eq!(capped.hexdigest().unwrap(), to_hex(&hash.digest()));
        }
    }
}

#[test]
fn every_split_of_one_byte_too_many_ends_it_for_good() {
    let whole = message(65);
    for first in 0..=65 {
        for second in first..=65 {
            let mut capped = Capped::<Memory>::new(64, true);
            let chunks = [&whole[..first], &whole[first..second], &whole[second..]];
            assert!(chunks.iter().any(|chunk| capped.append(chunk).is_err()));
            assert_eq!(capped.append(b""), Err(over(64)));
            assert_eq!(capped.len(), Err(over(64)));
            assert_eq!(capped.hexdigest(), Err(over(64)));
            assert_eq!(capped.finish().err(), Some(over(64)));
        }
    }
}

#[test]
fn a_limit_of_zero_takes_empty_chunks_only() {
    let mut capped = Capped::<Memory>::new(0, false);
    capped.append(b"").unwrap();
    assert_eq!(capped.is_empty(), Ok(true));
    assert_eq!(capped.hexdigest(), Err(CoreError::NoDigest));
    assert_eq!(capped.append(b"x"), Err(over(0)));
}

#[test]
fn it_finishes_once_and_still_knows_its_length() {
    let mut capped = Capped::<Memory>::new(u64::MAX, false);
    capped.append(b"abc").unwrap();
    assert_eq!(support::read(&capped.finish().unwrap()), b"abc");
    assert_eq!(capped.finish().err(), Some(CoreError::Finished));
    assert_eq!(capped.append(b"d"), Err(CoreError::Finished));
    assert_eq!(capped.len(), Ok(3));
}

/// Memory that refuses to grow beyond 1,000 bytes and, like the real one, is then lost.
#[derive(Default)]
struct Poor(Memory);

impl Store for Poor {
    type Output = Memory;

    fn capacity(&self) -> usize {
        Store::capacity(&self.0)
    }

    fn grow(&mut self, capacity: usize) -> Result<(), CoreError> {
        if capacity > 1_000 { Err(CoreError::Memory) } else { self.0.grow(capacity) }
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.0.room()
    }

    fn finish(self, length: usize) -> Result<Memory, CoreError> {
        self.0.finish(length)
    }
}

#[test]
fn without_memory_every_later_call_says_so() {
    let mut capped = Capped::<Poor>::new(u64::MAX, true);
    capped.append(&message(600)).unwrap();
    assert_eq!(capped.append(&message(600)), Err(CoreError::Memory));
    assert_eq!(capped.append(b""), Err(CoreError::Memory));
    assert_eq!(capped.finish().err(), Some(CoreError::Memory));
    assert_eq!(capped.hexdigest(), Err(CoreError::Memory));
}

#[test]
fn room_grows_past_the_guesses_and_never_past_a_limit() {
    for (limit, size) in [(40_000, 40_000), (u64::MAX, 3 << 20), (17 << 20, 17 << 20)] {
        let chunk = message(65_536.min(size));
        let mut capped = Capped::<Limited>::new(limit, false);
        let mut left = size;
        while left > 0 {
            let piece = chunk.get(..left.min(chunk.len())).unwrap();
            capped.append(piece).unwrap();
            left -= piece.len();
        }
        let (whole, largest) = capped.finish().unwrap();
        assert_eq!(whole.len(), size);
        assert!(largest as u64 <= limit);
    }
}

/// Memory that remembers the largest size it was asked for.
#[derive(Default)]
struct Limited(Memory, usize);

impl Store for Limited {
    type Output = (Memory, usize);

    fn capacity(&self) -> usize {
        Store::capacity(&self.0)
    }

    fn grow(&mut self, capacity: usize) -> Result<(), CoreError> {
        assert!(capacity > Store::capacity(&self.0), "asked to grow without need");
        self.1 = self.1.max(capacity);
        self.0.grow(capacity)
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.0.room()
    }

    fn finish(self, length: usize) -> Result<(Memory, usize), CoreError> {
        Ok((self.0.finish(length)?, self.1))
    }
}

/// Memory that keeps chunks of one byte apart until it must grow.
#[derive(Default)]
struct Keeping {
    kept: Vec<u8>,
    memory: Memory,
}

impl Store for Keeping {
    type Output = Memory;

    fn capacity(&self) -> usize {
        self.memory.len()
    }

    fn grow(&mut self, capacity: usize) -> Result<(), CoreError> {
        self.memory.grow(capacity)?;
        for (place, byte) in self.memory.iter_mut().zip(core::mem::take(&mut self.kept)) {
            place.write(byte);
        }
        Ok(())
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.memory
    }

    fn finish(mut self, length: usize) -> Result<Memory, CoreError> {
        if self.memory.is_empty() {
            self.grow(length)?;
        }
        self.memory.finish(length)
    }
}

#[test]
fn kept_chunks_count_and_come_out_before_those_that_were_copied() {
    let whole = message(64);
    for kept in 0..=64 {
        let mut capped = Capped::<Keeping>::new(64, true);
        for byte in &whole[..kept] {
            assert!(capped.would_take(64 - kept).is_some());
            capped.append_kept(&[*byte], |store| store.kept.push(*byte)).unwrap();
        }
        assert_eq!(capped.len(), Ok(kept));
        if kept < 64 {
            capped.append(&whole[kept..]).unwrap();
        }
        assert!(capped.would_take(0).is_some());
        assert!(capped.would_take(1).is_none());
        assert_eq!(support::read(&capped.finish().unwrap()), whole);
        let mut hash = Sha256::default();
        hash.update(&whole);
        assert_eq!(capped.hexdigest().unwrap(), to_hex(&hash.digest()));
    }
    let mut capped = Capped::<Keeping>::new(1, false);
    assert_eq!(capped.append_kept(b"ab", |_| unreachable!()), Err(over(1)));
    assert_eq!(capped.append(b""), Err(over(1)));
}
