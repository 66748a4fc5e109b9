//! Python bindings of kvreshard: types in, numpy out, no logic.

mod arrays;
mod check;
mod cost;
mod descriptors;
mod errors;
mod format;
mod gil;
mod layer;
mod layout;
mod pairing;
mod picture;
mod plan;
mod planned;
mod request;
mod ring;
mod route;
mod stock;
mod tags;
mod tiles;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What pickle calls the constructor with: positions and keywords.
type NewArguments<'py, A> = PyResult<(A, Bound<'py, PyDict>)>;

/// The native module of kvreshard; import `kvreshard`.
#[pymodule(gil_used = false)]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::check::{Finding, Report, check};
    #[pymodule_export]
    use crate::cost::{Cost, Transport};
    #[pymodule_export]
    use crate::descriptors::verify_descriptors;
    #[pymodule_export]
    use crate::format::{PageFormat, PresetInfo, preset, preset_info, presets};
    #[pymodule_export]
    use crate::layer::{Group, Layer, Region, Segment};
    #[pymodule_export]
    use crate::layout::RankLayout;
    #[pymodule_export]
    use crate::pairing::Pairing;
    #[pymodule_export]
    use crate::picture::{Picture, Piece};
    #[pymodule_export]
    use crate::plan::{Plan, plan, verify};
    #[pymodule_export]
    use crate::request::{Blocks, Request};
    #[pymodule_export]
    use crate::ring::{RingAction, RingReceiver, RingSender, ring_frame_to};
    #[pymodule_export]
    use crate::route::{Edge, Engine, Route, route};

    #[pymodule_export]
    use crate::stock::{Facts, StockHandshake, audit};
    #[pymodule_export]
    use crate::tags::RegionTags;
    #[pymodule_export]
    use crate::tiles::{Chunk, Landed, LandedChunk, Tile, Tiles};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::errors::register(module)
    }
}
