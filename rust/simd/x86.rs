//! The kernels for x86-64.
//!
//! Algorithms: W. Muła and D. Lemire, "Faster Base64 Encoding and Decoding Using AVX2
//! Instructions" (2018) and "Base64 encoding and decoding at almost the speed of a memory copy"
//! (2020). Every kernel works on whole blocks in arrays of fixed size and never looks past them.

use core::arch::asm;
use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_slli_si128, _mm_srli_si128, _mm_storel_epi64,
    _mm_storeu_si128, _mm256_add_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_or_si256,
    _mm256_permutevar8x32_epi32, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_setr_epi32, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi32,
    _mm256_storeu_si256, _mm256_sub_epi8, _mm256_subs_epu8, _mm256_testz_si256, _mm512_loadu_si512,
    _mm512_madd_epi16, _mm512_maddubs_epi16, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8,
    _mm512_movepi8_mask, _mm512_multishift_epi64_epi8, _mm512_or_si512, _mm512_permutex2var_epi8,
    _mm512_permutexvar_epi8, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_storeu_si512,
};
use core::mem::MaybeUninit;

use super::ALPHABET;

/// The lowest 48 lanes of 64.
const LANES_48: u64 = (1 << 48) - 1;

/// The value of each ASCII symbol; 0x80 where it has none.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const VALUES: [u8; 128] = {
    let mut values = [0x80; 128];
    let mut value = 0_u8;
    while value < 64 {
        values[ALPHABET[value as usize] as usize] = value;
        value += 1;
    }
    values
};

/// Where each output byte of the AVX-512 encoder finds its bits: bytes 1, 0, 2, 1 of a triple.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const SPREAD_TRIPLES: [u8; 64] = {
    let mut order = [0; 64];
    let mut quad = 0_u8;
    while quad < 16 {
        let at = quad as usize * 4;
        order[at] = quad * 3 + 1;
        order[at + 1] = quad * 3;
        order[at + 2] = quad * 3 + 2;
        order[at + 3] = quad * 3 + 1;
        quad += 1;
    }
    order
};

/// Where each of the 48 output bytes of the AVX-512 decoder stands: bytes 2, 1, 0 of a word.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const PACK_WORDS: [u8; 64] = {
    let mut order = [0; 64];
    let mut word = 0_u8;
    while word < 16 {
        let at = word as usize * 3;
        order[at] = word * 4 + 2;
        order[at + 1] = word * 4 + 1;
        order[at + 2] = word * 4;
        word += 1;
    }
    order
};

#[inline]
#[target_feature(enable = "avx512bw,avx512vbmi")]
fn load_64(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn both_lanes(table: &[u8; 16]) -> __m256i {
    // SAFETY: the array has the 16 bytes that are read; the load needs no alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

#[target_feature(enable = "avx512bw,avx512vbmi")]
pub(super) fn encode_avx512(raw: &[u8], out: &mut [MaybeUninit<u8>]) -> usize {
    let spread = load_64(&SPREAD_TRIPLES);
    let alphabet = load_64(&ALPHABET);
    let shifts = _mm512_set1_epi64(0x3036_242a_1016_040a);
    let room = out.as_chunks_mut::<64>().0;
    let used = (raw.len() / 48).min(room.len()) * 48;
    let mut rest = raw;
    for symbols in room {
        // A plain load where 64 bytes are left: out of cache, masked loads take twice the time.
        let bytes = if let Some(block) = rest.first_chunk::<64>() {
            load_64(block)
        } else if let Some(block) = rest.first_chunk::<48>() {
            // SAFETY: the mask lets only the 48 bytes of the array be read.
            unsafe { _mm512_maskz_loadu_epi8(LANES_48, block.as_ptr().cast()) }
        } else {
            break;
        };
        rest = rest.get(48..).unwrap_or_default();
        let triples = _mm512_permutexvar_epi8(spread, bytes);
        // The two highest bits of an index are dirt, which the permutation ignores.
        let indices = _mm512_multishift_epi64_epi8(shifts, triples);
        let ascii = _mm512_permutexvar_epi8(indices, alphabet);
        // SAFETY: the array has the 64 bytes that are written; no alignment is needed.
        unsafe { _mm512_storeu_si512(symbols.as_mut_ptr().cast(), ascii) };
    }
    used
}

#[target_feature(enable = "avx512bw,avx512vbmi")]
pub(super) fn decode_avx512(text: &[u8], out: &mut [MaybeUninit<u8>]) -> Option<usize> {
    let (tables, _) = VALUES.as_chunks::<64>();
    let [low, high] = tables else { return None };
    let (low, high, pack) = (load_64(low), load_64(high), load_64(&PACK_WORDS));
    let pairs = _mm512_set1_epi32(0x0140_0140);
    let quads = _mm512_set1_epi32(0x0001_1000);
    let mut dirt = _mm512_setzero_si512();
    let blocks = text.as_chunks::<64>().0;
    let used = blocks.len().min(out.len() / 48) * 64;
    let mut rest = out;
    for block in blocks {
        let symbols = load_64(block);
        let values = _mm512_permutex2var_epi8(low, symbols, high);
        // The highest bit is set by the table for a wrong symbol, and by a symbol beyond ASCII.
        dirt = _mm512_or_si512(dirt, _mm512_or_si512(symbols, values));
        let merged = _mm512_madd_epi16(_mm512_maddubs_epi16(values, pairs), quads);
        let packed = _mm512_permutexvar_epi8(pack, merged);
        // A plain store where there is room for its 16 surplus bytes, which the next block
        // overwrites: out of cache, masked stores take longer.
        if let Some(place) = rest.first_chunk_mut::<64>() {
            // SAFETY: the array has the 64 bytes that are written; no alignment is needed.
            unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), packed) };
        } else if let Some(place) = rest.first_chunk_mut::<48>() {
            // SAFETY: the mask lets only the 48 bytes of the array be written.
            unsafe { _mm512_mask_storeu_epi8(place.as_mut_ptr().cast(), LANES_48, packed) };
        } else {
            break;
        }
        rest = rest.get_mut(48..).unwrap_or_default();
    }
    (_mm512_movepi8_mask(dirt) == 0).then_some(used)
}

