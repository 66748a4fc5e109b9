//! `Pairing`: one request of a plan.

use std::sync::Arc;

use kvreshard::Side;
use kvreshard::lower as core;
use numpy::{IntoPyArray, PyArray1, PyArray2};
use pyo3::prelude::*;

use crate::arrays::{Target, flattened, table};
use crate::cost::{Cost, DEFAULT_CHUNK, NamedTransport, abilities};
use crate::errors::Raise;
use crate::gil::{self, released};
use crate::planned::Planned;
use crate::request::Request;
use crate::tiles::{Chunk, Landed, LandedChunk, Tiles};

pub(crate) type Ids<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);
pub(crate) type Tables<'py> = (Bound<'py, PyArray2<u64>>, Bound<'py, PyArray2<u64>>);

/// Which page goes with which, for one request.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct Pairing {
    planned: Arc<Planned>,
    pairing: Arc<core::Pairing>,
}

impl Pairing {
    pub(crate) fn new(py: Python<'_>, planned: &Arc<Planned>, request: &Request) -> PyResult<Self> {
        let sides = [Side::Local, Side::Remote];
        let blocks = sides.iter().flat_map(|side| request.0.side(*side)).map(|blocks| blocks.ids().len()).sum();
        let things = gil::planned(planned.plan.local(), planned.plan.remote()).max(blocks);
        let pairing = released(py, things, || core::Pairing::new(&planned.plan, &request.0)).raised(py)?;
        Ok(Self { planned: planned.clone(), pairing: Arc::new(pairing) })
    }
}

#[pymethods]
impl Pairing {
    #[getter]
    fn fits_rows(&self) -> bool {
        self.pairing.fits_rows()
    }

    #[getter]
    fn cuts_rows(&self) -> bool {
        self.pairing.cuts_rows()
    }

    #[pyo3(signature = (out=None, *, part=None))]
    pub(crate) fn ids<'py>(&self, py: Python<'py>, out: Option<Ids<'py>>, part: Option<usize>) -> PyResult<Ids<'py>> {
        let rows = gil::runs(&self.planned.plan, self.planned.summary.runs);
        let found = released(py, rows, || match self.planned.part(part)? {
            Some((_, list)) => Ok((self.pairing.id_count(list)?, Some(list))),
            None => Ok((0, None)),
        });
        let (count, list) = found.raised(py)?;
        let write = |local: &mut [i32], remote: &mut [i32]| match list {
            // Ids take less than a nanosecond each.
            Some(list) => released(py, count / 64, || self.pairing.write_ids(list, local, remote)),
            None => Ok(()),
        };
        match out {
            Some((local, remote)) => {
                let (mut local, mut remote) = (Target::new(&local, count)?, Target::new(&remote, count)?);
                write(local.slice()?, remote.slice()?).raised(py)?;
                Ok((local.view()?, remote.view()?))
            }
            None => {
                let (mut local, mut remote) = (vec![0; count], vec![0; count]);
                write(&mut local, &mut remote).raised(py)?;
                Ok((local.into_pyarray(py), remote.into_pyarray(py)))
            }
        }
    }

    #[pyo3(signature = (*, part=None))]
    pub(crate) fn lists<'py>(&self, py: Python<'py>, part: Option<usize>) -> PyResult<Tables<'py>> {
        let tables = py.detach(|| {
            let (mut local, mut remote) = (Vec::new(), Vec::new());
            if let Some((index, _)) = self.planned.part(part)? {
                self.pairing.write_lists(self.planned.prepared()?, index, &mut local, &mut remote)?;
            }
            Ok((local.into_flattened(), remote.into_flattened()))
        });
        let (local, remote) = tables.raised(py)?;
        Ok((table(py, local, 3)?, table(py, remote, 3)?))
    }

    fn rounded(&self, py: Python<'_>) -> Self {
        let pairing = py.detach(|| core::Pairing::clone(&self.pairing).rounded());
        Self { planned: self.planned.clone(), pairing: Arc::new(pairing) }
    }

    #[pyo3(signature = (*, memory=None))]
    pub(crate) fn zero<'py>(&self, py: Python<'py>, memory: Option<&str>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let flat = py.detach(|| {
            let memory = self.planned.destination_memory(memory)?;
            Ok(flattened(&self.pairing.zero(memory)?))
        });
        table(py, flat.raised(py)?, 3)
    }

    #[pyo3(signature = (*, part=None))]
    pub(crate) fn posted(&self, py: Python<'_>, part: Option<usize>) -> PyResult<u64> {
        py.detach(|| {
            let count = |list| self.pairing.posted_by_ids(list);
            match part {
                Some(_) => self.planned.part(part)?.map_or(Ok(0), |(_, list)| count(list)),
                None => self.planned.prepared()?.iter().map(count).sum(),
            }
        })
        .raised(py)
    }

    #[pyo3(signature = (tiles, chunk, /))]
    pub(crate) fn chunks(&self, py: Python<'_>, tiles: &Tiles, chunk: u64) -> PyResult<Vec<Chunk>> {
        let chunks = py.detach(|| self.pairing.chunks(&tiles.0, chunk)).raised(py)?;
        Ok(chunks.into_iter().map(|one| Chunk::new(&self.pairing, tiles, one)).collect())
    }

    #[pyo3(signature = (landed, chunk, /))]
    pub(crate) fn landed_chunks(&self, py: Python<'_>, landed: &Landed, chunk: u64) -> PyResult<Vec<LandedChunk>> {
        py.detach(|| {
            let chunks = self.pairing.landed_chunks(&landed.0, chunk)?;
            Ok(chunks.into_iter().map(|one| LandedChunk::new(&self.pairing, &landed.0, one)).collect())
        })
        .raised(py)
    }

    #[pyo3(signature = (*, transport, direct=true, lands=true, packs=true, chunk=DEFAULT_CHUNK))]
    pub(crate) fn costs(
        &self,
        py: Python<'_>,
        transport: NamedTransport,
        direct: bool,
        lands: bool,
        packs: bool,
        chunk: u64,
    ) -> PyResult<Vec<Cost>> {
        let able = abilities(direct, lands, packs, chunk);
        py.detach(|| {
            let costs = self.pairing.costs(|| self.planned.prepared(), &transport.known()?, able)?;
            Ok(costs.into_iter().map(Cost).collect())
        })
        .raised(py)
    }

    #[pyo3(signature = (*, transport, lands=true, packs=true, chunk=DEFAULT_CHUNK))]
    pub(crate) fn choose(
        &self,
        py: Python<'_>,
        transport: NamedTransport,
        lands: bool,
        packs: bool,
        chunk: u64,
    ) -> PyResult<Cost> {
        Cost::cheapest(py, &self.costs(py, transport, true, lands, packs, chunk)?)
    }
}

/// Descriptor pairs as one table a side.
pub(crate) fn descriptors<'py>(py: Python<'py>, list: &[core::Descriptor]) -> PyResult<Tables<'py>> {
    let local = list.iter().flat_map(|one| [one.local, one.length, u64::from(one.local_device)]).collect();
    let remote = list.iter().flat_map(|one| [one.remote, one.length, u64::from(one.remote_device)]).collect();
    Ok((table(py, local, 3)?, table(py, remote, 3)?))
}
