//! `RankLayout`.

use std::collections::HashMap;

use kvreshard::layout::{self as core, Position, RankParts};
use kvreshard::shard::{ContextParallel, Place};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Raise;
use crate::gil::released;
use crate::layer::{Group, Layer, Pair, Region};

/// What pickle calls, and with what.
type Reduced<'py> = (Bound<'py, PyAny>, (Bound<'py, PyBytes>,));

/// All that a peer must know of one rank.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RankLayout(pub(crate) core::RankLayout);

#[pymethods]
impl RankLayout {
    #[new]
    #[pyo3(
        signature = (*, engine, layers, groups=None, generation=0, tp=(0, 1), pp=(0, 1), cp=(0, 1), cp_interleave=1),
        text_signature =
            "(*, engine, layers, groups=None, generation=0, tp=(0, 1), pp=(0, 1), cp=(0, 1), cp_interleave=1)"
    )]
    #[allow(clippy::too_many_arguments)] // They are keywords.
    fn new(
        py: Python<'_>,
        engine: String,
        layers: Vec<Layer>,
        groups: Option<Vec<Group>>,
        generation: u64,
        tp: Pair,
        pp: Pair,
        cp: Pair,
        cp_interleave: u64,
    ) -> PyResult<Self> {
        let place = |(rank, size)| Place::new(rank, size);
        let build = || {
            let cp = ContextParallel::new(place(cp)?, cp_interleave)?;
            let position = Position { tp: place(tp)?, pp: place(pp)?, cp };
            let mut numbers = HashMap::new();
            let mut regions = Vec::new();
            let mut number = |region| {
                *numbers.entry(region).or_insert_with(|| {
                    regions.push(region);
                    regions.len().saturating_sub(1)
                })
            };
            let layers = layers.iter().map(|layer| layer.numbered(&mut number)).collect::<kvreshard::Result<_>>()?;
            let groups = groups.map_or(vec![core::Group::PLAIN], |groups| groups.iter().map(|group| group.0).collect());
            core::RankLayout::new(RankParts { engine, generation, position, regions, groups, layers })
        };
        build().map(Self).raised(py)
    }

    #[getter]
    fn engine(&self) -> &str {
        self.0.engine()
    }

    #[getter]
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    #[getter]
    fn tp(&self) -> Pair {
        let place = self.0.position().tp;
        (place.rank(), place.size())
    }

    #[getter]
    fn pp(&self) -> Pair {
        let place = self.0.position().pp;
        (place.rank(), place.size())
    }

    #[getter]
    fn cp(&self) -> Pair {
        let place = self.0.position().cp.place();
        (place.rank(), place.size())
    }

    #[getter]
    fn cp_interleave(&self) -> u64 {
        self.0.position().cp.interleave()
    }

    #[getter]
    fn regions(&self) -> Vec<Region> {
        self.0.regions().iter().copied().map(Region).collect()
    }

    #[getter]
    fn groups(&self) -> Vec<Group> {
        self.0.groups().iter().copied().map(Group).collect()
    }

    #[getter]
    fn tokens_per_block(&self, py: Python<'_>) -> PyResult<Vec<Option<u64>>> {
        (0..self.0.groups().len()).map(|group| self.0.tokens_per_block(group).raised(py)).collect()
    }

    #[getter]
    fn layers(&self) -> Vec<Layer> {
        // A layout is valid when made, so every segment's region exists.
        self.0.layers().iter().filter_map(|layer| Layer::of(layer, self.0.regions())).collect()
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &py.detach(|| self.0.to_bytes()).raised(py)?))
    }

    #[staticmethod]
    #[pyo3(signature = (data, /))]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        // A layer takes some hundred bytes of a message.
        released(py, data.len() / 64, || core::RankLayout::from_bytes(data)).map(Self).raised(py)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        Ok((py.get_type::<Self>().getattr("from_bytes")?, (self.to_bytes(py)?,)))
    }

    fn __repr__(&self) -> String {
        let (tp, pp, cp) = (self.tp(), self.pp(), self.cp());
        format!(
            "RankLayout(engine={:?}, generation={}, tp={tp:?}, pp={pp:?}, cp={cp:?}, {} layers, {} regions)",
            self.engine(),
            self.generation(),
            self.0.layers().len(),
            self.0.regions().len(),
        )
    }
}
