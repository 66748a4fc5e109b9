//! `plan` and `Plan`.

use std::sync::Arc;

use kvreshard::check::{Options, check};
use kvreshard::lower::Prepared;
use kvreshard::plan::{self as core, Direction, Summary};
use kvreshard::{Error as CoreError, Side};
use numpy::PyArray2;
use pyo3::prelude::*;

use crate::arrays::table;
use crate::cost::{Cost, DEFAULT_CHUNK, NamedTransport};
use crate::errors::Raise;
use crate::gil::{self, released};
use crate::layout::RankLayout;
use crate::pairing::{Ids, Pairing, Tables};
use crate::picture::Picture;
use crate::planned::Planned;
use crate::request::Request;
use crate::route::Edge;
use crate::tiles::{Chunk, Landed, LandedChunk, Tiles};

/// How bytes move between two ranks.
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
#[pyfunction]
#[pyo3(signature = (
    local, remote, *, edge=None, direction=None, layers=None, strategy=None, max_runs_per_page=None
))]
pub(crate) fn plan(
    py: Python<'_>,
    local: &RankLayout,
    remote: &RankLayout,
    edge: Option<&Edge>,
    direction: Option<&str>,
    layers: Option<Vec<String>>,
    strategy: Option<&str>,
    max_runs_per_page: Option<u64>,
) -> PyResult<Plan> {
    released(py, gil::planned(&local.0, &remote.0), || {
        let only = layers.as_ref().map(|layers| layers.iter().map(String::as_str));
        let direction: Option<Direction> = direction.map(str::parse).transpose()?;
        if let Some(strategy) = strategy {
            let mut options = Options { strategy: Some(strategy.parse()?), ..Options::default() };
            options.direction = direction.or_else(|| edge.map(|edge| edge.0.direction())).unwrap_or(Direction::Read);
            options.max_runs_per_page = max_runs_per_page.unwrap_or(options.max_runs_per_page);
            check(&local.0, &remote.0, &options).raise()?;
        }
        let plan = match (edge, direction) {
            (None, direction) => {
                let direction = direction.unwrap_or(Direction::Read);
                match only {
                    None => core::Plan::new(&local.0, &remote.0, direction)?,
                    Some(only) => core::Plan::of_layers(&local.0, &remote.0, direction, only)?,
                }
            }
            (Some(Edge(edge)), Some(direction)) if direction != edge.direction() => {
                return Err(CoreError::Layout {
                    layer: None,
                    field: "direction".to_owned(),
                    found: direction.name().to_owned(),
                    expected: format!("{}, as of the edge", edge.direction().name()),
                });
            }
            (Some(Edge(edge)), _) => match only {
                None => edge.plan(&local.0, &remote.0)?,
                Some(only) => edge.of_layers(only)?.plan(&local.0, &remote.0)?,
            },
        };
        Ok(Plan(Arc::new(Planned::new(plan)?)))
    })
    .raised(py)
}

/// Proves of all plans into one destination rank that they fill it exactly.
#[pyfunction]
#[pyo3(signature = (plans, /))]
pub(crate) fn verify(py: Python<'_>, plans: Vec<PyRef<'_, Plan>>) -> PyResult<()> {
    let plans: Vec<_> = plans.iter().map(|plan| plan.0.plan.clone()).collect();
    py.detach(|| kvreshard::verify::plans(&plans)).raised(py)
}

/// How one local rank moves its pages from or to one remote rank.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct Plan(Arc<Planned>);

impl Plan {
    /// What the rows are about.
    fn runs_made(&self) -> usize {
        gil::runs(&self.0.plan, self.0.summary.runs)
    }

    fn rows<'py>(&self, py: Python<'py>, side: Side, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let table_of = || Ok(self.0.part(part)?.map(|(_, list)| list.table(side)).unwrap_or_default());
        let flat = released(py, self.runs_made(), table_of);
        table(py, flat.raised(py)?, 5)
    }

    fn flat<'py>(&self, py: Python<'py>, side: Side, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let flat = py.detach(|| self.0.part(part)?.map_or(Ok(Vec::new()), |(_, list)| list.flat(side)));
        table(py, flat.raised(py)?, 3)
    }
}

#[pymethods]
impl Plan {
    #[getter]
    fn runs(&self) -> u64 {
        self.0.summary.runs
    }

    #[getter]
    fn runs_per_page(&self) -> u64 {
        self.0.summary.runs_per_page
    }

    #[getter]
    fn pages(&self) -> (u64, u64) {
        self.0.summary.pages
    }

    #[getter]
    fn pages_alike(&self) -> bool {
        self.0.plan.pages_alike()
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.0.summary.bytes
    }

    #[getter]
    fn bytes_per_run(&self) -> u64 {
        self.0.summary.bytes.checked_div(self.0.summary.runs).unwrap_or_default()
    }

    #[getter]
    fn shortest_run(&self) -> u64 {
        self.0.summary.shortest_run
    }

    #[getter]
    fn longest_run(&self) -> u64 {
        self.0.summary.longest_run
    }

    #[getter]
    fn digest(&self, py: Python<'_>) -> String {
        released(py, self.runs_made(), || self.0.plan.digest().to_string())
    }

