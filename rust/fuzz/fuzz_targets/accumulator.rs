//! Any limit, message and split: the whole and its digest, or the limit and nothing ever after.
//!
//! Input: two bytes of limit, one byte of a number of cuts, two bytes for each cut, the message.

#![no_main]

#[path = "../../tests/support/mod.rs"]
mod support;

use core::mem::MaybeUninit;

use agent_sandbox_core::CoreError;
use agent_sandbox_core::capped::Capped;
use agent_sandbox_core::sha256::{Sha256, to_hex};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(([a, b, count], rest)) = input.split_first_chunk() else { return };
    let limit = u64::from(u16::from_le_bytes([*a, *b]));
    let Some((cuts, message)) = rest.split_at_checked(usize::from(*count) * 2) else { return };
    let mut ends: Vec<usize> = cuts
        .as_chunks()
        .0
        .iter()
        .map(|cut| usize::from(u16::from_le_bytes(*cut)).min(message.len()))
        .collect();
    ends.push(message.len());
    ends.sort_unstable();

    let mut capped = Capped::<Vec<MaybeUninit<u8>>>::new(limit, true);
    let mut start = 0;
    let mut failed = false;
    for end in ends {
        let fits = !failed && end as u64 <= limit;
        let result = capped.append(&message[start..end]);
        assert_eq!(result, if fits { Ok(()) } else { Err(CoreError::SizeLimit { limit }) });
        failed = !fits;
        start = end;
    }
    if failed {
        let over = CoreError::SizeLimit { limit };
        assert_eq!(capped.len(), Err(over));
        assert_eq!(capped.hexdigest(), Err(over));
        assert_eq!(capped.finish().err(), Some(over));
    } else {
        let mut hash = Sha256::default();
        hash.update(message);
        let whole = capped.finish().map(|room| support::read(&room));
        assert_eq!(whole.as_deref(), Ok(message));
        assert_eq!(capped.hexdigest(), Ok(to_hex(&hash.digest())));
    }
});
