//! `Region`, `Segment`, `Layer`, `Group`, `RankLayout`.

use std::collections::{BTreeMap, HashMap};

use kvreshard::layout::{self as core, Position, RankParts, Shares, TokensPerState};
use kvreshard::name::Name;
use kvreshard::shard::{ContextParallel, Place};
use kvreshard::{Error as CoreError, Interval};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::errors::Raise;
use crate::format::PageFormat;

type Pair = (u64, u64);

/// One NIXL registration.
#[pyclass(module = "kvreshard", frozen, eq, hash, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Region(core::Region);

#[pymethods]
impl Region {
    #[new]
    #[pyo3(signature = (base, bytes, device=0, memory="DRAM"))]
    fn new(py: Python<'_>, base: u64, bytes: u64, device: u32, memory: &str) -> PyResult<Self> {
        memory.parse().and_then(|memory| core::Region::new(base, bytes, device, memory)).map(Self).raised(py)
    }

    #[getter]
    fn base(&self) -> u64 {
        self.0.base()
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    #[getter]
    fn device(&self) -> u32 {
        self.0.device()
    }

    #[getter]
    fn memory(&self) -> &'static str {
        self.0.memory().name()
    }

    fn __repr__(&self) -> String {
        let Self(region) = self;
        let (base, bytes, device) = (region.base(), region.bytes(), region.device());
        format!("Region(base={base:#x}, bytes={bytes}, device={device}, memory=\"{}\")", region.memory())
    }

    fn __getnewargs__(&self) -> (u64, u64, u32, &'static str) {
        (self.base(), self.bytes(), self.device(), self.memory())
    }
}

/// A strided run of pages in a region.
///
/// The core refers to regions by index, Python by value; `RankLayout` numbers them.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    region: core::Region,
    inner: core::Segment,
}

impl Segment {
    fn in_region(&self, index: usize) -> kvreshard::Result<core::Segment> {
        let Self { inner, .. } = self;
        core::Segment::new(
            index,
            inner.format().clone(),
            inner.offset(),
            inner.pages(),
            inner.page_stride(),
            inner.shares().clone(),
        )
    }
}

#[pymethods]
impl Segment {
    #[new]
    #[pyo3(signature = (region, format, *, pages, page_stride=None, offset=0, holds=None))]
    fn new(
        py: Python<'_>,
        region: Region,
        format: PageFormat,
        pages: u64,
        page_stride: Option<u64>,
        offset: u64,
        holds: Option<BTreeMap<String, Pair>>,
    ) -> PyResult<Self> {
        let shares = shares(holds.unwrap_or_default()).raised(py)?;
        let page_stride = page_stride.unwrap_or(format.0.page_bytes());
        let inner = core::Segment::new(0, format.0, offset, pages, page_stride, shares).raised(py)?;
        Ok(Self { region: region.0, inner })
    }

    #[getter]
    fn region(&self) -> Region {
        Region(self.region)
    }

    #[getter]
    fn format(&self) -> PageFormat {
        PageFormat(self.inner.format().clone())
    }

    #[getter]
    fn pages(&self) -> u64 {
        self.inner.pages()
    }

    #[getter]
    fn page_stride(&self) -> u64 {
        self.inner.page_stride()
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.inner.offset()
    }

    #[getter]
    fn holds(&self) -> BTreeMap<&str, Pair> {
        self.inner.shares().iter().map(|(axis, held)| (axis.as_str(), (held.start(), held.end()))).collect()
    }

    fn __repr__(&self) -> String {
        let Self { region, inner } = self;
        format!(
            "Segment({}, {}, pages={}, page_stride={}, offset={}, holds={:?})",
            Region(*region).__repr__(),
            self.format().__repr__(),
            inner.pages(),
            inner.page_stride(),
            inner.offset(),
            self.holds(),
        )
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((Region, PageFormat), Bound<'py, PyDict>)> {
        let keywords = PyDict::new(py);
        keywords.set_item("pages", self.pages())?;
        keywords.set_item("page_stride", self.page_stride())?;
        keywords.set_item("offset", self.offset())?;
        keywords.set_item("holds", self.holds())?;
        Ok(((self.region(), self.format()), keywords))
    }
}

fn shares(holds: BTreeMap<String, Pair>) -> kvreshard::Result<Shares> {
    let pairs = holds.into_iter().map(|(axis, (start, end))| match Interval::new(start, end) {
        Some(held) => Ok((Name::new(&axis)?, held)),
        None => Err(CoreError::Layout {
            layer: None,
            field: format!("holds, axis {axis}"),
            found: format!("({start}, {end})"),
            expected: "a start that is not after the end".to_owned(),
        }),
    });
    Ok(Shares::new(pairs.collect::<kvreshard::Result<Vec<_>>>()?))
}

/// One model layer's cache on one rank.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    name: String,
    segments: Vec<Segment>,
    totals: BTreeMap<String, u64>,
    group: usize,
}

