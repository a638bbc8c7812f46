//! Reading arguments: the same types, order of checks and texts as `_python/arguments.py`.
//!
//! No method of the caller's runs here: subclasses are read as the base type that they extend.

use std::borrow::Cow;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::string::PyStringData;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyInt, PyMemoryView, PyString};

use super::raw::{self, View};
use crate::CoreError;

/// A buffer of one of the types that are taken, not copied yet.
pub(super) enum Octets<'a, 'py> {
    Shared(&'a [u8]),
    ByteArray(&'a Bound<'py, PyByteArray>),
    View(View),
}

impl<'a, 'py> Octets<'a, 'py> {
    /// Takes `bytes`, `bytearray`, or a contiguous `memoryview` of single bytes.
    pub(super) fn new(data: &'a Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        Self::known(data)?.ok_or_else(|| {
            PyTypeError::new_err(format!("{name} must be bytes, bytearray or memoryview"))
        })
    }

    fn known(data: &'a Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return Ok(Some(Self::Shared(bytes.as_bytes())));
        }
        if let Ok(array) = data.cast::<PyByteArray>() {
            return Ok(Some(Self::ByteArray(array)));
        }
        let Ok(view) = data.cast::<PyMemoryView>() else { return Ok(None) };
        let view = View::new(view)?;
        if !view.is_contiguous() || !matches!(view.format(), b"B" | b"b" | b"c") {
            let text = "a memoryview must be C-contiguous and of single bytes";
            return Err(PyTypeError::new_err(text));
        }
        Ok(Some(Self::View(view)))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::ByteArray(array) => array.len(),
            Self::View(view) => view.len(),
        }
    }

    /// Returns the bytes as they are now: borrowed if they can never change, else copied.
    pub(super) fn snapshot(self) -> Result<Cow<'a, [u8]>, CoreError> {
        Ok(match self {
            Self::Shared(bytes) => Cow::Borrowed(bytes),
            Self::ByteArray(array) => Cow::Owned(raw::copy_array(array)?),
            Self::View(view) => Cow::Owned(view.to_vec()?),
        })
    }
}

/// A Base64 text of one of the types that are taken, not copied yet.
pub(super) enum Text<'a, 'py> {
    /// Bytes, or the code points of a `str` that are all below 256.
    Octets(Octets<'a, 'py>),
    /// A `str` with code points from 256, which can only be refused.
    Wide16(&'a [u16]),
    /// A `str` with code points from 65,536.
    Wide32(&'a [u32]),
}

impl<'a, 'py> Text<'a, 'py> {
    pub(super) fn new(data: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = data.cast::<PyString>() {
            return Ok(match raw::code_points(text)? {
                PyStringData::Ucs1(octets) => Self::Octets(Octets::Shared(octets)),
                PyStringData::Ucs2(points) => Self::Wide16(points),
                PyStringData::Ucs4(points) => Self::Wide32(points),
            });
        }
        Octets::known(data)?
            .map(Self::Octets)
            .ok_or_else(|| PyTypeError::new_err("data must be str, bytes, bytearray or memoryview"))
    }
}

/// Reads a byte count: an `int` (no `bool`) from 0 to 2**64 - 1.
pub(super) fn byte_count(value: &Bound<'_, PyAny>, name: &str, wanted: &str) -> PyResult<u64> {
    if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("{name} must be {wanted}")));
    }
    raw::unsigned(value)?.map_err(|negative| {
        if negative {
            PyValueError::new_err(format!("{name} must not be negative"))
        } else {
            PyOverflowError::new_err(format!("{name} must be below 2**64"))
        }
    })
}

/// Reads `max_bytes`, which may be None.
pub(super) fn max_bytes(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    value.map(|value| byte_count(value, "max_bytes", "an int or None")).transpose()
}
