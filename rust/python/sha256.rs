//! The class `Sha256`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyString};

use super::arguments::Octets;
use super::errors::to_python;
use super::{DETACH_HASH_BYTES, detached, hex, raw};
use crate::sha256;

/// A running SHA-256 (FIPS 180-4): the digest depends on the bytes, not on their chunking.
///
/// Calls from several threads on one object are serialised. A mutable buffer is copied on entry.
#[pyclass(frozen, module = "agent_sandbox.bytestream")]
pub(super) struct Sha256(Mutex<sha256::Sha256>);

impl Sha256 {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, sha256::Sha256> {
        self.0.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Sha256 {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Hash more bytes.
    ///
    /// Args:
    ///     data: The bytes. A `memoryview` must be C-contiguous and of single bytes.
    ///
    /// Raises:
    ///     TypeError: `data` is of another type.
    #[pyo3(signature = (data, /))]
    fn update(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = data.py();
        let bytes = Octets::new(data, "data")?.snapshot().map_err(|error| to_python(py, error))?;
        let mut guard = self.lock(py);
        let hash = &mut *guard;
        detached(py, bytes.len(), DETACH_HASH_BYTES, || hash.update(&bytes));
        Ok(())
    }

    /// Return the 32 bytes of the digest of everything so far; more may follow.
    fn digest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let digest = self.lock(py).digest();
        raw::new_bytes(py, digest.len(), |out| {
            out.write_copy_of_slice(&digest);
            Ok(())
        })
        .map(|(bytes, ())| bytes)
        .map_err(|error| to_python(py, error))
    }

    /// Return the digest of everything so far in lower-case hex; more may follow.
    fn hexdigest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let copy = self.lock(py).clone();
        hex(py, &copy.into_hex())
    }

    /// Return an independent hash that has seen the same bytes.
    fn copy(&self, py: Python<'_>) -> Self {
        Self(Mutex::new(self.lock(py).clone()))
    }

    #[expect(clippy::unused_self, reason = "a method of Python's protocol")]
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'Sha256' object"))
    }
}
