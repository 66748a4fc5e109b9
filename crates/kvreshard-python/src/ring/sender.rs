//! `RingSender`: the machine whose pages are read.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvreshard::ring::{Chunks, Config, Frame, Peer, RequestName, Sender, SenderEvent, State};
use pyo3::prelude::*;

use crate::errors::Raise;

use super::{Done, RingAction, done};

/// The sending side of the packed protocol.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct RingSender(Mutex<Sender>);

impl RingSender {
    fn machine(&self) -> MutexGuard<'_, Sender> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on(&self, py: Python<'_>, event: SenderEvent) -> PyResult<Vec<RingAction>> {
        py.detach(|| self.machine().on(event)).map(RingAction::made).raised(py)
    }
}

#[pymethods]
impl RingSender {
    #[new]
    #[pyo3(signature = (*, slots, slot_bytes, epoch, minimum=1, requests=1024, resend=16))]
    fn new(
        py: Python<'_>,
        slots: u32,
        slot_bytes: u64,
        epoch: u64,
        minimum: u32,
        requests: u32,
        resend: u32,
    ) -> PyResult<Self> {
        let config = Config { slots, slot_bytes, minimum, requests, resend };
        Sender::new(config, epoch).map(|made| Self(Mutex::new(made))).raised(py)
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.machine().epoch()
    }

    #[getter]
    fn held(&self) -> usize {
        self.machine().held()
    }

    #[getter]
    fn free(&self) -> u32 {
        self.machine().count(State::Free)
    }

    #[getter]
    fn quarantined(&self) -> u32 {
        self.machine().count(State::Quarantined)
    }

    fn progress(&self, py: Python<'_>, peer: u32, request: &str) -> PyResult<Option<Done>> {
        let request = RequestName::new(request).raised(py)?;
        Ok(self.machine().progress(Peer(peer), &request).map(done))
    }

    fn is_asked(&self, py: Python<'_>, peer: u32, request: &str) -> PyResult<bool> {
        let request = RequestName::new(request).raised(py)?;
        Ok(self.machine().is_asked(Peer(peer), &request))
    }

    fn slot(&self, slot: u32) -> Option<(String, u64)> {
        self.machine().slot(slot).map(|(state, generation)| (state.to_string(), generation))
    }

    #[pyo3(signature = (peer, session, flow, slots))]
    fn peer_up(
        &self,
        py: Python<'_>,
        peer: u32,
        session: (u64, u64),
        flow: &str,
        slots: u32,
    ) -> PyResult<Vec<RingAction>> {
        let flow = super::flow(py, flow)?;
        self.on(py, SenderEvent::PeerUp { peer: Peer(peer), session: super::session(session), flow, slots })
    }

    fn peer_down(&self, py: Python<'_>, peer: u32) -> PyResult<Vec<RingAction>> {
        self.on(py, SenderEvent::PeerDown { peer: Peer(peer) })
    }

    fn peer_gone(&self, py: Python<'_>, peer: u32) -> PyResult<Vec<RingAction>> {
        self.on(py, SenderEvent::ReaderGone { peer: Peer(peer) })
    }

    fn registered(&self, py: Python<'_>) -> PyResult<Vec<RingAction>> {
        self.on(py, SenderEvent::Registered)
    }

    #[pyo3(signature = (peer, request, bytes, chunk_bytes, lease=None))]
    fn offer(
        &self,
        py: Python<'_>,
        peer: u32,
        request: &str,
        bytes: u64,
        chunk_bytes: u64,
        lease: Option<u32>,
    ) -> PyResult<Vec<RingAction>> {
        let request = RequestName::new(request).raised(py)?;
        let chunks = Chunks::new(bytes, chunk_bytes).raised(py)?;
        self.on(py, SenderEvent::Offer { peer: Peer(peer), request, chunks, lease })
    }

    fn withdraw(&self, py: Python<'_>, peer: u32, request: &str) -> PyResult<Vec<RingAction>> {
        let request = RequestName::new(request).raised(py)?;
        self.on(py, SenderEvent::Withdraw { peer: Peer(peer), request })
    }

    fn message(&self, py: Python<'_>, peer: u32, frame: &[u8]) -> PyResult<Vec<RingAction>> {
        let frame = Frame::from_bytes(frame).raised(py)?;
        self.on(py, SenderEvent::Message { peer: Peer(peer), frame })
    }

    fn gathered(&self, py: Python<'_>, slot: u32, ok: bool) -> PyResult<Vec<RingAction>> {
        self.on(py, SenderEvent::Gathered { slot, ok })
    }

    fn write_ended(&self, py: Python<'_>, slot: u32, ok: bool) -> PyResult<Vec<RingAction>> {
        self.on(py, SenderEvent::WriteEnded { slot, ok })
    }

    fn tick(&self, py: Python<'_>) -> PyResult<Vec<RingAction>> {
        self.on(py, SenderEvent::Tick)
    }
}
