//! The class `CappedBytes`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBool, PyBytes, PyString};

use super::arguments::{Octets, byte_count};
use super::errors::to_python;
use super::raw::BytesStore;
use super::{DETACH_BYTES, DETACH_HASH_BYTES, detached, hex};
use crate::capped::Capped;

/// A keyword argument for which None is a value, and a wrong one.
#[derive(Clone, Copy)]
struct Flag<'a, 'py>(Option<Borrowed<'a, 'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Flag<'a, 'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(value)))
    }
}

/// Collect chunks into one `bytes` of at most `limit` bytes; the first byte more is refused.
///
/// A chunk that does not fit is not stored in part: the memory is given back, and that call and
/// every later one raise SizeLimitError. Nothing is reserved for a large limit. Calls from
/// several threads are serialised; a mutable chunk is copied on entry.
///
/// Args:
///     limit: Most bytes to hold, from 0 to 2**64 - 1.
///     sha256: Whether to hash the bytes as they come, for `hexdigest`.
///
/// Raises:
///     TypeError: `limit` is no `int` (`bool` is none here), or `sha256` is no `bool`.
///     ValueError: `limit` is negative.
///     OverflowError: `limit` is 2**64 or more.
#[pyclass(frozen, module = "agent_sandbox.bytestream")]
pub(super) struct CappedBytes {
    capped: Mutex<Capped<BytesStore>>,
    detach_bytes: usize,
}

impl CappedBytes {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Capped<BytesStore>> {
        self.capped.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl CappedBytes {
    #[new]
    #[pyo3(
        signature = (limit, /, *, sha256 = Flag(None)),
        text_signature = "(limit, /, *, sha256=False)"
    )]
    fn new(limit: &Bound<'_, PyAny>, sha256: Flag<'_, '_>) -> PyResult<Self> {
        let limit = byte_count(limit, "limit", "an int")?;
        let hashing = match sha256.0 {
            None => false,
            Some(flag) => flag
                .cast::<PyBool>()
                .map_err(|_| PyTypeError::new_err("sha256 must be a bool"))?
                .is_true(),
        };
        Ok(Self {
            capped: Mutex::new(Capped::new(limit, hashing)),
            detach_bytes: if hashing { DETACH_HASH_BYTES } else { DETACH_BYTES },
        })
    }

    /// Store one more chunk, all of it or nothing.
    ///
    /// Args:
    ///     chunk: The bytes. A `memoryview` must be C-contiguous and of single bytes.
    ///
    /// Raises:
    ///     SizeLimitError: E3001; the chunk does not fit, or an earlier one did not.
    ///     TypeError: `chunk` is of another type.
    ///     ValueError: `finish` was called before.
    ///     MemoryError: There is no room, or was none before; the accumulator has ended.
    #[pyo3(signature = (chunk, /))]
    fn append(&self, chunk: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = chunk.py();
        let mut guard = self.lock(py);
        if let Err(error) = guard.check_open() {
            drop(guard); // an exception is made by Python code, which may come back here
            return Err(to_python(py, error));
        }
        if let Ok(bytes) = chunk.cast_exact::<PyBytes>() {
            let octets = bytes.as_bytes();
            let taken = guard.would_take(octets.len());
            if taken.is_some_and(|(store, held)| store.may_keep(held, octets)) {
                let (capped, kept) = (&mut *guard, bytes.clone().unbind());
                let result = detached(py, octets.len(), self.detach_bytes, || {
                    capped.append_kept(octets, |store| store.keep(kept))
                });
                drop(guard);
                return result.map_err(|error| to_python(py, error));
            }
        }
        let octets = Octets::new(chunk, "chunk")?;
        let result = guard.reserve(octets.len()).and_then(|()| {
            let bytes = octets.snapshot().inspect_err(|&error| guard.fail(error))?;
            let capped = &mut *guard;
            detached(py, bytes.len(), self.detach_bytes, || capped.push(&bytes))
        });
        drop(guard);
        result.map_err(|error| to_python(py, error))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let result = self.lock(py).len();
        result.map_err(|error| to_python(py, error))
    }

    /// Hand out what was collected, once.
    ///
    /// Raises:
    ///     SizeLimitError: E3001; a chunk did not fit.
    ///     ValueError: `finish` was called before.
    fn finish(&self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        let result = self.lock(py).finish();
        result.map_err(|error| to_python(py, error))
    }

    /// Return the sha256 of everything so far in lower-case hex, also after `finish`.
    ///
    /// Raises:
    ///     SizeLimitError: E3001; a chunk did not fit.
    ///     ValueError: The object was made without `sha256=True`.
    fn hexdigest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let result = self.lock(py).hexdigest();
        result.map_err(|error| to_python(py, error)).and_then(|digest| hex(py, &digest))
    }

    #[expect(clippy::unused_self, reason = "a method of Python's protocol")]
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'CappedBytes' object"))
    }
}
