//! `plan` and `Plan`.

use std::sync::OnceLock;

use kvreshard::check::{Options, check};
use kvreshard::layout::MemoryKind;
use kvreshard::lower::{Pairing, Prepared};
use kvreshard::plan::{self as core, Direction, Summary};
use kvreshard::{Error as CoreError, Side};
use numpy::{IntoPyArray, PyArray1, PyArray2};
use pyo3::prelude::*;

use crate::arrays::{Target, flattened, table};
use crate::errors::Raise;
use crate::layout::RankLayout;
use crate::picture::Picture;
use crate::request::Request;
use crate::route::Edge;

type Ids<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);
type Tables<'py> = (Bound<'py, PyArray2<u64>>, Bound<'py, PyArray2<u64>>);

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
    py.detach(|| {
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
        Ok(Plan { summary: plan.summary()?, plan, prepared: OnceLock::new() })
    })
    .raised(py)
}

/// Proves of all plans into one destination rank that they fill it exactly.
#[pyfunction]
#[pyo3(signature = (plans, /))]
pub(crate) fn verify(py: Python<'_>, plans: Vec<PyRef<'_, Plan>>) -> PyResult<()> {
    let plans: Vec<_> = plans.iter().map(|plan| plan.plan.clone()).collect();
    py.detach(|| kvreshard::verify::plans(&plans)).raised(py)
}

/// How one local rank moves its pages from or to one remote rank.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct Plan {
    plan: core::Plan,
    summary: Summary,
    /// Rows are made when first asked for: a plan that is only looked at needs none.
    prepared: OnceLock<kvreshard::Result<Vec<Prepared>>>,
}

impl Plan {
    fn prepared(&self) -> kvreshard::Result<&[Prepared]> {
        self.prepared.get_or_init(|| self.plan.prepare()).as_deref().map_err(Clone::clone)
    }

    /// The prepared list that `part` names; the only one when it names none.
    fn part(&self, part: Option<usize>) -> kvreshard::Result<Option<(usize, &Prepared)>> {
        let lists = self.prepared()?;
        match part {
            None if lists.len() > 1 => Err(CoreError::Limit {
                what: "lists that this plan needs, one for each pair of memory kinds: pick each in turn with part="
                    .to_owned(),
                found: count(lists.len())?,
                limit: 1,
            }),
            Some(index) if index >= lists.len() => Err(CoreError::Limit {
                what: "part".to_owned(),
                found: count(index)?,
                limit: count(lists.len())?.saturating_sub(1),
            }),
            part => {
                let index = part.unwrap_or_default();
                Ok(lists.get(index).map(|list| (index, list)))
            }
        }
    }

    /// The memory kind given; the only one of the destination when none is given.
    fn destination_memory(&self, given: Option<&str>) -> kvreshard::Result<MemoryKind> {
        if let Some(name) = given {
            return name.parse();
        }
        let regions = self.plan.side(self.plan.direction().destination()).regions();
        let kind = regions.first().map_or(MemoryKind::Dram, |region| region.memory());
        match regions.iter().all(|region| region.memory() == kind) {
            true => Ok(kind),
            false => Err(CoreError::Limit {
                what: "memory kinds of the destination: clear each in turn with memory=".to_owned(),
                found: 2,
                limit: 1,
            }),
        }
    }

    fn rows<'py>(&self, py: Python<'py>, side: Side, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let flat = py.detach(|| Ok(self.part(part)?.map(|(_, list)| list.table(side)).unwrap_or_default()));
        table(py, flat.raised(py)?, 5)
    }

    fn flat<'py>(&self, py: Python<'py>, side: Side, part: Option<usize>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let flat = py.detach(|| self.part(part)?.map_or(Ok(Vec::new()), |(_, list)| list.flat(side)));
        table(py, flat.raised(py)?, 3)
    }
}

fn count(value: usize) -> kvreshard::Result<u64> {
    u64::try_from(value).map_err(|_| CoreError::Overflow { term: "count".to_owned() })
}

#[pymethods]
impl Plan {
    #[getter]
    fn runs(&self) -> u64 {
        self.summary.runs
    }

    #[getter]
    fn runs_per_page(&self) -> u64 {
        self.summary.runs_per_page
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.summary.bytes
    }

    #[getter]
    fn bytes_per_run(&self) -> u64 {
        self.summary.bytes.checked_div(self.summary.runs).unwrap_or_default()
    }

    #[getter]
    fn shortest_run(&self) -> u64 {
        self.summary.shortest_run
    }

