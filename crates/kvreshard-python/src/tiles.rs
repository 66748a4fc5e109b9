//! `Tile`, `Tiles`, `Chunk`, `Landed`, `LandedChunk`: what kernels move.

use std::sync::{Arc, OnceLock};

use kvreshard::lower as core;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::arrays::table;
use crate::errors::Raise;
use crate::gil::released;
use crate::pairing::{Tables, descriptors};

/// A strided copy between a page and its place in a buffer.
#[pyclass(module = "kvreshard", frozen, eq, hash, skip_from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Tile(core::Tile);

#[pymethods]
impl Tile {
    #[getter]
    fn run(&self) -> u64 {
        self.0.run
    }

    #[getter]
    fn page(&self) -> u64 {
        self.0.page
    }

    #[getter]
    fn buffer(&self) -> u64 {
        self.0.buffer
    }

    #[getter]
    fn loops(&self) -> Vec<(u64, u64, u64)> {
        self.0.loops.iter().map(|one| (one.extent, one.page, one.buffer)).collect()
    }

    fn __repr__(&self) -> String {
        let core::Tile { run, page, buffer, .. } = self.0;
        format!("Tile(run={run}, page={page}, buffer={buffer}, loops={:?})", self.loops())
    }
}

/// The tiles of one side of a plan.
#[pyclass(module = "kvreshard", frozen, eq)]
#[derive(PartialEq, Eq)]
pub(crate) struct Tiles(pub(crate) Arc<core::Tiles>);

impl Tiles {
    pub(crate) fn new(tiles: core::Tiles) -> Self {
        Self(Arc::new(tiles))
    }
}

#[pymethods]
impl Tiles {
    #[getter]
    fn side(&self) -> &'static str {
        self.0.side().name()
    }

    #[getter]
    fn shapes(&self) -> Vec<Vec<Tile>> {
        self.0.shapes().iter().map(|shape| shape.iter().cloned().map(Tile).collect()).collect()
    }

    #[getter]
    fn lanes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let rows = self.0.lanes().iter();
        let flat = rows.map(|lane| {
            Ok([count(lane.shape)?, count(lane.region)?, lane.address, lane.stride, lane.pages, lane.unit])
        });
        let flat: kvreshard::Result<Vec<[u64; 6]>> = flat.collect();
        table(py, flat.raised(py)?.concat(), 6)
    }

    fn __repr__(&self) -> String {
        format!("Tiles({}, {} shapes, {} lanes)", self.side(), self.0.shapes().len(), self.0.lanes().len())
    }
}

/// What goes through a buffer at once, packed.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct Chunk {
    pairing: Arc<core::Pairing>,
    tiles: Arc<core::Tiles>,
    chunk: core::Chunk,
    moves: OnceLock<core::Moves>,
}

impl Chunk {
    pub(crate) fn new(pairing: &Arc<core::Pairing>, tiles: &Tiles, chunk: core::Chunk) -> Self {
        Self { pairing: pairing.clone(), tiles: tiles.0.clone(), chunk, moves: OnceLock::new() }
    }

    /// Made when first asked for: of a long request the first chunk need not wait for those of all others.
    fn moves(&self, py: Python<'_>) -> PyResult<&core::Moves> {
        if let Some(made) = self.moves.get() {
            return Ok(made);
        }
        let pairs = self.chunk.parts.iter().map(|part| part.pairs).sum();
        let made = released(py, pairs, || self.pairing.moves(&self.tiles, &self.chunk)).raised(py)?;
        Ok(self.moves.get_or_init(|| made))
    }
}

#[pymethods]
impl Chunk {
    #[getter]
    fn bytes(&self) -> u64 {
        self.chunk.bytes
    }

    #[getter]
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        parts(py, self.moves(py)?)
    }

    #[getter]
    fn pages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i32>>> {
        Ok(self.moves(py)?.pages.clone().into_pyarray(py))
    }

    #[getter]
    fn places<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i32>>> {
        Ok(self.moves(py)?.places.clone().into_pyarray(py))
    }

    #[getter]
    fn table_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.moves(py)?.table_bytes().raised(py)
    }

    #[pyo3(signature = (tiles, out, /, *, most=usize::MAX))]
    fn table(
        &self,
        py: Python<'_>,
        tiles: &Tiles,
        out: &Bound<'_, PyArray1<u8>>,
        most: usize,
    ) -> PyResult<DeviceTable> {
        device_table(self.moves(py)?, &tiles.0, out, most)
    }

    fn __repr__(&self) -> String {
        format!("Chunk({} bytes, {} parts)", self.chunk.bytes, self.chunk.parts.len())
    }
}

