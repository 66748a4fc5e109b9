//! `RingAction`: what the host of a machine must do.

use kvreshard::ring as core;
use kvreshard::ring::{Chunks, Pages, Report};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Raise;

/// What the host of a machine must do.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct RingAction(core::Action);

impl RingAction {
    pub(super) fn made(actions: Vec<core::Action>) -> Vec<Self> {
        actions.into_iter().map(Self).collect()
    }

    const fn moved(&self) -> Option<&core::Move> {
        match &self.0 {
            core::Action::Read(one) | core::Action::Write(one) => Some(one),
            _ => None,
        }
    }

    const fn piece(&self) -> Option<&core::Piece> {
        match &self.0 {
            core::Action::Gather(one) | core::Action::Scatter(one) => Some(one),
            _ => None,
        }
    }

    const fn asked(&self) -> Option<Chunks> {
        match &self.0 {
            core::Action::Report(Report::Asked { chunks, .. }) => Some(*chunks),
            _ => None,
        }
    }

    const fn key(&self) -> Option<&core::RequestKey> {
        match &self.0 {
            core::Action::Gather(one) | core::Action::Scatter(one) => Some(&one.key),
            core::Action::Report(
                Report::Finished(key) | Report::Freed(key) | Report::Failed { key, .. } | Report::Asked { key, .. },
            ) => Some(key),
            _ => None,
        }
    }
}

#[pymethods]
impl RingAction {
    #[getter]
    const fn kind(&self) -> &'static str {
        match &self.0 {
            core::Action::Send { .. } => "send",
            core::Action::Read(_) => "read",
            core::Action::Write(_) => "write",
            core::Action::Gather(_) => "gather",
            core::Action::Scatter(_) => "scatter",
            core::Action::Report(Report::Finished(_)) => "finished",
            core::Action::Report(Report::Failed { .. }) => "failed",
            core::Action::Report(Report::Freed(_)) => "freed",
            core::Action::Report(Report::Asked { .. }) => "asked",
        }
    }

    #[getter]
    fn peer(&self) -> u32 {
        match (&self.0, self.moved(), self.key()) {
            (core::Action::Send { peer, .. }, ..) => peer.0,
            (_, Some(one), _) => one.peer.0,
            (_, _, Some(key)) => key.peer.0,
            _ => 0,
        }
    }

    #[getter]
    fn frame<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        match &self.0 {
            core::Action::Send { frame, .. } => Ok(Some(PyBytes::new(py, &frame.to_bytes().raised(py)?))),
            _ => Ok(None),
        }
    }

    #[getter]
    fn request(&self) -> Option<&str> {
        self.key().map(|key| key.request.as_str())
    }

    #[getter]
    fn slot(&self) -> Option<u32> {
        self.moved().map(|one| one.slot).or_else(|| self.piece().map(|one| one.slot))
    }

    #[getter]
    fn remote_slot(&self) -> Option<u32> {
        self.moved().map(|one| one.remote).or_else(|| self.piece()?.remote).map(|remote| remote.slot)
    }

    #[getter]
    fn sequence(&self) -> Option<u32> {
        self.piece().map(|one| one.sequence)
    }

    #[getter]
    fn offset(&self) -> Option<u64> {
        self.piece().map(|one| one.offset)
    }

    #[getter]
    fn bytes(&self) -> Option<u64> {
        self.moved()
            .map(|one| one.bytes)
            .or_else(|| self.piece().map(|one| one.bytes))
            .or_else(|| self.asked().map(|chunks| chunks.bytes()))
    }

    #[getter]
    fn chunk_bytes(&self) -> Option<u64> {
        self.asked().map(|chunks| chunks.chunk_bytes())
    }

    #[getter]
    fn reason(&self) -> Option<String> {
        match &self.0 {
            core::Action::Report(Report::Failed { reason, .. }) => Some(reason.to_string()),
            _ => None,
        }
    }

    #[getter]
    const fn by_peer(&self) -> bool {
        matches!(self.0, core::Action::Report(Report::Failed { by_peer: true, .. }))
    }

    #[getter]
    const fn held(&self) -> bool {
        matches!(self.0, core::Action::Report(Report::Failed { pages: Pages::Held, .. }))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