    #[getter]
    fn direction(&self) -> &'static str {
        self.0.plan.direction().name()
    }

    #[getter]
    fn local(&self) -> RankLayout {
        RankLayout(self.0.plan.local().clone())
    }

    #[getter]
    fn remote(&self) -> RankLayout {
        RankLayout(self.0.plan.remote().clone())
    }

    #[getter]
    fn parts(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, &'static str)>> {
        let lists = released(py, self.runs_made(), || self.0.prepared()).raised(py)?;
        Ok(lists.iter().map(|list| (list.memory().0.name(), list.memory().1.name())).collect())
    }

    #[getter]
    fn row_count(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(released(py, self.runs_made(), || self.0.prepared()).raised(py)?.iter().map(Prepared::len).sum())
    }

    #[pyo3(signature = (*, part=None))]
    fn local_rows<'py>(&self, py: Python<'py>, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        self.rows(py, Side::Local, part)
    }

    #[pyo3(signature = (*, part=None))]
    fn remote_rows<'py>(&self, py: Python<'py>, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        self.rows(py, Side::Remote, part)
    }

    #[pyo3(signature = (*, part=None))]
    fn local_flat<'py>(&self, py: Python<'py>, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        self.flat(py, Side::Local, part)
    }

    #[pyo3(signature = (*, part=None))]
    fn remote_flat<'py>(&self, py: Python<'py>, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        self.flat(py, Side::Remote, part)
    }

    #[pyo3(signature = (request, /))]
    fn pair(&self, py: Python<'_>, request: &Request) -> PyResult<Pairing> {
        Pairing::new(py, &self.0, request)
    }

    #[pyo3(signature = (request, /, out=None, *, part=None))]
    fn ids<'py>(
        &self,
        py: Python<'py>,
        request: &Request,
        out: Option<Ids<'py>>,
        part: Option<usize>,
    ) -> PyResult<Ids<'py>> {
        self.pair(py, request)?.ids(py, out, part)
    }

    #[pyo3(signature = (request, /, *, part=None))]
    fn lists<'py>(&self, py: Python<'py>, request: &Request, part: Option<usize>) -> PyResult<Tables<'py>> {
        self.pair(py, request)?.lists(py, part)
    }

    #[pyo3(signature = (request, /, *, memory=None))]
    fn zero<'py>(
        &self,
        py: Python<'py>,
        request: &Request,
        memory: Option<&str>,
    ) -> PyResult<Bound<'py, PyArray2<u64>>> {
        self.pair(py, request)?.zero(py, memory)
    }

    #[pyo3(signature = (request, /, *, part=None))]
    fn posted(&self, py: Python<'_>, request: &Request, part: Option<usize>) -> PyResult<u64> {
        self.pair(py, request)?.posted(py, part)
    }

    #[pyo3(signature = (side, /))]
    fn packed_tiles(&self, py: Python<'_>, side: &str) -> PyResult<Tiles> {
        py.detach(|| self.0.plan.packed_tiles(side.parse()?)).map(Tiles::new).raised(py)
    }

    #[pyo3(signature = (*, hole=0))]
    fn landed(&self, py: Python<'_>, hole: u64) -> PyResult<Landed> {
        py.detach(|| self.0.plan.landed(hole)).map(Landed::new).raised(py)
    }

    #[pyo3(signature = (request, tiles, chunk, /))]
    fn chunks(&self, py: Python<'_>, request: &Request, tiles: &Tiles, chunk: u64) -> PyResult<Vec<Chunk>> {
        self.pair(py, request)?.chunks(py, tiles, chunk)
    }

    #[pyo3(signature = (request, landed, chunk, /))]
    fn landed_chunks(
        &self,
        py: Python<'_>,
        request: &Request,
        landed: &Landed,
        chunk: u64,
    ) -> PyResult<Vec<LandedChunk>> {
        self.pair(py, request)?.landed_chunks(py, landed, chunk)
    }

    #[pyo3(signature = (request, /, *, transport, lands=true, packs=true, chunk=DEFAULT_CHUNK))]
    fn costs(
        &self,
        py: Python<'_>,
        request: &Request,
        transport: NamedTransport,
        lands: bool,
        packs: bool,
        chunk: u64,
    ) -> PyResult<Vec<Cost>> {
        self.pair(py, request)?.costs(py, transport, true, lands, packs, chunk)
    }

    #[pyo3(signature = (request, /, *, transport, lands=true, packs=true, chunk=DEFAULT_CHUNK))]
    fn choose(
        &self,
        py: Python<'_>,
        request: &Request,
        transport: NamedTransport,
        lands: bool,
        packs: bool,
        chunk: u64,
    ) -> PyResult<Cost> {
        self.pair(py, request)?.choose(py, transport, lands, packs, chunk)
    }

    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| kvreshard::verify::plan(&self.0.plan)).raised(py)
    }

    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.plan.explain()).raised(py)
    }

    #[pyo3(signature = (layer=None))]
    fn picture(&self, py: Python<'_>, layer: Option<&str>) -> PyResult<Picture> {
        py.detach(|| self.0.plan.picture(layer)).map(Picture).raised(py)
    }

    #[pyo3(signature = (layer=None))]
    fn to_svg<'py>(slf: &Bound<'py, Self>, layer: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kvreshard.pictures")?.call_method1("plan_svg", (slf, layer))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kvreshard.pictures")?.call_method1("plan_html", (slf,))
    }

    fn __repr__(&self) -> String {
        let Summary { layers, runs, bytes, runs_per_page, .. } = self.0.summary;
        let direction = self.0.plan.direction().name();
        format!("Plan({direction}, {layers} layers, {runs} runs of {bytes} bytes, {runs_per_page} runs per page)")
    }
}
