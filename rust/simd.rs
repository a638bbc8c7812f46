//! Base64 without padding, as fast as this CPU can: the one place of the core with `unsafe`.
//!
//! Blocks go through a kernel, what is left goes through tables. The kernels are our own on
//! x86-64, since the crates that were measured reach a half of `pybase64` in encode; elsewhere
//! (NEON, plain tables) the `base64` crate does it.

#![allow(unsafe_code)] // CPU intrinsics and their output; each block says why it is sound

use core::mem::MaybeUninit;

use base64::Engine as _;
use base64::engine::{GeneralPurposeConfig, Simd};

#[cfg(target_arch = "x86_64")]
mod x86;

const ALPHABET: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What stands in the table for a symbol that has no value; every value is below 64.
const NO_VALUE: u8 = 0xff;

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const VALUES: [u8; 256] = {
    let mut values = [NO_VALUE; 256];
    let mut value = 0_u8;
    while value < 64 {
        values[ALPHABET[value as usize] as usize] = value;
        value += 1;
    }
    values
};

/// Below this many symbols no kernel has a whole block, and asking the CPU is not worth it.
const SMALL_SYMBOLS: usize = 32;

/// Which code does the blocks: one that this CPU can run, since there is no other way to get one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// AVX-512 with VBMI (Intel since Ice Lake, AMD since Zen 4).
    #[cfg(target_arch = "x86_64")]
    Avx512Vbmi,
    /// AVX2 (nearly every x86-64 server).
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The `base64` crate.
    Portable,
    /// No blocks: the tables alone.
    Tables,
}

impl Kernel {
    /// The tables alone, which are the reference for the others.
    pub const TABLES: Self = Self(Kind::Tables);

    /// Returns the best kernel of this CPU for so many symbols. The CPU is asked only once.
    #[inline]
    #[must_use]
    pub fn detect(symbols: usize) -> Self {
        if symbols < SMALL_SYMBOLS {
            return Self::TABLES;
        }
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512bw") {
                return Self(Kind::Avx512Vbmi);
            }
            if is_x86_feature_detected!("avx2") {
                return Self(Kind::Avx2);
            }
        }
        Self(Kind::Portable)
    }

    /// Returns every kernel that this CPU can run, for tests.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut kernels = vec![Self::TABLES, Self(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            kernels.push(Self(Kind::Avx2));
        }
        if !kernels.contains(&Self::detect(usize::MAX)) {
            kernels.push(Self::detect(usize::MAX));
        }
        kernels
    }
}

/// Returns the value of one symbol, or `None` outside the alphabet (`=` is outside).
#[inline]
pub(crate) fn value(symbol: u8) -> Option<u8> {
    let value = table_value(symbol);
    (value != NO_VALUE).then_some(value)
}

/// Decodes quads without padding into `out`, and returns the bytes; `None` if a symbol is wrong.
///
/// `out` is cut or left alone where the sizes do not belong together.
#[inline]
pub(crate) fn decode_quads<'out>(
    kernel: Kernel,
    text: &[u8],
    out: &'out mut [MaybeUninit<u8>],
) -> Option<&'out [u8]> {
    let used = match kernel.0 {
        // SAFETY: `Kernel::detect` and `all` give a kernel only where the CPU has its features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vbmi => unsafe { x86::decode_avx512(text, out)? },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::decode_avx2(text, out)? },
        Kind::Portable => decode_portable(text, out)?,
        Kind::Tables => 0,
    };
    let mut dirt = 0;
    let mut done = used / 4 * 3;
    let quads = text.get(used..)?.as_chunks::<4>().0;
    let room = out.get_mut(done..)?.as_chunks_mut::<3>().0;
    for (quad, place) in quads.iter().zip(room) {
        let values = quad.map(table_value);
        dirt |= values[0] | values[1] | values[2] | values[3];
        let [a, b, c] = join(values);
        *place = [MaybeUninit::new(a), MaybeUninit::new(b), MaybeUninit::new(c)];
        done += 3;
    }
    // SAFETY: the kernel wrote the first `used / 4 * 3` bytes, and the loop went on up to `done`.
    (dirt < 64).then_some(unsafe { assume_written(out.get(..done)?) })
}

