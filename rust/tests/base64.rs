//! Base64 on every kernel that this CPU has, against the vectors and a second implementation.

mod support;

use agent_sandbox_core::CoreError;
use agent_sandbox_core::base64::{Kernel, Plan, check_length, encoded_len, first_offender};
use agent_sandbox_core::sha256::{Sha256, to_hex};
use serde_json::Value;
use support::{decode, encode, reference_decode};

const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes that repeat only after 64 KiB, so that a block in the wrong place shows.
fn sample(size: usize) -> Vec<u8> {
    (0..size).map(|i| ((i * 167) ^ (i >> 8)).to_le_bytes()[0]).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.as_chunks().0.iter().map(|[high, low]| (high << 4 | low).to_le_bytes()[0]).collect()
}

#[test]
fn the_vectors_are_decoded_encoded_hashed_and_refused() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../tests/vectors/base64.json")).unwrap();
    let accepted = vectors["accept"].as_array().unwrap();
    let rejected = vectors["reject"].as_array().unwrap();
    assert!(accepted.len() > 20 && rejected.len() > 50, "the vectors are not all there");
    for kernel in Kernel::all() {
        for vector in accepted {
            let text = vector["encoded"].as_str().unwrap().as_bytes();
            let raw = decode(kernel, text, None).unwrap();
            assert_eq!(raw, from_hex(vector["hex"].as_str().unwrap()));
            assert_eq!(encode(kernel, &raw).unwrap(), text);
            let mut hash = Sha256::default();
            hash.update(&raw);
            assert_eq!(to_hex(&hash.digest()), vector["sha256"].as_str().unwrap().as_bytes());
        }
        for vector in rejected {
            let text = vector["encoded"].as_str().unwrap();
            let refused = decode(kernel, text.as_bytes(), None);
            assert!(matches!(refused, Err(CoreError::Base64 { .. })), "{kernel:?} took {text:?}");
        }
    }
}

#[test]
fn every_length_comes_back_and_equals_the_reference() {
    for kernel in Kernel::all() {
        for size in (0..600).chain([12_287, 12_288, 12_289, 24_576, 40_000]) {
            let raw = sample(size);
            let text = encode(kernel, &raw).unwrap();
            assert_eq!(text.len(), encoded_len(size).unwrap());
            assert_eq!(reference_decode(&text).unwrap(), raw, "{kernel:?}, {size} bytes");
            assert_eq!(decode(kernel, &text, None).unwrap(), raw, "{kernel:?}, {size} bytes");
        }
    }
}

#[test]
fn every_byte_value_at_every_place_of_a_block_is_judged_as_by_the_reference() {
    let text = encode(Kernel::TABLES, &sample(96 + 46)).unwrap();
    for kernel in Kernel::all() {
        for place in 0..text.len() {
            for byte in 0..=255 {
                let mut changed = text.clone();
                changed[place] = byte;
                let expected =
                    reference_decode(&changed).map_err(|offset| CoreError::Base64 { offset });
                assert_eq!(decode(kernel, &changed, None), expected, "{byte} at {place}");
            }
        }
    }
}

#[test]
fn the_offset_is_that_of_the_first_of_several_wrong_symbols() {
    for kernel in Kernel::all() {
        for size in [300, 50_000] {
            let text = encode(kernel, &sample(size)).unwrap();
            for first in [0, 15, 16, 31, 32, 63, 64, 65, text.len() / 2, text.len() - 5] {
                let mut changed = text.clone();
                changed[first] = b'-';
                changed[text.len() - 3] = b'\n';
                let expected = Err(CoreError::Base64 { offset: first });
                assert_eq!(decode(kernel, &changed, None), expected, "{kernel:?}, {size} bytes");
            }
        }
    }
}

#[test]
fn exactly_four_and_sixteen_last_symbols_are_canonical() {
    for kernel in Kernel::all() {
        let accepted = |prefix: &str, suffix: &str| {
            let texts = SYMBOLS.iter().map(|&last| format!("{prefix}{}{suffix}", char::from(last)));
            texts.filter(|text| decode(kernel, text.as_bytes(), None).is_ok()).count()
        };
        assert_eq!(accepted("A", "=="), 4);
        assert_eq!(accepted("AA", "="), 16);
        assert_eq!(decode(kernel, b"QUJDQR==", None), Err(CoreError::Base64 { offset: 5 }));
        assert_eq!(decode(kernel, b"QUJDQUJ=", None), Err(CoreError::Base64 { offset: 6 }));
    }
}

#[test]
fn the_checks_come_in_the_order_of_the_contract() {
    let too_big = Err(CoreError::SizeLimit { limit: 1 });
    assert_eq!(decode(Kernel::TABLES, b"!!!!!", Some(1)), too_big, "the length comes first");
    let short = Err(CoreError::Base64 { offset: 3 });
    assert_eq!(decode(Kernel::TABLES, b"!!!", Some(1)), short, "then the multiple of 4");
    assert_eq!(decode(Kernel::TABLES, b"!!!=", Some(1)), too_big, "then the size");
    let symbol = Err(CoreError::Base64 { offset: 0 });
    assert_eq!(decode(Kernel::TABLES, b"!A==", Some(1)), symbol, "then the symbols");
    assert_eq!(decode(Kernel::TABLES, b"", Some(0)), Ok(Vec::new()));
    assert_eq!(decode(Kernel::TABLES, b"QQ==", Some(1)), Ok(b"A".to_vec()));
}

#[test]
fn no_cap_overflows() {
    assert_eq!(check_length(usize::MAX, Some(u64::MAX)), Ok(()));
    assert_eq!(check_length(5, Some(0)), Err(CoreError::SizeLimit { limit: 0 }));
    assert!(Plan::new(usize::MAX - 3, 2, Some(u64::MAX)).is_ok());
    assert_eq!(encoded_len(usize::MAX), None);
}

#[test]
fn code_points_beyond_bytes_are_outside_the_alphabet() {
    assert_eq!(first_offender(&[0x51_u16, 0x141, 0x3d]), Some(1));
    assert_eq!(first_offender(&[0x51_u32, 0x51, 0x1_0041]), Some(2));
    assert_eq!(first_offender(b"QQ=="), None);
    assert_eq!(first_offender(b"QQ=Q"), Some(2));
}
