//! An accumulator of at most `limit` bytes that grows in place, for any kind of memory.

use core::mem::MaybeUninit;

use crate::error::CoreError;
use crate::sha256::Sha256;

/// Memory that can grow while it keeps its bytes.
pub trait Store: Default {
    /// What the memory becomes in the end.
    type Output;

    /// Returns how many bytes there is room for.
    fn capacity(&self) -> usize;

    /// Makes room for `capacity` bytes in all, which is more than there is.
    ///
    /// # Errors
    ///
    /// `Memory`; the bytes may be lost.
    fn grow(&mut self, capacity: usize) -> Result<(), CoreError>;

    /// Returns the memory from its start, `capacity` bytes.
    fn room(&mut self) -> &mut [MaybeUninit<u8>];

    /// Hands out the first `length` bytes, all of which were written.
    ///
    /// # Errors
    ///
    /// `Memory`.
    fn finish(self, length: usize) -> Result<Self::Output, CoreError>;
}

/// What the first reserve is, where the limit allows it. Growing copies wherever the heap has no room
/// behind the buffer, as in the gap that an earlier result of 1 MiB left, so it begins no smaller;
/// pages that are reserved and not used take no memory.
const FIRST_GUESS: usize = 2 << 20;

/// While there are fewer bytes than this, nothing is guessed.
const SMALL_BYTES: usize = 16 << 10;

enum State<S> {
    Open { store: S, length: usize },
    Finished { length: usize },
    Failed(CoreError),
}

/// Collects chunks; the first byte over the limit ends it, and nothing is handed out then.
pub struct Capped<S> {
    limit: u64,
    hash: Option<Sha256>,
    state: State<S>,
}

impl<S: Store> Capped<S> {
    /// Returns an empty accumulator. Nothing is reserved.
    #[must_use]
    pub fn new(limit: u64, sha256: bool) -> Self {
        let state = State::Open { store: S::default(), length: 0 };
        Self { limit, hash: sha256.then(Sha256::default), state }
    }

    /// Stores and hashes one more chunk, or refuses it whole.
    ///
    /// # Errors
    ///
    /// `SizeLimit` from the first chunk on that does not fit, `Finished` after `finish`, `Memory`.
    pub fn append(&mut self, chunk: &[u8]) -> Result<(), CoreError> {
        self.reserve(chunk.len())?;
        self.push(chunk)
    }

    /// First half of `append`: makes room for `more` bytes.
    ///
    /// # Errors
    ///
    /// As `append`.
    pub fn reserve(&mut self, more: usize) -> Result<(), CoreError> {
        let needed = self.admit(more)?;
        let limit = self.limit;
        let (store, _) = self.open()?;
        let capacity = store.capacity();
        if needed <= capacity {
            return Ok(());
        }
        store.grow(next_capacity(limit, capacity, needed)).inspect_err(|&error| self.fail(error))
    }

    /// Instead of `append`: lets the store keep the chunk its own way, and hashes it.
    ///
    /// `keep` must not fail; a store that keeps chunks has no room (`capacity` 0) until it grows.
    ///
    /// # Errors
    ///
    /// As `append`.
    pub fn append_kept(
        &mut self,
        chunk: &[u8],
        keep: impl FnOnce(&mut S),
    ) -> Result<(), CoreError> {
        let end = self.admit(chunk.len())?;
        let (store, length) = self.open()?;
        keep(store);
        *length = end;
        if let Some(hash) = &mut self.hash {
            hash.update(chunk);
        }
        Ok(())
    }

    /// Returns the store and how many bytes it holds, where `more` bytes would be taken.
    #[must_use]
    pub fn would_take(&self, more: usize) -> Option<(&S, usize)> {
        match &self.state {
            State::Open { store, length }
                if more as u64 <= self.limit.saturating_sub(*length as u64) =>
            {
                Some((store, *length))
            }
            _ => None,
        }
    }

