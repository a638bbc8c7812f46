//! The byte core of `agent_sandbox`: strict Base64, sha256 and bounded accumulation.
//!
//! Everything here takes slices and knows no Python; `python` is the only binding. The promises
//! are those of `agent_sandbox.bytestream`, whose pure-Python form gives equal results.

pub mod base64;
pub mod capped;
pub mod error;
pub mod sha256;
mod simd;

#[cfg(feature = "python")]
mod python;

pub use error::CoreError;
