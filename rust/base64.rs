//! Canonical Base64 (RFC 4648 sections 3.5 and 4), in pieces that stay in the cache.

use core::mem::MaybeUninit;

use crate::error::CoreError;
use crate::simd;
pub use crate::simd::Kernel;

const PAD: u8 = b'=';

/// Bytes of one piece: with their symbols they fit the first-level cache of every current CPU.
const PIECE_BYTES: usize = 12 * 1024;
const PIECE_SYMBOLS: usize = PIECE_BYTES / 3 * 4;

/// The shape of a text that passed every check that does not look at its symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    symbols: usize,
    padding: usize,
}

impl Plan {
    /// Checks a text of `symbols` code points that ends in `padding` (0, 1 or 2) symbols `=`.
    ///
    /// # Errors
    ///
    /// In this order: the length is over `4 * ceil(cap / 3)`; it is not a multiple of 4; the
    /// decoded size is over `cap`.
    pub fn new(symbols: usize, padding: usize, cap: Option<u64>) -> Result<Self, CoreError> {
        check_length(symbols, cap)?;
        if !symbols.is_multiple_of(4) {
            return Err(CoreError::Base64 { offset: symbols });
        }
        let plan = Self { symbols, padding: padding.min(2) };
        match cap {
            Some(limit) if plan.decoded_len() as u64 > limit => Err(CoreError::SizeLimit { limit }),
            _ => Ok(plan),
        }
    }

    /// Returns the size of the decoded bytes.
    #[must_use]
    pub fn decoded_len(&self) -> usize {
        (self.symbols / 4 * 3).saturating_sub(self.padding)
    }
}

/// Refuses a text that is longer than any encoding of `cap` bytes.
///
/// # Errors
///
/// `SizeLimit`, if `symbols` is over `4 * ceil(cap / 3)`.
pub fn check_length(symbols: usize, cap: Option<u64>) -> Result<(), CoreError> {
    match cap {
        Some(limit) if symbols as u128 > u128::from(limit).div_ceil(3) * 4 => {
            Err(CoreError::SizeLimit { limit })
        }
        _ => Ok(()),
    }
}

/// Returns how many of the last two symbols are padding. Only what ends the text is padding.
#[must_use]
pub fn trailing_padding<S: Copy + Into<u32>>(text: &[S]) -> usize {
    let is_pad = |symbol: &&S| (**symbol).into() == u32::from(PAD);
    text.iter().rev().take(2).take_while(is_pad).count()
}

/// Returns the index of the first symbol outside the alphabet in front of the trailing padding.
///
/// The text may be of any code points: those beyond ASCII are outside.
#[must_use]
pub fn first_offender<S: Copy + Into<u32>>(text: &[S]) -> Option<usize> {
    let outside = |symbol: &S| u8::try_from((*symbol).into()).ok().and_then(simd::value).is_none();
    text.iter().take(text.len() - trailing_padding(text)).position(outside)
}

/// Returns the refusal of a text that has a symbol outside the alphabet.
#[must_use]
pub fn refusal<S: Copy + Into<u32>>(text: &[S]) -> CoreError {
    CoreError::Base64 { offset: first_offender(text).unwrap_or(text.len()) }
}

/// Decodes `text` into `out`, which has exactly the planned size, and writes all of it.
///
/// `seen` gets the decoded bytes in order, in pieces that are still in the cache.
///
/// # Errors
///
/// `Base64`, with the offset of the first offending symbol. `out` may then be written in part.
#[inline]
pub fn decode(
    kernel: Kernel,
    text: &[u8],
    plan: Plan,
    out: &mut [MaybeUninit<u8>],
    mut seen: impl FnMut(&[u8]),
) -> Result<(), CoreError> {
    if text.len() != plan.symbols || out.len() != plan.decoded_len() {
        return Err(CoreError::Base64 { offset: text.len() });
    }
    let whole = if plan.padding == 0 { text.len() } else { text.len() - 4 };
    let (quads, last) = text.split_at(whole);
    let (room, last_room) = out.split_at_mut(whole / 4 * 3);
    for (piece, place) in quads.chunks(PIECE_SYMBOLS).zip(room.chunks_mut(PIECE_BYTES)) {
        match simd::decode_quads(kernel, piece, place) {
            Some(bytes) => seen(bytes),
            None => return Err(refusal(text)),
        }
    }
    if let [a, b, c, _] = *last {
        let third = if plan.padding == 1 { simd::value(c) } else { Some(0) };
        let (Some(a), Some(b), Some(c)) = (simd::value(a), simd::value(b), third) else {
            return Err(refusal(text));
        };
        let [first, second, unused] = simd::join([a, b, c, 0]);
        // One padding symbol leaves two bits of `c` over, two leave four bits of `b`.
        if (if plan.padding == 1 { unused } else { second }) != 0 {
            return Err(CoreError::Base64 { offset: text.len() - plan.padding - 1 });
        }
        for (slot, byte) in last_room.iter_mut().zip([first, second]) {
            slot.write(byte);
        }
        let bytes = [first, second];
        seen(bytes.get(..3 - plan.padding).unwrap_or_default());
    }
    Ok(())
}

/// Returns the length of the encoding, or `None` where no memory could hold it.
#[must_use]
pub fn encoded_len(raw_bytes: usize) -> Option<usize> {
    raw_bytes.div_ceil(3).checked_mul(4).filter(|&symbols| isize::try_from(symbols).is_ok())
}

/// Encodes `raw` into `out`, which has exactly `encoded_len` symbols, and writes all of it.
///
/// `seen` gets the bytes of `raw` in order, in pieces that are still in the cache.
///
/// # Errors
///
/// `Memory`, if `out` has another size. Nothing else can fail.
#[inline]
pub fn encode(
    kernel: Kernel,
    raw: &[u8],
    out: &mut [MaybeUninit<u8>],
    mut seen: impl FnMut(&[u8]),
) -> Result<(), CoreError> {
    if encoded_len(raw.len()) != Some(out.len()) {
        return Err(CoreError::Memory);
    }
    let (triples, last) = raw.split_at(raw.len() - raw.len() % 3);
    let (room, last_room) = out.split_at_mut(triples.len() / 3 * 4);
    for (piece, place) in triples.chunks(PIECE_BYTES).zip(room.chunks_mut(PIECE_SYMBOLS)) {
        simd::encode_triples(kernel, piece, place).ok_or(CoreError::Memory)?;
        seen(piece);
    }
    let symbols = match *last {
        [a] => {
            let [first, second, ..] = simd::split([a, 0, 0]);
            [first, second, PAD, PAD]
        }
        [a, b] => {
            let [first, second, third, _] = simd::split([a, b, 0]);
            [first, second, third, PAD]
        }
        _ => return Ok(()),
    };
    for (slot, symbol) in last_room.iter_mut().zip(symbols) {
        slot.write(symbol);
    }
    seen(last);
    Ok(())
}