    /// Returns how many bytes there will be with `more`, or ends with an error.
    fn admit(&mut self, more: usize) -> Result<usize, CoreError> {
        let used = *self.open()?.1;
        let result = if more as u64 > self.limit.saturating_sub(used as u64) {
            Err(CoreError::SizeLimit { limit: self.limit })
        } else {
            used.checked_add(more).ok_or(CoreError::Memory)
        };
        result.inspect_err(|&error| self.fail(error))
    }

    /// Ends an open accumulator with `error` and gives its memory back.
    pub fn fail(&mut self, error: CoreError) {
        self.state = State::Failed(error);
        self.hash = None;
    }

    /// Second half of `append`: copies the chunk into the room that `reserve` made, and hashes it.
    ///
    /// # Errors
    ///
    /// `Memory`, if there is no such room; else as `append`.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), CoreError> {
        let (store, length) = self.open()?;
        let end = length.checked_add(chunk.len()).ok_or(CoreError::Memory)?;
        let place = store.room().get_mut(*length..end).ok_or(CoreError::Memory)?;
        place.write_copy_of_slice(chunk);
        *length = end;
        if let Some(hash) = &mut self.hash {
            hash.update(chunk);
        }
        Ok(())
    }

    /// Fails as every call must once the accumulator has ended.
    ///
    /// # Errors
    ///
    /// What ended it.
    pub fn check_open(&self) -> Result<(), CoreError> {
        match self.state {
            State::Open { .. } => Ok(()),
            State::Finished { .. } => Err(CoreError::Finished),
            State::Failed(error) => Err(error),
        }
    }

    /// Returns how many bytes are held, or were handed out.
    ///
    /// # Errors
    ///
    /// What ended it, except `finish`.
    pub fn len(&self) -> Result<usize, CoreError> {
        match self.state {
            State::Open { length, .. } | State::Finished { length } => Ok(length),
            State::Failed(error) => Err(error),
        }
    }

    /// Returns whether there are no bytes.
    ///
    /// # Errors
    ///
    /// As `len`.
    pub fn is_empty(&self) -> Result<bool, CoreError> {
        self.len().map(|length| length == 0)
    }

    /// Hands out what was collected, once.
    ///
    /// # Errors
    ///
    /// What ended it before, or `Memory`.
    pub fn finish(&mut self) -> Result<S::Output, CoreError> {
        let (store, length) = self.open()?;
        let (store, length) = (core::mem::take(store), *length);
        let result = store.finish(length);
        self.state = match &result {
            Ok(_) => State::Finished { length },
            Err(error) => State::Failed(*error),
        };
        result
    }

    /// Returns the sha256 of everything so far in lower-case hex, also after `finish`.
    ///
    /// # Errors
    ///
    /// `NoDigest`, if it was not asked for; else as `len`.
    pub fn hexdigest(&self) -> Result<[u8; 64], CoreError> {
        self.len()?;
        self.hash.clone().map(Sha256::into_hex).ok_or(CoreError::NoDigest)
    }

    fn open(&mut self) -> Result<(&mut S, &mut usize), CoreError> {
        match &mut self.state {
            State::Open { store, length } => Ok((store, length)),
            State::Finished { .. } => Err(CoreError::Finished),
            State::Failed(error) => Err(*error),
        }
    }
}

fn next_capacity(limit: u64, capacity: usize, needed: usize) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let guess = if needed < SMALL_BYTES { 0 } else { FIRST_GUESS };
    guess.max(capacity.saturating_mul(2)).min(limit).max(needed)
}

impl Store for Vec<MaybeUninit<u8>> {
    type Output = Self;

    fn capacity(&self) -> usize {
        self.len()
    }

    fn grow(&mut self, capacity: usize) -> Result<(), CoreError> {
        let more = capacity.saturating_sub(self.len());
        self.try_reserve_exact(more).map_err(|_| CoreError::Memory)?;
        self.resize(capacity, MaybeUninit::uninit());
        Ok(())
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self
    }

    fn finish(mut self, length: usize) -> Result<Self, CoreError> {
        self.truncate(length);
        Ok(self)
    }
}
