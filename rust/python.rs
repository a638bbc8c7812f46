//! The Python module `agent_sandbox.bytestream._native`: the only place that knows PyO3.
//!
//! It reads arguments, fills results in place, lets other threads run where that pays, and turns
//! `CoreError` into Python exceptions. Nothing here decides about bytes.
//!
//! Threads: only immutable `bytes` and `str` data is read while detached, since any other buffer
//! may change; those are copied first. A lock is never waited for while attached, so a thread that
//! comes back to the interpreter with a lock held cannot meet one that waits for it.

#![allow(
    clippy::doc_markdown,
    clippy::doc_lazy_continuation,
    reason = "these are docstrings of Python"
)]

mod arguments;
mod base64;
mod capped;
mod errors;
mod raw;
mod sha256;

use pyo3::prelude::*;
use pyo3::types::PyString;

/// Work of at least so many bytes lets other threads run. Detaching costs 100 ns, and a wait where
/// the interpreter's lock is contended; 256 KiB are copied or decoded in 6 to 60 us.
const DETACH_BYTES: usize = 256 << 10;

/// As `DETACH_BYTES`, for hashing, which takes 8 to 40 us for so many.
const DETACH_HASH_BYTES: usize = 16 << 10;

/// Runs `work`, without the interpreter's lock where `bytes` reaches `threshold`.
fn detached<T: Send>(
    py: Python<'_>,
    bytes: usize,
    threshold: usize,
    work: impl FnOnce() -> T + Send,
) -> T {
    if bytes < threshold { work() } else { py.detach(work) }
}

/// Makes a `str` of a digest.
fn hex<'py>(py: Python<'py>, digest: &[u8; 64]) -> PyResult<Bound<'py, PyString>> {
    raw::new_ascii(py, digest.len(), |out| {
        out.write_copy_of_slice(digest);
        Ok(())
    })
    .map(|(text, ())| text)
    .map_err(|error| errors::to_python(py, error))
}

// Not yet proved on a free-threaded build, so that one takes its lock back for this module.
/// The byte core in Rust; import `agent_sandbox.bytestream` instead, which chooses.
#[pymodule(gil_used = true)]
#[pyo3(name = "_native")]
mod native {
    #[pymodule_export]
    use super::base64::{b64decode, b64decode_sha256, b64encode, b64encode_sha256};
    #[pymodule_export]
    use super::capped::CappedBytes;
    #[pymodule_export]
    use super::sha256::Sha256;
}