impl Layer {
    /// The layer of the core, its regions numbered by `number`.
    fn numbered(&self, mut number: impl FnMut(core::Region) -> usize) -> kvreshard::Result<core::Layer> {
        let segments = self.segments.iter().map(|segment| segment.in_region(number(segment.region)));
        let segments = segments.collect::<kvreshard::Result<_>>()?;
        let totals = self.totals.iter().map(|(axis, total)| Ok((Name::new(axis)?, *total)));
        core::Layer::new(self.name.as_str(), segments, self.group, totals.collect::<kvreshard::Result<Vec<_>>>()?)
    }

    fn of(layer: &core::Layer, regions: &[core::Region]) -> Option<Self> {
        let segments = layer.segments().iter().map(|inner| {
            let region = regions.get(inner.region()).copied()?;
            Some(Segment { region, inner: inner.clone() })
        });
        Some(Self {
            name: layer.name().to_owned(),
            segments: segments.collect::<Option<_>>()?,
            totals: layer.totals().iter().map(|(axis, total)| (axis.to_string(), *total)).collect(),
            group: layer.group(),
        })
    }
}

#[pymethods]
impl Layer {
    #[new]
    #[pyo3(signature = (name, segments, *, totals=None, group=0))]
    fn new(
        py: Python<'_>,
        name: String,
        segments: Vec<Segment>,
        totals: Option<BTreeMap<String, u64>>,
        group: usize,
    ) -> PyResult<Self> {
        let layer = Self { name, segments, totals: totals.unwrap_or_default(), group };
        layer.numbered(|_| 0).raised(py)?;
        Ok(layer)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn segments(&self) -> Vec<Segment> {
        self.segments.clone()
    }

    #[getter]
    fn totals(&self) -> BTreeMap<String, u64> {
        self.totals.clone()
    }

    #[getter]
    fn group(&self) -> usize {
        self.group
    }

    fn __repr__(&self) -> String {
        let segments: Vec<_> = self.segments.iter().map(Segment::__repr__).collect();
        let (totals, group) = (&self.totals, self.group);
        format!("Layer({:?}, [{}], totals={totals:?}, group={group})", self.name, segments.join(", "))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((&str, Vec<Segment>), Bound<'py, PyDict>)> {
        let keywords = PyDict::new(py);
        keywords.set_item("totals", self.totals())?;
        keywords.set_item("group", self.group)?;
        Ok(((self.name(), self.segments()), keywords))
    }
}

/// Layers that share block ids.
#[pyclass(module = "kvreshard", frozen, eq, hash, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Group(core::Group);

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (kind="tokens", *, pages_per_block=1, tokens_per_state=None, window=None))]
    fn new(
        py: Python<'_>,
        kind: &str,
        pages_per_block: u64,
        tokens_per_state: Option<&Bound<'_, PyAny>>,
        window: Option<u64>,
    ) -> PyResult<Self> {
        let tokens_per_state = match tokens_per_state {
            None => TokensPerState::ONE,
            // Every int and every Fraction is a numbers.Rational.
            Some(given) => {
                let (tokens, states) = (given.getattr("numerator")?, given.getattr("denominator")?);
                TokensPerState::new(tokens.extract()?, states.extract()?).raised(py)?
            }
        };
        kind.parse()
            .and_then(|kind| core::Group::new(kind, pages_per_block, tokens_per_state, window))
            .map(Self)
            .raised(py)
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind().name()
    }

    #[getter]
    fn pages_per_block(&self) -> u64 {
        self.0.pages_per_block()
    }

    #[getter]
    fn tokens_per_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ratio = self.0.tokens_per_state();
        py.import("fractions")?.getattr("Fraction")?.call1((ratio.tokens(), ratio.states()))
    }

    #[getter]
    fn window(&self) -> Option<u64> {
        self.0.window()
    }

    fn __repr__(&self) -> String {
        let (pages, ratio) = (self.0.pages_per_block(), self.0.tokens_per_state());
        let window = self.0.window().map_or("None".to_owned(), |tokens| tokens.to_string());
        let kind = self.kind();
        format!("Group(\"{kind}\", pages_per_block={pages}, tokens_per_state={ratio}, window={window})")
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((&'static str,), Bound<'py, PyDict>)> {
        let keywords = PyDict::new(py);
        keywords.set_item("pages_per_block", self.pages_per_block())?;
        keywords.set_item("tokens_per_state", self.tokens_per_state(py)?)?;
        keywords.set_item("window", self.window())?;
        Ok(((self.kind(),), keywords))
    }
}

/// All that a peer must know of one rank.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RankLayout(pub(crate) core::RankLayout);

#[pymethods]
impl RankLayout {
    #[new]
    #[pyo3(signature = (
        *, engine, layers, groups=None, generation=0, tp=(0, 1), pp=(0, 1), cp=(0, 1), cp_interleave=1
    ))]
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
    fn layers(&self) -> Vec<Layer> {
        // A layout is valid when made, so every segment's region exists.
        self.0.layers().iter().filter_map(|layer| Layer::of(layer, self.0.regions())).collect()
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
