//! `Transport` and `Cost`.

use kvreshard::cost as core;
use kvreshard::{Error, Result};
use pyo3::prelude::*;

use crate::errors::Raise;

/// Bytes of a chunk where none is given.
pub(crate) const DEFAULT_CHUNK: u64 = 32 << 20;

/// The constants of a way to move bytes between two ranks.
#[pyclass(module = "kvreshard", frozen, eq, hash, from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Transport(pub(crate) core::Transport);

#[pymethods]
impl Transport {
    #[new]
    #[pyo3(signature = (*, read_post_ns, read_bytes_per_us, write_post_ns, write_bytes_per_us, pass_bytes_per_us, round_trip_ns, pass_piece_ps = 0, pass_ns = 0))]
    #[expect(clippy::too_many_arguments, reason = "constants that are told apart by keyword")]
    const fn new(
        read_post_ns: u64,
        read_bytes_per_us: u64,
        write_post_ns: u64,
        write_bytes_per_us: u64,
        pass_bytes_per_us: u64,
        round_trip_ns: u64,
        pass_piece_ps: u64,
        pass_ns: u64,
    ) -> Self {
        Self(core::Transport {
            name: "calibrated",
            read: core::Link { post_ns: read_post_ns, bytes_per_us: read_bytes_per_us },
            write: core::Link { post_ns: write_post_ns, bytes_per_us: write_bytes_per_us },
            pass_bytes_per_us,
            pass_piece_ps,
            pass_ns,
            round_trip_ns,
        })
    }

    #[staticmethod]
    #[pyo3(signature = (name, /))]
    fn named(py: Python<'_>, name: &str) -> PyResult<Self> {
        core::Transport::named(name).map(Self).raised(py)
    }

    #[staticmethod]
    fn names() -> Vec<&'static str> {
        core::TRANSPORTS.iter().map(|transport| transport.name).collect()
    }

    #[getter]
    const fn name(&self) -> &'static str {
        self.0.name
    }

    #[getter]
    const fn read_post_ns(&self) -> u64 {
        self.0.read.post_ns
    }

    #[getter]
    const fn read_bytes_per_us(&self) -> u64 {
        self.0.read.bytes_per_us
    }

    #[getter]
    const fn write_post_ns(&self) -> u64 {
        self.0.write.post_ns
    }

    #[getter]
    const fn write_bytes_per_us(&self) -> u64 {
        self.0.write.bytes_per_us
    }

    #[getter]
    const fn pass_bytes_per_us(&self) -> u64 {
        self.0.pass_bytes_per_us
    }

    #[getter]
    const fn pass_piece_ps(&self) -> u64 {
        self.0.pass_piece_ps
    }

    #[getter]
    const fn pass_ns(&self) -> u64 {
        self.0.pass_ns
    }

    #[getter]
    const fn round_trip_ns(&self) -> u64 {
        self.0.round_trip_ns
    }

    #[getter]
    fn hole(&self) -> u64 {
        self.0.hole()
    }

    fn __repr__(&self) -> String {
        format!(
            "Transport({}, read {} ns + {} B/us, write {} ns + {} B/us, pass {} ns + {} ps a piece + {} B/us, round trip {} ns)",
            self.0.name,
            self.0.read.post_ns,
            self.0.read.bytes_per_us,
            self.0.write.post_ns,
            self.0.write.bytes_per_us,
            self.0.pass_ns,
            self.0.pass_piece_ps,
            self.0.pass_bytes_per_us,
            self.0.round_trip_ns
        )
    }
}

/// A transport, or the name of one that was measured.
#[derive(FromPyObject)]
pub(crate) enum NamedTransport {
    Given(Transport),
    Named(String),
}

impl NamedTransport {
    pub(crate) fn known(&self) -> Result<core::Transport> {
        match self {
            Self::Given(transport) => Ok(transport.0),
            Self::Named(name) => core::Transport::named(name),
        }
    }
}

pub(crate) const fn abilities(direct: bool, lands: bool, packs: bool, chunk: u64) -> core::Abilities {
    core::Abilities { direct, lands, packs, chunk }
}

/// What a request costs by one strategy.
#[pyclass(module = "kvreshard", frozen, eq, hash, skip_from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cost(pub(crate) core::Cost);

impl Cost {
    pub(crate) fn cheapest(py: Python<'_>, costs: &[Self]) -> PyResult<Self> {
        let costs: Vec<core::Cost> = costs.iter().map(|cost| cost.0).collect();
        let none = || Error::Overflow { term: "costs of a request".to_owned() };
        core::cheapest(&costs).map(Self).ok_or_else(none).raised(py)
    }
}

#[pymethods]
impl Cost {
    #[getter]
    const fn strategy(&self) -> &'static str {
        self.0.strategy.name()
    }

    #[getter]
    const fn posted(&self) -> u64 {
        self.0.posted
    }

    #[getter]
    const fn bytes(&self) -> u64 {
        self.0.bytes
    }

    #[getter]
    const fn ns(&self) -> u64 {
        self.0.ns
    }

    fn __repr__(&self) -> String {
        let core::Cost { posted, bytes, ns, .. } = self.0;
        format!("Cost({}, {posted} posted, {bytes} bytes, {ns} ns)", self.strategy())
    }
}
