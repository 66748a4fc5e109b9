//! `Region`, `Segment`, `Layer`, `Group`: what a rank's layout is made of.

use std::collections::BTreeMap;

use kvreshard::layout::{self as core, Shares, TokensPerState};
use kvreshard::name::Name;
use kvreshard::{Error as CoreError, Interval};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::NewArguments;
use crate::errors::Raise;
use crate::format::PageFormat;

/// A place (rank, size) or an interval [start, end).
pub(crate) type Pair = (u64, u64);

/// One NIXL registration.
#[pyclass(module = "kvreshard", frozen, eq, hash, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Region(pub(crate) core::Region);

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

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> NewArguments<'py, (Region, PageFormat)> {
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
    pub(crate) fn numbered(&self, mut number: impl FnMut(core::Region) -> usize) -> kvreshard::Result<core::Layer> {
        let segments = self.segments.iter().map(|segment| segment.in_region(number(segment.region)));
        let segments = segments.collect::<kvreshard::Result<_>>()?;
        let totals = self.totals.iter().map(|(axis, total)| Ok((Name::new(axis)?, *total)));
        core::Layer::new(self.name.as_str(), segments, self.group, totals.collect::<kvreshard::Result<Vec<_>>>()?)
    }

    pub(crate) fn of(layer: &core::Layer, regions: &[core::Region]) -> Option<Self> {
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

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> NewArguments<'py, (&str, Vec<Segment>)> {
        let keywords = PyDict::new(py);
        keywords.set_item("totals", self.totals())?;
        keywords.set_item("group", self.group)?;
        Ok(((self.name(), self.segments()), keywords))
    }
}

/// Every int and every Fraction is a `numbers.Rational`.
fn ratio(given: &Bound<'_, PyAny>) -> PyResult<Pair> {
    Ok((given.getattr("numerator")?.extract()?, given.getattr("denominator")?.extract()?))
}

/// Layers that share block ids.
#[pyclass(module = "kvreshard", frozen, eq, hash, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Group(pub(crate) core::Group);

#[pymethods]
impl Group {
    #[new]
    #[pyo3(
        signature = (kind="tokens", *, pages_per_block=1, tokens_per_state=None, window=None),
        text_signature = "(kind='tokens', *, pages_per_block=1, tokens_per_state=1, window=None)"
    )]
    fn new(
        py: Python<'_>,
        kind: &str,
        pages_per_block: u64,
        tokens_per_state: Option<&Bound<'_, PyAny>>,
        window: Option<u64>,
    ) -> PyResult<Self> {
        let tokens_per_state = match tokens_per_state {
            None => TokensPerState::ONE,
            Some(given) => {
                let (tokens, states) = ratio(given).map_err(|_| {
                    PyTypeError::new_err("tokens_per_state must be a positive int or fractions.Fraction")
                })?;
                TokensPerState::new(tokens, states).raised(py)?
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
        let (kind, pages, ratio) = (self.kind(), self.0.pages_per_block(), self.0.tokens_per_state());
        let ratio = match ratio.states() {
            1 => ratio.tokens().to_string(),
            states => format!("Fraction({}, {states})", ratio.tokens()),
        };
        let window = self.0.window().map_or("None".to_owned(), |tokens| tokens.to_string());
        format!("Group(\"{kind}\", pages_per_block={pages}, tokens_per_state={ratio}, window={window})")
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> NewArguments<'py, (&'static str,)> {
        let keywords = PyDict::new(py);
        keywords.set_item("pages_per_block", self.pages_per_block())?;
        keywords.set_item("tokens_per_state", self.tokens_per_state(py)?)?;
        keywords.set_item("window", self.window())?;
        Ok(((self.kind(),), keywords))
    }
}