#[target_feature(enable = "avx2")]
pub(super) fn encode_avx2(raw: &[u8], out: &mut [MaybeUninit<u8>]) -> usize {
    let room = out.as_chunks_mut::<32>().0;
    let used = (raw.len() / 24).min(room.len()) * 24;
    let mut rest = raw;
    let mut before: &[u8] = &[];
    for symbols in room {
        let Some(block) = rest.first_chunk::<24>() else { break };
        // One load where the 4 bytes in front of the block and the 4 behind it are there.
        let bytes = before.first_chunk::<32>().map_or_else(|| load_24(block), |all| load_32(all));
        before = rest.get(20..).unwrap_or_default();
        rest = rest.get(24..).unwrap_or_default();
        // SAFETY: the array has the 32 bytes that are written; no alignment is needed.
        unsafe { _mm256_storeu_si256(symbols.as_mut_ptr().cast(), to_ascii(to_indices(bytes))) };
    }
    used
}

/// Spreads 24 bytes, which stand in the middle of 32, to 32 values of six bits.
#[inline]
#[target_feature(enable = "avx2")]
fn to_indices(bytes: __m256i) -> __m256i {
    let spread = load_32(&[
        5, 4, 6, 5, 8, 7, 9, 8, 11, 10, 12, 11, 14, 13, 15, 14, //
        1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10,
    ]);
    let triples = _mm256_shuffle_epi8(bytes, spread);
    let odd = _mm256_and_si256(triples, _mm256_set1_epi32(0x0fc0_fc00));
    let even = _mm256_and_si256(triples, _mm256_set1_epi32(0x003f_03f0));
    // Products by powers of two shift each word by its own distance.
    _mm256_or_si256(
        high_halves(odd, _mm256_set1_epi32(0x0400_0040)),
        low_halves(even, _mm256_set1_epi32(0x0100_0010)),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn to_ascii(indices: __m256i) -> __m256i {
    // From a range of values to the distance of its symbols: A-Z, a-z, ten digits, +, /.
    let distances =
        both_lanes(&[65, 71, 252, 252, 252, 252, 252, 252, 252, 252, 252, 252, 237, 240, 0, 0]);
    let is_beyond_upper_case = _mm256_cmpgt_epi8(indices, _mm256_set1_epi8(25));
    let range =
        _mm256_sub_epi8(_mm256_subs_epu8(indices, _mm256_set1_epi8(51)), is_beyond_upper_case);
    _mm256_add_epi8(indices, _mm256_shuffle_epi8(distances, range))
}

/// Multiplies 16-bit words and keeps the upper halves, which is a shift to the right.
#[inline]
#[target_feature(enable = "avx2")]
fn high_halves(words: __m256i, factors: __m256i) -> __m256i {
    let product;
    // SAFETY: one instruction on registers, which the target feature allows. `_mm256_mulhi_epu16`
    // is the same, but LLVM 22 widens it to 32 bits here, which halves the speed of the encoder.
    unsafe {
        asm!(
            "vpmulhuw {product}, {words}, {factors}",
            product = lateout(ymm_reg) product,
            words = in(ymm_reg) words,
            factors = in(ymm_reg) factors,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    product
}

/// Multiplies 16-bit words and keeps the lower halves, which is a shift to the left.
#[inline]
#[target_feature(enable = "avx2")]
fn low_halves(words: __m256i, factors: __m256i) -> __m256i {
    let product;
    // SAFETY: as above. LLVM would make three shifts and a blend of `_mm256_mullo_epi16`.
    unsafe {
        asm!(
            "vpmullw {product}, {words}, {factors}",
            product = lateout(ymm_reg) product,
            words = in(ymm_reg) words,
            factors = in(ymm_reg) factors,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    product
}

/// Puts a block into the middle of 32 bytes: its upper half starts the upper lane.
#[inline]
#[target_feature(enable = "avx2")]
fn load_24(block: &[u8; 24]) -> __m256i {
    let start: *const u8 = block.as_ptr();
    // SAFETY: bytes 0..16 and 8..24 lie inside the array; the loads need no alignment.
    let (low, high): (__m128i, __m128i) =
        unsafe { (_mm_loadu_si128(start.cast()), _mm_loadu_si128(start.add(8).cast())) };
    _mm256_set_m128i(_mm_srli_si128::<4>(high), _mm_slli_si128::<4>(low))
}

#[target_feature(enable = "avx2")]
pub(super) fn decode_avx2(text: &[u8], out: &mut [MaybeUninit<u8>]) -> Option<usize> {
    // A symbol is wrong where the classes of its two nibbles share a bit.
    let low_classes = both_lanes(&[
        0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1a, 0x1b, 0x1b, 0x1b,
        0x1a,
    ]);
    let high_classes = both_lanes(&[
        0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10,
        0x10,
    ]);
    // From the upper nibble to the distance of its values; `/` counts as nibble 1.
    let distances = both_lanes(&[0, 16, 19, 4, 191, 191, 185, 185, 0, 0, 0, 0, 0, 0, 0, 0]);
    let pack_lane = both_lanes(&[2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, 255, 255, 255, 255]);
    let join_lanes = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
    let low_nibble = _mm256_set1_epi8(0x2f);
    let mut dirt = _mm256_setzero_si256();
    let blocks = text.as_chunks::<32>().0;
    let used = blocks.len().min(out.len() / 24) * 32;
    let mut rest = out;
    for block in blocks {
        let symbols = load_32(block);
        // 0x2f keeps bit 5, which the shuffle ignores, and makes one constant of two.
        let upper = _mm256_and_si256(_mm256_srli_epi32::<4>(symbols), low_nibble);
        let lower = _mm256_and_si256(symbols, low_nibble);
        dirt = _mm256_or_si256(
            dirt,
            _mm256_and_si256(
                _mm256_shuffle_epi8(low_classes, lower),
                _mm256_shuffle_epi8(high_classes, upper),
            ),
        );
        let is_slash = _mm256_cmpeq_epi8(symbols, low_nibble);
        let distance = _mm256_shuffle_epi8(distances, _mm256_add_epi8(is_slash, upper));
        let values = _mm256_add_epi8(symbols, distance);
        let merged = _mm256_madd_epi16(
            _mm256_maddubs_epi16(values, _mm256_set1_epi32(0x0140_0140)),
            _mm256_set1_epi32(0x0001_1000),
        );
        let packed =
            _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(merged, pack_lane), join_lanes);
        // As in AVX-512: the 8 surplus bytes are overwritten by the next block.
        if let Some(place) = rest.first_chunk_mut::<32>() {
            // SAFETY: the array has the 32 bytes that are written; no alignment is needed.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), packed) };
        } else if let Some(place) = rest.first_chunk_mut::<24>() {
            store_24(packed, place);
        } else {
            break;
        }
        rest = rest.get_mut(24..).unwrap_or_default();
    }
    (_mm256_testz_si256(dirt, dirt) == 1).then_some(used)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_24(packed: __m256i, bytes: &mut [MaybeUninit<u8>; 24]) {
    let start: *mut u8 = bytes.as_mut_ptr().cast();
    let high = _mm256_extracti128_si256::<1>(packed);
    // SAFETY: bytes 0..16 and 16..24 lie inside the array; the stores need no alignment.
    unsafe {
        _mm_storeu_si128(start.cast(), _mm256_castsi256_si128(packed));
        _mm_storel_epi64(start.add(16).cast(), high);
    }
}
