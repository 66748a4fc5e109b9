//! Python bindings of kvreshard.

use pyo3::prelude::*;

/// The native module.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