/// How a plan is landed.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct Landed(pub(crate) Arc<core::Landed>);

impl Landed {
    pub(crate) fn new(landed: core::Landed) -> Self {
        Self(Arc::new(landed))
    }
}

#[pymethods]
impl Landed {
    #[getter]
    fn tiles(&self) -> Tiles {
        Tiles::new(self.0.tiles().clone())
    }

    #[getter]
    fn spans(&self) -> Vec<u64> {
        self.0.landings().iter().map(|landing| landing.bytes).collect()
    }

    fn __repr__(&self) -> String {
        format!("Landed({} spans, {} lanes)", self.0.landings().len(), self.0.tiles().lanes().len())
    }
}

/// What goes through a buffer at once, landed.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct LandedChunk {
    pairing: Arc<core::Pairing>,
    landed: Arc<core::Landed>,
    chunk: core::LandedChunk,
    moves: core::Moves,
}

impl LandedChunk {
    pub(crate) fn new(pairing: &Arc<core::Pairing>, landed: &Arc<core::Landed>, chunk: core::LandedChunk) -> Self {
        let moves = chunk.moves();
        Self { pairing: pairing.clone(), landed: landed.clone(), chunk, moves }
    }
}

#[pymethods]
impl LandedChunk {
    #[getter]
    fn bytes(&self) -> u64 {
        self.chunk.bytes
    }

    #[getter]
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        parts(py, &self.moves)
    }

    #[getter]
    fn pages<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.moves.pages.clone().into_pyarray(py)
    }

    #[getter]
    fn places<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.moves.places.clone().into_pyarray(py)
    }

    #[pyo3(signature = (buffer, device=0))]
    fn reads<'py>(&self, py: Python<'py>, buffer: u64, device: u32) -> PyResult<Tables<'py>> {
        let list = py.detach(|| self.pairing.landed_reads(&self.landed, &self.chunk, buffer, device));
        descriptors(py, &list.raised(py)?)
    }

    #[getter]
    fn table_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.moves.table_bytes().raised(py)
    }

    #[pyo3(signature = (tiles, out, /, *, most=usize::MAX))]
    fn table(&self, tiles: &Tiles, out: &Bound<'_, PyArray1<u8>>, most: usize) -> PyResult<DeviceTable> {
        device_table(&self.moves, &tiles.0, out, most)
    }

    fn __repr__(&self) -> String {
        format!("LandedChunk({} bytes, {} parts)", self.chunk.bytes, self.moves.parts.len())
    }
}

/// Launches as shape, row, parts and pages; where page ids and places begin; the bits of units and offsets.
type DeviceTable = (Vec<(usize, usize, usize, usize)>, u64, u64, u64);

fn device_table(
    moves: &core::Moves,
    tiles: &core::Tiles,
    out: &Bound<'_, PyArray1<u8>>,
    most: usize,
) -> PyResult<DeviceTable> {
    let unfit = |error: &dyn std::fmt::Display| PyTypeError::new_err(format!("out: {error}"));
    let mut borrowed = out.try_readwrite().map_err(|error| unfit(&error))?;
    let bytes = borrowed.as_slice_mut().map_err(|error| unfit(&error))?;
    let table = moves.table(tiles, most, bytes).raised(out.py())?;
    let batches = table.batches.iter().map(|one| (one.shape, one.row, one.parts, one.pages)).collect();
    Ok((batches, table.pages, table.places, table.bits))
}

fn parts<'py>(py: Python<'py>, moves: &core::Moves) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let rows = moves.parts.iter();
    let flat = rows.map(|part| Ok([count(part.lane)?, count(part.first)?, count(part.count)?, part.offset]));
    let flat: kvreshard::Result<Vec<[u64; 4]>> = flat.collect();
    table(py, flat.raised(py)?.concat(), 4)
}

fn count(value: usize) -> kvreshard::Result<u64> {
    u64::try_from(value).map_err(|_| kvreshard::Error::Overflow { term: "count".to_owned() })
}
