//! Objects filled in place and buffers read in place: the one `unsafe` place of the binding.

#![allow(unsafe_code)] // the C API; each block says why it is sound

use core::mem::MaybeUninit;
use core::{ptr, slice};
use std::ffi::{CStr, c_char, c_int};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::string::PyStringData;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString};

use crate::CoreError;
use crate::capped::Store;

unsafe extern "C" {
    // Exported by every CPython and not declared by PyO3.
    fn _PyBytes_Resize(bytes: *mut *mut ffi::PyObject, size: ffi::Py_ssize_t) -> c_int;
}

/// Returns the code points of a `str` without copying them.
pub(super) fn code_points<'a>(text: &'a Bound<'_, PyString>) -> PyResult<PyStringData<'a>> {
    // SAFETY: a `str` never changes, and is kept alive by the reference that `'a` stands for.
    // PyO3 reads the state bit field, which its own CI and our tests check on our platforms.
    unsafe { text.data() }
}

/// Returns an `int` as `u64`; else whether it is negative.
pub(super) fn unsigned(value: &Bound<'_, PyAny>) -> PyResult<Result<u64, bool>> {
    let mut overflow: c_int = 0;
    // SAFETY: `value` is a live object. For an `int`, subclasses too, no Python code runs.
    let small = unsafe { ffi::PyLong_AsLongLongAndOverflow(value.as_ptr(), &raw mut overflow) };
    if overflow == 0 {
        if small == -1 && PyErr::occurred(value.py()) {
            return Err(PyErr::fetch(value.py()));
        }
        return Ok(u64::try_from(small).map_err(|_| true));
    }
    if overflow < 0 {
        return Ok(Err(true));
    }
    Ok(value.extract::<u64>().map_err(|_| false))
}

/// The exported buffer of a `memoryview`. No Python code runs to get it.
pub(super) struct View(Box<ffi::Py_buffer>);

impl View {
    pub(super) fn new(view: &Bound<'_, PyMemoryView>) -> PyResult<Self> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        let flags = ffi::PyBUF_FULL_RO;
        // SAFETY: a live object and room for the answer, which stays where it is in its box.
        if unsafe { ffi::PyObject_GetBuffer(view.as_ptr(), &raw mut *buffer, flags) } == 0 {
            Ok(Self(buffer))
        } else {
            Err(PyErr::fetch(view.py()))
        }
    }

    pub(super) fn is_contiguous(&self) -> bool {
        // SAFETY: the buffer was filled by `PyObject_GetBuffer`, and `C` is one of the orders.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, b'C'.cast_signed() as c_char) == 1 }
    }

    /// Returns the format of an item; unsigned bytes where the exporter names none.
    pub(super) fn format(&self) -> &[u8] {
        if self.0.format.is_null() {
            return b"B";
        }
        // SAFETY: a C string that lives as long as the buffer is exported.
        unsafe { CStr::from_ptr(self.0.format) }.to_bytes()
    }

    pub(super) fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// Copies the bytes of a contiguous view.
    pub(super) fn to_vec(&self) -> Result<Vec<u8>, CoreError> {
        let size = self.len();
        let mut copy = room_for(size)?;
        if size > 0 && self.is_contiguous() {
            // SAFETY: `size` bytes start at the pointer and live as long as they are exported; the
            // vector has room for them and nothing else points into it. A thread that writes to
            // the memory without the interpreter's lock makes the copy torn, as any copy would be.
            unsafe {
                ptr::copy_nonoverlapping(self.0.buf.cast::<u8>(), copy.as_mut_ptr(), size);
                copy.set_len(size);
            }
        }
        Ok(copy)
    }
}

/// Copies a `bytearray` as it is now.
pub(super) fn copy_array(array: &Bound<'_, PyByteArray>) -> Result<Vec<u8>, CoreError> {
    let mut copy = room_for(array.len())?;
    // SAFETY: nothing between here and the end of the copy runs Python code or gives up the
    // interpreter's lock, so nobody resizes the array meanwhile.
    copy.extend_from_slice(unsafe { array.as_bytes() });
    Ok(copy)
}

/// The caller decides the size, so that a lack of memory is an error and no abort.
fn room_for(size: usize) -> Result<Vec<u8>, CoreError> {
    let mut room = Vec::new();
    room.try_reserve_exact(size).map_err(|_| CoreError::Memory)?;
    Ok(room)
}

impl Drop for View {
    fn drop(&mut self) {
        // A view is made and dropped in one call, with the interpreter's lock held.
        Python::attach(|_| {
            // SAFETY: filled by `PyObject_GetBuffer` and released once.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
        });
    }
}

/// Makes a `bytes` of `size`; `fill` writes all of it where it succeeds.
pub(super) fn new_bytes<T>(
    py: Python<'_>,
    size: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<T, CoreError>,
) -> Result<(Bound<'_, PyBytes>, T), CoreError> {
    let mut store = BytesStore::default();
    if size > 0 {
        store.grow(size)?;
    }
    let value = fill(store.room())?;
    Ok((store.finish(size)?.into_bound(py), value))
}

