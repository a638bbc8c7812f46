//! `b64decode`, `b64encode` and their forms with a digest.

use core::mem::MaybeUninit;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::arguments::{Octets, Text, max_bytes};
use super::errors::to_python;
use super::{DETACH_BYTES, DETACH_HASH_BYTES, detached, hex, raw};
use crate::CoreError;
use crate::base64::{self, Kernel, Plan};
use crate::sha256::Sha256;

/// Decode canonical Base64, or refuse it: no input is repaired.
///
/// Standard alphabet, length a multiple of 4, padding exactly where due, unused trailing bits
/// zero. With `max_bytes` the checks come in this order: encoded length over
/// `4 * ceil(max_bytes / 3)`; length not a multiple of 4; decoded size, as the padding tells it,
/// over the bound; then the symbols. Nothing is allocated for the result before the last step.
/// A `str` counts in code points. Source: RFC 4648 sections 3.5 and 4.
///
/// Args:
///     data: The text. A `memoryview` must be C-contiguous and of single bytes.
///     max_bytes: Most bytes that the result may have; None for no bound.
///
/// Raises:
///     Base64Error: E2003, with the `offset` of the first offending symbol; the length of the
///         input where the length is wrong; the last symbol where its unused bits are not zero.
///     SizeLimitError: E3001, with the `limit`.
///     TypeError: `data` or `max_bytes` is of another type (`bool` is no `int` here).
///     ValueError: `max_bytes` is negative.
///     OverflowError: `max_bytes` is 2**64 or more.
#[pyfunction]
#[pyo3(signature = (data, /, *, max_bytes = None))]
pub(super) fn b64decode<'py>(
    data: &Bound<'py, PyAny>,
    max_bytes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    decode_with(data, max_bytes, |py, text, plan, out| {
        let kernel = Kernel::detect(text.len());
        detached(py, out.len(), DETACH_BYTES, || base64::decode(kernel, text, plan, out, |_| ()))
    })
    .map(|(bytes, ())| bytes)
}

/// Decode like `b64decode`, and give the lower-case hex sha256 of the decoded bytes with them.
///
/// Args:
///     data: As for `b64decode`.
///     max_bytes: As for `b64decode`.
///
/// Raises:
///     Base64Error: E2003, as `b64decode`.
///     SizeLimitError: E3001, as `b64decode`.
///     TypeError: As `b64decode`.
///     ValueError: As `b64decode`.
///     OverflowError: As `b64decode`.
#[pyfunction]
#[pyo3(signature = (data, /, *, max_bytes = None))]
pub(super) fn b64decode_sha256<'py>(
    data: &Bound<'py, PyAny>,
    max_bytes: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyString>)> {
    let (bytes, digest) = decode_with(data, max_bytes, |py, text, plan, out| {
        let kernel = Kernel::detect(text.len());
        detached(py, out.len(), DETACH_HASH_BYTES, || {
            let mut hash = Sha256::default();
            base64::decode(kernel, text, plan, out, |piece| hash.update(piece))?;
            Ok(hash.into_hex())
        })
    })?;
    Ok((bytes, hex(data.py(), &digest)?))
}

/// Encode bytes as canonical Base64: padded, without line breaks (RFC 4648 section 4).
///
/// Args:
///     data: The bytes. A `memoryview` must be C-contiguous and of single bytes.
///
/// Raises:
///     TypeError: `data` is of another type.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(super) fn b64encode<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    encode_with(data, |py, bytes, out| {
        let kernel = Kernel::detect(out.len());
        detached(py, bytes.len(), DETACH_BYTES, || base64::encode(kernel, bytes, out, |_| ()))
    })
    .map(|(text, ())| text)
}

/// Encode like `b64encode`, and give the lower-case hex sha256 of the raw bytes with it.
///
/// Args:
///     data: As for `b64encode`.
///
/// Raises:
///     TypeError: `data` is of another type.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(super) fn b64encode_sha256<'py>(
    data: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyString>, Bound<'py, PyString>)> {
    let (text, digest) = encode_with(data, |py, bytes, out| {
        let kernel = Kernel::detect(out.len());
        detached(py, bytes.len(), DETACH_HASH_BYTES, || {
            let mut hash = Sha256::default();
            base64::encode(kernel, bytes, out, |piece| hash.update(piece))?;
            Ok(hash.into_hex())
        })
    })?;
    Ok((text, hex(data.py(), &digest)?))
}

fn decode_with<'py, T>(
    data: &Bound<'py, PyAny>,
    cap: Option<&Bound<'py, PyAny>>,
    fill: impl FnOnce(Python<'py>, &[u8], Plan, &mut [MaybeUninit<u8>]) -> Result<T, CoreError>,
) -> PyResult<(Bound<'py, PyBytes>, T)> {
    let py = data.py();
    let text = Text::new(data)?;
    let cap = max_bytes(cap)?;
    let result = match text {
        Text::Octets(octets) => base64::check_length(octets.len(), cap).and_then(|()| {
            let text = octets.snapshot()?;
            let plan = Plan::new(text.len(), base64::trailing_padding(&text), cap)?;
            raw::new_bytes(py, plan.decoded_len(), |out| fill(py, &text, plan, out))
        }),
        Text::Wide16(points) => Err(refuse_wide(points, cap)),
        Text::Wide32(points) => Err(refuse_wide(points, cap)),
    };
    result.map_err(|error| to_python(py, error))
}

fn refuse_wide<S: Copy + Into<u32>>(points: &[S], cap: Option<u64>) -> CoreError {
    match Plan::new(points.len(), base64::trailing_padding(points), cap) {
        Ok(_) => base64::refusal(points),
        Err(error) => error,
    }
}

fn encode_with<'py, T>(
    data: &Bound<'py, PyAny>,
    fill: impl FnOnce(Python<'py>, &[u8], &mut [MaybeUninit<u8>]) -> Result<T, CoreError>,
) -> PyResult<(Bound<'py, PyString>, T)> {
    let py = data.py();
    Octets::new(data, "data")?
        .snapshot()
        .and_then(|bytes| {
            let symbols = base64::encoded_len(bytes.len()).ok_or(CoreError::Memory)?;
            raw::new_ascii(py, symbols, |out| fill(py, &bytes, out))
        })
        .map_err(|error| to_python(py, error))
}
