//! What can go wrong in the core, as values. The binding turns each into its Python exception.

use core::fmt;

/// Why the core refused an operation. None of them holds input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreError {
    /// The text is not canonical Base64.
    Base64 {
        /// Index of the first offending symbol; the length of the text where the length is wrong;
        /// the last symbol where unused trailing bits are not zero.
        offset: usize,
    },
    /// More bytes than the bound allows.
    SizeLimit {
        /// The bound, in bytes.
        limit: u64,
    },
    /// The accumulator has handed out its bytes already.
    Finished,
    /// The accumulator was made without a digest.
    NoDigest,
    /// There is no memory for the bytes.
    Memory,
}

impl fmt::Display for CoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base64 { .. } => "the text is not canonical Base64",
            Self::SizeLimit { .. } => "the data is larger than the limit",
            Self::Finished => "finish() was called before",
            Self::NoDigest => "the digest needs CappedBytes(limit, sha256=True)",
            Self::Memory => "out of memory",
        })
    }
}

impl std::error::Error for CoreError {}
