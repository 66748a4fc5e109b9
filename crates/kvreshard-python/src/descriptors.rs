//! `verify_descriptors`.

use kvreshard::lower::Descriptor;
use kvreshard::plan::Direction;
use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::Raise;
use crate::layout::RankLayout;

/// Proves of a raw list that both sides stay inside one region each and that no byte of the destination is written twice.
#[pyfunction]
#[pyo3(signature = (local, remote, local_list, remote_list, /, *, direction="read"))]
pub(crate) fn verify_descriptors(
    py: Python<'_>,
    local: &RankLayout,
    remote: &RankLayout,
    local_list: PyReadonlyArray2<'_, u64>,
    remote_list: PyReadonlyArray2<'_, u64>,
    direction: &str,
) -> PyResult<()> {
    let direction: Direction = direction.parse().raised(py)?;
    if local_list.shape() != remote_list.shape() || local_list.shape().get(1) != Some(&3) {
        return Err(PyValueError::new_err("both lists must be of shape (N, 3), rows of [address, bytes, device]"));
    }
    let (here, there) = (local_list.as_array(), remote_list.as_array());
    let rows = here.rows().into_iter().zip(there.rows());
    let list: Vec<Descriptor> =
        rows.map(|(here, there)| descriptor(here.to_vec(), there.to_vec())).collect::<PyResult<_>>()?;
    py.detach(|| kvreshard::verify::descriptors(&local.0, &remote.0, direction, &list)).raised(py)
}

fn descriptor(here: Vec<u64>, there: Vec<u64>) -> PyResult<Descriptor> {
    match (here.as_slice(), there.as_slice()) {
        (&[local, length, local_device], &[remote, other, remote_device]) if length == other => Ok(Descriptor {
            local,
            remote,
            length,
            local_device: u32::try_from(local_device)?,
            remote_device: u32::try_from(remote_device)?,
        }),
        _ => Err(PyValueError::new_err("a row has not the same length on both sides")),
    }
}
