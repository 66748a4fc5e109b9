//! Numbers in and out: numpy arrays that own what the core made, and block ids that fit.

use kvreshard::lower::Row;
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadwriteArray1};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyString};

use crate::errors::bad_request;

/// A uint64 table of `columns` columns that takes `flat` over without a copy.
pub(crate) fn table(py: Python<'_>, flat: Vec<u64>, columns: usize) -> PyResult<Bound<'_, PyArray2<u64>>> {
    let rows = flat.len().checked_div(columns).unwrap_or_default();
    let array = Array2::from_shape_vec((rows, columns), flat);
    Ok(array.map_err(|error| PyValueError::new_err(error.to_string()))?.into_pyarray(py))
}

/// Rows of one descriptor each as a flat table of address, bytes, device.
pub(crate) fn flattened(rows: &[Row]) -> Vec<u64> {
    rows.iter().flat_map(|row| [row.address, row.length, row.device]).collect()
}

/// An array to be filled: writable, C-contiguous int32 of at least `count` elements.
pub(crate) struct Target<'py> {
    array: Bound<'py, PyArray1<i32>>,
    borrowed: PyReadwriteArray1<'py, i32>,
    count: usize,
}

impl<'py> Target<'py> {
    pub(crate) fn new(array: &Bound<'py, PyArray1<i32>>, count: usize) -> PyResult<Self> {
        let borrowed = array.try_readwrite().map_err(|error| PyTypeError::new_err(format!("out: {error}")))?;
        let found = array.len()?;
        if found < count {
            return Err(bad_request(array.py(), "out", found, format!("at least {count} elements")));
        }
        Ok(Self { array: array.clone(), borrowed, count })
    }

    /// The elements to fill.
    pub(crate) fn slice(&mut self) -> PyResult<&mut [i32]> {
        let whole = self.borrowed.as_slice_mut().map_err(|error| PyTypeError::new_err(format!("out: {error}")))?;
        Ok(whole.get_mut(..self.count).unwrap_or_default())
    }

    /// The filled elements, as a view of the array.
    pub(crate) fn view(self) -> PyResult<Bound<'py, PyArray1<i32>>> {
        // Not PySlice::new: up to PyO3 0.28 at least it leaks its three numbers.
        let front = self.array.py().get_type::<PySlice>().call1((self.count,))?;
        Ok(self.array.as_any().get_item(front)?.cast_into()?)
    }
}

/// Block ids from an int32 or int64 array, or from a sequence of ints. Nothing is truncated: NIXL would be handed another block.
pub(crate) fn block_ids(given: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    if let Ok(array) = given.cast::<PyArray1<i32>>() {
        return Ok(array.try_readonly()?.as_array().to_vec());
    }
    let fits = |id: i64| i32::try_from(id).ok().filter(|id| *id >= 0);
    let refused = |found: String| bad_request(given.py(), "block id", found, "at least 0 and below 2**31".to_owned());
    if let Ok(array) = given.cast::<PyArray1<i64>>() {
        let array = array.try_readonly()?;
        return array.as_array().iter().map(|id| fits(*id).ok_or_else(|| refused(id.to_string()))).collect();
    }
    // A mask is not a list of ids, though older numpy lets its members pass as integers.
    if given.is_instance_of::<PyString>() || given.cast::<PyArray1<bool>>().is_ok() {
        return Err(PyTypeError::new_err("block ids must be integers"));
    }
    let ids = given.try_iter()?.map(|id| {
        let id = id?;
        match id.extract::<i64>() {
            Ok(number) => fits(number).ok_or_else(|| refused(number.to_string())),
            Err(error) if error.is_instance_of::<PyOverflowError>(id.py()) => Err(refused(id.to_string())),
            Err(_) => Err(PyTypeError::new_err(format!("block ids must be integers, found {}", id.get_type().name()?))),
        }
    });
    ids.collect()
}
