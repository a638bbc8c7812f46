//! From `CoreError` to Python exceptions: one table, used everywhere.

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::CoreError;

const ERRORS: &str = "agent_sandbox.errors";
static BASE64_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static SIZE_LIMIT_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

pub(super) fn to_python(py: Python<'_>, error: CoreError) -> PyErr {
    let made = match error {
        CoreError::Base64 { offset } => {
            BASE64_ERROR.import(py, ERRORS, "Base64Error").and_then(|class| class.call1((offset,)))
        }
        CoreError::SizeLimit { limit } => SIZE_LIMIT_ERROR
            .import(py, ERRORS, "SizeLimitError")
            .and_then(|class| class.call1((limit,))),
        CoreError::Finished | CoreError::NoDigest => {
            return PyValueError::new_err(error.to_string());
        }
        CoreError::Memory => return PyMemoryError::new_err(()),
    };
    made.map_or_else(|failure| failure, PyErr::from_value)
}