/// Makes an ASCII `str` of `size` symbols; `fill` writes all of it, with ASCII, where it succeeds.
pub(super) fn new_ascii<T>(
    py: Python<'_>,
    size: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<T, CoreError>,
) -> Result<(Bound<'_, PyString>, T), CoreError> {
    if size == 0 {
        return Ok((PyString::new(py, ""), fill(&mut [])?));
    }
    let length = ffi::Py_ssize_t::try_from(size).map_err(|_| CoreError::Memory)?;
    // SAFETY: a new `str` of a size that is not 0 has one owner, this function, which gives it to
    // `text`; its data are `size` bytes for a largest code point of 127.
    let text = unsafe {
        let object = ffi::PyUnicode_New(length, 127);
        Bound::from_owned_ptr_or_opt(py, object).ok_or_else(|| forget_error(py))?
    };
    // SAFETY: as above. Nobody else sees the object before it is returned.
    let room = unsafe {
        let data = ffi::PyUnicode_DATA(text.as_ptr()).cast::<MaybeUninit<u8>>();
        slice::from_raw_parts_mut(data, size)
    };
    let value = fill(room)?;
    // SAFETY: `PyUnicode_New` makes nothing but a `str`.
    Ok((unsafe { text.cast_into_unchecked() }, value))
}

/// Most bytes, and most chunks, that are kept as they came. What stays smaller is copied once, into
/// memory of its size: a larger reserve is new memory from the kernel, page by page, which for
/// 64 KiB takes ten times as long as the copy. Kept chunks are memory that a stream's reader would
/// have used again, so they are few.
const KEPT_BYTES: usize = 128 << 10;
const KEPT_CHUNKS: usize = 16;

/// The accumulator's memory: one `bytes` object that nobody else has seen yet, or the first chunks.
#[derive(Default)]
pub(super) struct BytesStore {
    kept: Vec<Py<PyBytes>>,
    object: Option<Py<PyBytes>>,
    capacity: usize,
}

impl Store for BytesStore {
    type Output = Py<PyBytes>;

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn grow(&mut self, capacity: usize) -> Result<(), CoreError> {
        self.resize(capacity)?;
        self.copy_kept()
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        match &self.object {
            None => &mut [],
            // SAFETY: the object is a `bytes` of `capacity` bytes, which is not 0, so it is none of
            // the shared ones; it has no other owner, and `&mut self` guards it.
            Some(object) => unsafe {
                let data = ffi::PyBytes_AS_STRING(object.as_ptr()).cast_mut();
                slice::from_raw_parts_mut(data.cast::<MaybeUninit<u8>>(), self.capacity)
            },
        }
    }

    fn finish(mut self, length: usize) -> Result<Py<PyBytes>, CoreError> {
        if length == 0 {
            return Ok(Python::attach(|py| PyBytes::new(py, b"").unbind()));
        }
        if self.kept.len() == 1 {
            return self.kept.pop().ok_or(CoreError::Memory);
        }
        self.resize(length)?;
        self.copy_kept()?;
        self.object.ok_or(CoreError::Memory)
    }
}

impl BytesStore {
    /// Returns whether a chunk can be kept after `held` bytes, instead of copied.
    pub(super) fn may_keep(&self, held: usize, chunk: &[u8]) -> bool {
        self.object.is_none()
            && self.kept.len() < KEPT_CHUNKS
            && !chunk.is_empty()
            && chunk.len() <= KEPT_BYTES.saturating_sub(held)
    }

    pub(super) fn keep(&mut self, chunk: Py<PyBytes>) {
        self.kept.push(chunk);
    }

    /// Puts the kept chunks where they belong; there is room for them.
    fn copy_kept(&mut self) -> Result<(), CoreError> {
        let kept = core::mem::take(&mut self.kept);
        if kept.is_empty() {
            return Ok(());
        }
        Python::attach(|py| {
            let mut room = self.room();
            for chunk in &kept {
                let bytes = chunk.as_bytes(py);
                let (place, rest) =
                    room.split_at_mut_checked(bytes.len()).ok_or(CoreError::Memory)?;
                place.write_copy_of_slice(bytes);
                room = rest;
            }
            Ok(())
        })
    }

    fn resize(&mut self, capacity: usize) -> Result<(), CoreError> {
        if capacity == self.capacity {
            return Ok(());
        }
        let size = ffi::Py_ssize_t::try_from(capacity).map_err(|_| CoreError::Memory)?;
        let old = self.object.take();
        self.capacity = 0;
        Python::attach(|py| {
            // SAFETY: a new object, or one with this as its only owner: what `_PyBytes_Resize`
            // wants. It takes the reference and gives one back; on failure it frees the object
            // and leaves NULL. No content is read before it is written (`Capped::push`).
            let object = unsafe {
                let object = match old {
                    None => ffi::PyBytes_FromStringAndSize(ptr::null(), size),
                    Some(old) => {
                        let mut object = old.into_ptr();
                        _PyBytes_Resize(&raw mut object, size);
                        object
                    }
                };
                Bound::from_owned_ptr_or_opt(py, object).map(|made| made.cast_into_unchecked())
            };
            self.object = Some(object.ok_or_else(|| forget_error(py))?.unbind());
            self.capacity = capacity;
            Ok(())
        })
    }
}

/// Takes back the MemoryError that the C API has set; the caller raises its own.
fn forget_error(py: Python<'_>) -> CoreError {
    drop(PyErr::take(py));
    CoreError::Memory
}
