//! `Engine`, `Edge`, `Route` and `route`.

use std::sync::Arc;

use kvreshard::Interval;
use kvreshard::engine as ranks;
use kvreshard::layout::Shares;
use kvreshard::name::Name;
use kvreshard::plan::{Direction, Take};
use kvreshard::route as core;
use pyo3::prelude::*;

use crate::errors::Raise;
use crate::gil::{released, segments};
use crate::layout::RankLayout;

/// The ranks of one engine.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Engine(pub(crate) ranks::Engine);

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, ranks: Vec<RankLayout>) -> PyResult<Self> {
        let ranks = ranks.into_iter().map(|rank| rank.0).collect();
        ranks::Engine::new(ranks).map(Self).raised(py)
    }

    #[staticmethod]
    #[pyo3(signature = (rank, /))]
    fn uniform(py: Python<'_>, rank: &RankLayout) -> PyResult<Self> {
        let size = usize::try_from(rank.0.position().tp.size()).unwrap_or(usize::MAX);
        let things = segments(&rank.0).saturating_mul(size);
        released(py, things, || ranks::Engine::uniform(&rank.0)).map(Self).raised(py)
    }

    #[getter]
    fn ranks(&self) -> Vec<RankLayout> {
        self.0.ranks().iter().cloned().map(RankLayout).collect()
    }

    fn __len__(&self) -> usize {
        self.0.ranks().len()
    }

    fn __repr__(&self) -> String {
        let name = self.0.ranks().first().map_or("", |rank| rank.engine());
        format!("Engine({name:?}, {} ranks)", self.0.ranks().len())
    }

    fn __getnewargs__(&self) -> (Vec<RankLayout>,) {
        (self.ranks(),)
    }
}

/// What one local and one remote rank exchange.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Edge(pub(crate) core::Edge);

#[pymethods]
impl Edge {
    #[getter]
    fn local(&self) -> usize {
        self.0.local()
    }

    #[getter]
    fn remote(&self) -> usize {
        self.0.remote()
    }

    #[getter]
    fn direction(&self) -> &'static str {
        self.0.direction().name()
    }

    #[getter]
    fn takes(&self) -> Vec<(String, Vec<(String, u64, u64)>, bool)> {
        let share = |(axis, interval): (&Name, Interval)| (axis.to_string(), interval.start(), interval.end());
        let takes = self.0.takes().iter();
        takes
            .map(|(layer, take)| (layer.to_string(), take.shares.iter().map(share).collect(), take.replicated))
            .collect()
    }

    #[staticmethod]
    #[pyo3(signature = (direction, takes, /))]
    fn told(py: Python<'_>, direction: &str, takes: Vec<(String, Vec<(String, u64, u64)>, bool)>) -> PyResult<Self> {
        let share = |(axis, start, end): (String, u64, u64)| {
            let reversed = || kvreshard::Error::Layout {
                layer: None,
                field: axis.clone(),
                found: format!("{start}..{end}"),
                expected: "an interval that is not reversed".to_owned(),
            };
            Ok((Name::new(&axis)?, Interval::new(start, end).ok_or_else(reversed)?))
        };
        let take = |(layer, shares, replicated): (String, Vec<_>, bool)| {
            let shares: kvreshard::Result<Vec<(Name, Interval)>> = shares.into_iter().map(share).collect();
            Ok((layer.into(), Take { shares: Shares::new(shares?), replicated }))
        };
        let takes: kvreshard::Result<Vec<(Arc<str>, Take)>> = takes.into_iter().map(take).collect();
        let edge = takes.and_then(|takes| Ok(core::Edge::told(direction.parse()?, takes)));
        edge.map(Self).raised(py)
    }

    #[getter]
    fn layers(&self) -> Vec<&str> {
        // A layer whose share is in several pieces is listed once a piece, one after the other.
        let mut names: Vec<_> = self.0.takes().iter().map(|(name, _)| &**name).collect();
        names.dedup();
        names
    }

    fn __repr__(&self) -> String {
        let (local, remote, direction) = (self.local(), self.remote(), self.direction());
        format!("Edge(local={local}, remote={remote}, {direction}, {} layers)", self.layers().len())
    }
}

/// Which rank gets what from which.
#[pyclass(module = "kvreshard", frozen, eq)]
#[derive(PartialEq, Eq)]
pub(crate) struct Route(core::Route);

#[pymethods]
impl Route {
    #[getter]
    fn direction(&self) -> &'static str {
        self.0.direction().name()
    }

    #[getter]
    fn edges(&self) -> Vec<Edge> {
        self.0.edges().iter().cloned().map(Edge).collect()
    }

    #[getter]
    fn notify(&self) -> Vec<(usize, usize)> {
        self.0.notify().to_vec()
    }

    #[getter]
    fn readers(&self) -> Vec<u64> {
        self.0.readers().to_vec()
    }

    #[getter]
    fn writers(&self) -> Vec<u64> {
        self.0.writers().to_vec()
    }

    #[pyo3(signature = (*, local=None, remote=None))]
    fn edges_of(&self, local: Option<usize>, remote: Option<usize>) -> Vec<Edge> {
        let wanted = |edge: &&core::Edge| {
            local.is_none_or(|rank| edge.local() == rank) && remote.is_none_or(|rank| edge.remote() == rank)
        };
        self.0.edges().iter().filter(wanted).cloned().map(Edge).collect()
    }

    fn __repr__(&self) -> String {
        let (edges, notify) = (self.0.edges().len(), self.0.notify().len());
        format!("Route({}, {edges} edges, {notify} that only notify)", self.direction())
    }
}

/// Which rank of one engine gets what from which rank of the other.
#[pyfunction]
#[pyo3(signature = (*, local, remote, direction="read"))]
pub(crate) fn route(py: Python<'_>, local: &Engine, remote: &Engine, direction: &str) -> PyResult<Route> {
    let direction: Direction = direction.parse().raised(py)?;
    let things = [local, remote].iter().flat_map(|engine| engine.0.ranks()).map(segments).sum();
    released(py, things, || core::Route::new(&local.0, &remote.0, direction)).map(Route).raised(py)
}
