//! `StockHandshake`, `Facts`, `audit`.

use kvreshard::check::audit as core;
use kvreshard::check::untagged::{Untagged, UntaggedPeer};
use kvreshard::layout::Position;
use kvreshard::shard::{ContextParallel, Place};
use pyo3::prelude::*;

use crate::check::Report;
use crate::errors::Raise;
use crate::layer::Pair;
use crate::layout::RankLayout;

/// What the two keywords about untagged peers ask for.
pub(crate) fn policy(untagged: Option<&str>, assume_untagged: Option<&str>) -> kvreshard::Result<Untagged> {
    let wrong = |field: &str, found: &str, expected: &str| kvreshard::Error::Layout {
        layer: None,
        field: field.to_owned(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    };
    match (untagged, assume_untagged) {
        (None, None) => Ok(Untagged::IfStandard),
        (Some("refuse"), None) => Ok(Untagged::Refuse),
        (None, Some("standard")) => Ok(Untagged::AssumeStandard),
        (Some("refuse"), Some(found)) => Err(wrong("assume_untagged", found, "nothing beside untagged=\"refuse\"")),
        (Some(found), _) => Err(wrong("untagged", found, "\"refuse\", or nothing")),
        (None, Some(found)) => Err(wrong("assume_untagged", found, "\"standard\", or nothing")),
    }
}

/// A peer that does not say how its pages are built.
#[pyclass(module = "kvreshard", frozen, eq)]
#[derive(PartialEq, Eq)]
pub(crate) struct StockHandshake(pub(crate) UntaggedPeer);

#[pymethods]
impl StockHandshake {
    #[staticmethod]
    #[pyo3(
        signature = (data, /, *, tp=(0, 1), pp=(0, 1), cp=(0, 1), cp_interleave=1),
        text_signature = "(data, /, *, tp=(0, 1), pp=(0, 1), cp=(0, 1), cp_interleave=1)"
    )]
    fn from_bytes(py: Python<'_>, data: &[u8], tp: Pair, pp: Pair, cp: Pair, cp_interleave: u64) -> PyResult<Self> {
        py.detach(|| {
            let place = |(rank, size)| Place::new(rank, size);
            let cp = ContextParallel::new(place(cp)?, cp_interleave)?;
            let position = Position { tp: place(tp)?, pp: place(pp)?, cp };
            Ok(Self(UntaggedPeer { handshake: kvreshard::check::StockHandshake::from_bytes(data)?, position }))
        })
        .raised(py)
    }

    #[getter]
    fn engine(&self) -> &str {
        self.0.handshake.engine()
    }

    #[getter]
    fn backend(&self) -> &str {
        self.0.handshake.backend()
    }

    #[getter]
    fn layout_name(&self) -> &str {
        self.0.handshake.layout_name()
    }

    #[getter]
    fn block_size(&self) -> u64 {
        self.0.handshake.block_size()
    }

    #[getter]
    fn regions(&self) -> usize {
        self.0.handshake.regions()
    }

    #[getter]
    fn compatibility_hash(&self) -> Option<&str> {
        self.0.handshake.compatibility_hash()
    }

    #[pyo3(signature = (local, /, *, untagged=None, assume_untagged=None))]
    fn assume(
        &self,
        py: Python<'_>,
        local: &RankLayout,
        untagged: Option<&str>,
        assume_untagged: Option<&str>,
    ) -> PyResult<RankLayout> {
        let policy = policy(untagged, assume_untagged).raised(py)?;
        py.detach(|| self.0.assume(&local.0, policy)).map(RankLayout).raised(py)
    }

    fn __repr__(&self) -> String {
        let (engine, backend, layout) = (self.engine(), self.backend(), self.layout_name());
        format!("StockHandshake({engine:?}, {backend}, {layout}, {} regions)", self.regions())
    }
}

/// What an operator knows of an engine and its handshake does not say.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Facts(core::Facts);

#[pymethods]
impl Facts {
    #[new]
    #[pyo3(
        signature = (
            *, backends=Vec::new(), shuffle=None, platform=None, isa=None, cache_dtype="auto".to_owned(), heads=None, tp=(0, 1),
            fused_cache_pass=None, sparse_indexer=false, mamba_groups=None, conv_rows=None, cp_interleave=None,
            hash_enforced=true, push=false
        ),
        text_signature = "(*, backends=(), shuffle=None, platform=None, isa=None, cache_dtype='auto', heads=None, tp=(0, 1), \
            fused_cache_pass=None, sparse_indexer=False, mamba_groups=None, conv_rows=None, cp_interleave=None, \
            hash_enforced=True, push=False)"
    )]
    #[allow(clippy::too_many_arguments)] // They are keywords.
    fn new(
        py: Python<'_>,
        backends: Vec<String>,
        shuffle: Option<bool>,
        platform: Option<String>,
        isa: Option<String>,
        cache_dtype: String,
        heads: Option<u64>,
        tp: Pair,
        fused_cache_pass: Option<bool>,
        sparse_indexer: bool,
        mamba_groups: Option<u64>,
        conv_rows: Option<u64>,
        cp_interleave: Option<u64>,
        hash_enforced: bool,
        push: bool,
    ) -> PyResult<Self> {
        Ok(Self(core::Facts {
            backends,
            shuffle,
            platform,
            isa,
            cache_dtype,
            heads,
            tp: Place::new(tp.0, tp.1).raised(py)?,
            fused_cache_pass,
            sparse_indexer,
            mamba_groups,
            conv_rows,
            cp_interleave,
            hash_enforced,
            push,
        }))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The silent mismatches that a pair of stock peers falls into.
#[pyfunction]
#[pyo3(signature = (local, remote, /, *, local_facts=None, remote_facts=None))]
pub(crate) fn audit(
    py: Python<'_>,
    local: &StockHandshake,
    remote: &StockHandshake,
    local_facts: Option<Facts>,
    remote_facts: Option<Facts>,
) -> Report {
    let facts = |given: Option<Facts>| given.map(|facts| facts.0).unwrap_or_default();
    let (ours, theirs) = (facts(local_facts), facts(remote_facts));
    Report(py.detach(|| core::audit((&local.0.handshake, &ours), (&remote.0.handshake, &theirs))))
}
