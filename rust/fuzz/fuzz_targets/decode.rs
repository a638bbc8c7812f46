//! Any bytes: every kernel says what the plain reference says, and what is decoded encodes back.

#![no_main]

#[path = "../../tests/support/mod.rs"]
mod support;

use agent_sandbox_core::CoreError;
use agent_sandbox_core::base64::Kernel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let expected = support::reference_decode(text).map_err(|offset| CoreError::Base64 { offset });
    for kernel in Kernel::all() {
        assert_eq!(support::decode(kernel, text, None), expected, "{kernel:?}");
        // The same bytes as raw data: encode, and read that with the reference.
        let encoded = support::encode(kernel, text);
        let back = encoded.as_deref().map(support::reference_decode);
        assert_eq!(back, Ok(Ok(text.to_vec())), "{kernel:?}");
        if let Ok(raw) = &expected {
            assert_eq!(support::encode(kernel, raw).as_deref(), Ok(text), "{kernel:?}");
            let size = raw.len() as u64;
            assert_eq!(support::decode(kernel, text, Some(size)), expected, "{kernel:?}");
            if let Some(limit) = size.checked_sub(1) {
                let refused = support::decode(kernel, text, Some(limit));
                assert_eq!(refused, Err(CoreError::SizeLimit { limit }), "{kernel:?}");
            }
        }
    }
});
