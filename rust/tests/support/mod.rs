//! What the tests and the fuzz targets share: the core's functions on vectors, and a second, plain
//! reading of RFC 4648 section 4 to compare them with, which takes nothing from the core.

#![allow(dead_code, reason = "each program uses a part of it")]
#![allow(unsafe_code, reason = "reads room that was filled before the core wrote to it")]

use core::mem::MaybeUninit;

use agent_sandbox_core::CoreError;
use agent_sandbox_core::base64::{self, Kernel, Plan};

const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Room of `size`, filled, so that reading it is defined even where the core leaves a hole.
pub fn room(size: usize, filling: u8) -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::new(filling); size]
}

/// Reads room that `room` made.
pub fn read(room: &[MaybeUninit<u8>]) -> Vec<u8> {
    // SAFETY: `room` wrote every byte.
    room.iter().map(|slot| unsafe { slot.assume_init() }).collect()
}

/// Decodes with the core, twice over different fillings: a byte that it did not write shows.
pub fn decode(kernel: Kernel, text: &[u8], cap: Option<u64>) -> Result<Vec<u8>, CoreError> {
    let plan = Plan::new(text.len(), base64::trailing_padding(text), cap)?;
    let mut results = [0x00, 0xff].map(|filling| {
        let mut out = room(plan.decoded_len(), filling);
        let mut seen = Vec::new();
        base64::decode(kernel, text, plan, &mut out, |piece| seen.extend_from_slice(piece))?;
        assert_eq!(read(&out), seen, "what was seen is not what was written");
        Ok(seen)
    });
    assert_eq!(results[0], results[1], "a byte was not written");
    core::mem::replace(&mut results[0], Ok(Vec::new()))
}

/// Encodes with the core, as `decode` decodes.
pub fn encode(kernel: Kernel, raw: &[u8]) -> Result<Vec<u8>, CoreError> {
    let size = base64::encoded_len(raw.len()).ok_or(CoreError::Memory)?;
    let mut results = [0x00, 0xff].map(|filling| {
        let mut out = room(size, filling);
        let mut seen = Vec::new();
        base64::encode(kernel, raw, &mut out, |piece| seen.extend_from_slice(piece))?;
        assert_eq!(seen, raw, "what was seen is not what was encoded");
        Ok(read(&out))
    });
    assert_eq!(results[0], results[1], "a symbol was not written");
    core::mem::replace(&mut results[0], Ok(Vec::new()))
}

/// Returns the bytes, or the offset that the contract names.
pub fn reference_decode(text: &[u8]) -> Result<Vec<u8>, usize> {
    if !text.len().is_multiple_of(4) {
        return Err(text.len());
    }
    let padding = match text {
        [.., b'=', b'='] => 2,
        [.., b'='] => 1,
        _ => 0,
    };
    let body = text.len() - padding;
    let mut bits: u32 = 0;
    let mut bit_count = 0;
    let mut bytes = Vec::new();
    for (offset, &symbol) in text.iter().take(body).enumerate() {
        let value = ALPHABET.find(char::from(symbol)).ok_or(offset)?;
        bits = bits << 6 | u32::try_from(value).map_err(|_| offset)?;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push(u8::try_from(bits >> bit_count).map_err(|_| offset)?);
            bits &= (1 << bit_count) - 1;
        }
    }
    if bits == 0 { Ok(bytes) } else { Err(body - 1) }
}
