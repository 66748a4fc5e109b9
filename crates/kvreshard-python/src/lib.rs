//! Python bindings of kvreshard: types in, numpy out, no logic.

mod errors;
mod format;

use pyo3::prelude::*;

/// The native module of kvreshard; import `kvreshard`.
#[pymodule(gil_used = false)]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::format::PageFormat;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::errors::register(module)
    }
}