/// Encodes triples into `out`, and returns the symbols.
///
/// `out` is cut where the sizes do not belong together.
#[inline]
pub(crate) fn encode_triples<'out>(
    kernel: Kernel,
    raw: &[u8],
    out: &'out mut [MaybeUninit<u8>],
) -> Option<&'out [u8]> {
    let used = match kernel.0 {
        // SAFETY: `Kernel::detect` and `all` give a kernel only where the CPU has its features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vbmi => unsafe { x86::encode_avx512(raw, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::encode_avx2(raw, out) },
        Kind::Portable => encode_portable(raw, out)?,
        Kind::Tables => 0,
    };
    let mut done = used / 3 * 4;
    let triples = raw.get(used..)?.as_chunks::<3>().0;
    let room = out.get_mut(done..)?.as_chunks_mut::<4>().0;
    for (triple, place) in triples.iter().zip(room) {
        *place = split(*triple).map(MaybeUninit::new);
        done += 4;
    }
    // SAFETY: the kernel wrote the first `used / 3 * 4` symbols, and the loop went on to `done`.
    Some(unsafe { assume_written(out.get(..done)?) })
}

/// Returns the three bytes of four values.
#[inline]
pub(crate) fn join([a, b, c, d]: [u8; 4]) -> [u8; 3] {
    [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]
}

/// Returns the four symbols of three bytes.
#[inline]
pub(crate) fn split([a, b, c]: [u8; 3]) -> [u8; 4] {
    [a >> 2, (a << 4 | b >> 4) & 63, (b << 2 | c >> 6) & 63, c & 63].map(symbol)
}

#[inline]
#[expect(clippy::indexing_slicing, reason = "every u8 is an index of 256 entries")]
fn table_value(symbol: u8) -> u8 {
    VALUES[usize::from(symbol)]
}

#[inline]
#[expect(clippy::indexing_slicing, reason = "six bits are an index of 64 entries")]
fn symbol(value: u8) -> u8 {
    ALPHABET[usize::from(value & 63)]
}

/// Bytes of the stack block through which the `base64` crate, which wants zeroed room, writes.
const STACK_BYTES: usize = 3 * 1024;

fn portable() -> Simd {
    Simd::standard(GeneralPurposeConfig::new().with_encode_padding(false))
}

fn decode_portable(text: &[u8], out: &mut [MaybeUninit<u8>]) -> Option<usize> {
    let engine = portable();
    let mut block = [0_u8; STACK_BYTES];
    let mut used = 0;
    for (piece, place) in text.chunks(STACK_BYTES / 3 * 4).zip(out.chunks_mut(STACK_BYTES)) {
        // The crate's decoder would take padding at the end of a piece.
        if piece.len() % 4 != 0 || piece.last() == Some(&b'=') {
            return None;
        }
        let size = engine.decode_slice(piece, &mut block).ok()?;
        used += piece.len();
        place.get_mut(..size)?.write_copy_of_slice(block.get(..size)?);
    }
    Some(used)
}

fn encode_portable(raw: &[u8], out: &mut [MaybeUninit<u8>]) -> Option<usize> {
    let engine = portable();
    let mut block = [0_u8; STACK_BYTES / 3 * 4];
    let whole = raw.as_chunks::<3>().0.as_flattened();
    for (piece, place) in whole.chunks(STACK_BYTES).zip(out.chunks_mut(STACK_BYTES / 3 * 4)) {
        let size = engine.encode_slice(piece, &mut block).ok()?;
        place.get_mut(..size)?.write_copy_of_slice(block.get(..size)?);
    }
    Some(whole.len())
}

/// Returns `out` as initialised bytes.
///
/// # Safety
///
/// Every byte of `out` has been written.
#[inline]
unsafe fn assume_written(out: &[MaybeUninit<u8>]) -> &[u8] {
    // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and the caller wrote every byte.
    unsafe { core::slice::from_raw_parts(out.as_ptr().cast(), out.len()) }
}