    #[getter]
    fn longest_run(&self) -> u64 {
        self.summary.longest_run
    }

    #[getter]
    fn digest(&self, py: Python<'_>) -> String {
        py.detach(|| self.plan.digest().to_string())
    }

    #[getter]
    fn direction(&self) -> &'static str {
        self.plan.direction().name()
    }

    #[getter]
    fn local(&self) -> RankLayout {
        RankLayout(self.plan.local().clone())
    }

    #[getter]
    fn remote(&self) -> RankLayout {
        RankLayout(self.plan.remote().clone())
    }

    #[getter]
    fn parts(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, &'static str)>> {
        let lists = py.detach(|| self.prepared()).raised(py)?;
        Ok(lists.iter().map(|list| (list.memory().0.name(), list.memory().1.name())).collect())
    }

    #[getter]
    fn row_count(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.prepared()).raised(py)?.iter().map(Prepared::len).sum())
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

    #[pyo3(signature = (request, /, out=None, *, part=None))]
    fn ids<'py>(
        &self,
        py: Python<'py>,
        request: &Request,
        out: Option<Ids<'py>>,
        part: Option<usize>,
    ) -> PyResult<Ids<'py>> {
        let found = py.detach(|| {
            let pairing = Pairing::new(&self.plan, &request.0)?;
            let Some((_, list)) = self.part(part)? else { return Ok(None) };
            Ok(Some((pairing.id_count(list)?, pairing, list)))
        });
        let (count, found) = match found.raised(py)? {
            Some((count, pairing, list)) => (count, Some((pairing, list))),
            None => (0, None),
        };
        let write = |local: &mut [i32], remote: &mut [i32]| match &found {
            Some((pairing, list)) => py.detach(|| pairing.write_ids(list, local, remote)),
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

    #[pyo3(signature = (request, /, *, part=None))]
    fn lists<'py>(&self, py: Python<'py>, request: &Request, part: Option<usize>) -> PyResult<Tables<'py>> {
        let found = py.detach(|| {
            let pairing = Pairing::new(&self.plan, &request.0)?;
            let Some((index, _)) = self.part(part)? else { return Ok((Vec::new(), Vec::new())) };
            let list = pairing.lists(self.prepared()?, index)?;
            let local = list.iter().flat_map(|one| [one.local, one.length, u64::from(one.local_device)]).collect();
            let remote = list.iter().flat_map(|one| [one.remote, one.length, u64::from(one.remote_device)]).collect();
            Ok((local, remote))
        });
        let (local, remote) = found.raised(py)?;
        Ok((table(py, local, 3)?, table(py, remote, 3)?))
    }

    #[pyo3(signature = (request, /, *, memory=None))]
    fn zero<'py>(
        &self,
        py: Python<'py>,
        request: &Request,
        memory: Option<&str>,
    ) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let flat = py.detach(|| {
            let memory = self.destination_memory(memory)?;
            Ok(flattened(&Pairing::new(&self.plan, &request.0)?.zero(memory)?))
        });
        table(py, flat.raised(py)?, 3)
    }

    #[pyo3(signature = (request, /))]
    fn posted(&self, py: Python<'_>, request: &Request) -> PyResult<u64> {
        py.detach(|| {
            let pairing = Pairing::new(&self.plan, &request.0)?;
            let counts = self.prepared()?.iter().map(|list| pairing.posted_by_ids(list));
            counts.sum::<kvreshard::Result<u64>>()
        })
        .raised(py)
    }

    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| kvreshard::verify::plan(&self.plan)).raised(py)
    }

    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.plan.explain()).raised(py)
    }

    #[pyo3(signature = (layer=None))]
    fn picture(&self, py: Python<'_>, layer: Option<&str>) -> PyResult<Picture> {
        py.detach(|| self.plan.picture(layer)).map(Picture).raised(py)
    }

    #[pyo3(signature = (layer=None))]
    fn to_svg<'py>(slf: &Bound<'py, Self>, layer: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kvreshard.pictures")?.call_method1("plan_svg", (slf, layer))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kvreshard.pictures")?.call_method1("plan_html", (slf,))
    }

    fn __repr__(&self) -> String {
        let Summary { layers, runs, bytes, runs_per_page, .. } = self.summary;
        let direction = self.plan.direction().name();
        format!("Plan({direction}, {layers} layers, {runs} runs of {bytes} bytes, {runs_per_page} runs per page)")
    }
}
