//! `RingReceiver`, `RingSender`, `RingAction`: the packed protocol's machines.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvreshard::ring as core;
use kvreshard::ring::{
    Chunks, Config, Flow, Frame, Pages, Peer, Progress, Receiver, ReceiverEvent, Report, RequestName, Role, Sender,
    SenderEvent, Session, State,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Raise;

/// Which side a message is for; none where it is not of the ring protocol.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(crate) fn ring_frame_to(py: Python<'_>, data: &[u8]) -> PyResult<Option<&'static str>> {
    if !Frame::is_frame(data) {
        return Ok(None);
    }
    Ok(Some(match Frame::from_bytes(data).raised(py)?.message.to() {
        Role::Receiver => "receiver",
        Role::Sender => "sender",
    }))
}

/// What the host of a machine must do.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct RingAction(core::Action);

impl RingAction {
    fn made(actions: Vec<core::Action>) -> Vec<Self> {
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

fn flow(py: Python<'_>, flow: &str) -> PyResult<Flow> {
    match flow {
        "push" => Ok(Flow::Push),
        "pull" => Ok(Flow::Pull),
        other => Err(kvreshard::Error::Ring {
            subject: "flow".to_owned(),
            found: other.to_owned(),
            expected: "push or pull".to_owned(),
        })
        .raised(py),
    }
}

/// Chunks done with, chunks, and whether the peer takes part yet.
type Done = (u32, u32, bool);

const fn done(progress: Progress) -> Done {
    (progress.done, progress.chunks, progress.begun)
}

fn session((receiver, sender): (u64, u64)) -> Session {
    Session { receiver, sender }
}

/// The receiving side of the packed protocol.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct RingReceiver(Mutex<Receiver>);

impl RingReceiver {
    fn machine(&self) -> MutexGuard<'_, Receiver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on(&self, py: Python<'_>, event: ReceiverEvent) -> PyResult<Vec<RingAction>> {
        py.detach(|| self.machine().on(event)).map(RingAction::made).raised(py)
    }
}

#[pymethods]
impl RingReceiver {
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
        Receiver::new(config, epoch).map(|made| Self(Mutex::new(made))).raised(py)
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
        let flow = crate::ring::flow(py, flow)?;
        self.on(py, ReceiverEvent::PeerUp { peer: Peer(peer), session: crate::ring::session(session), flow, slots })
    }

    fn peer_down(&self, py: Python<'_>, peer: u32) -> PyResult<Vec<RingAction>> {
        self.on(py, ReceiverEvent::PeerDown { peer: Peer(peer) })
    }

    fn peer_gone(&self, py: Python<'_>, peer: u32) -> PyResult<Vec<RingAction>> {
        self.on(py, ReceiverEvent::WriterGone { peer: Peer(peer) })
    }

    fn registered(&self, py: Python<'_>) -> PyResult<Vec<RingAction>> {
        self.on(py, ReceiverEvent::Registered)
    }

    #[pyo3(signature = (peer, request, bytes, chunk_bytes, deadline=None))]
    fn want(
        &self,
        py: Python<'_>,
        peer: u32,
        request: &str,
        bytes: u64,
        chunk_bytes: u64,
        deadline: Option<u32>,
    ) -> PyResult<Vec<RingAction>> {
        let request = RequestName::new(request).raised(py)?;
        let chunks = Chunks::new(bytes, chunk_bytes).raised(py)?;
        self.on(py, ReceiverEvent::Want { peer: Peer(peer), request, chunks, deadline })
    }

    fn cancel(&self, py: Python<'_>, peer: u32, request: &str) -> PyResult<Vec<RingAction>> {
        let request = RequestName::new(request).raised(py)?;
        self.on(py, ReceiverEvent::Cancel { peer: Peer(peer), request })
    }

    fn message(&self, py: Python<'_>, peer: u32, frame: &[u8]) -> PyResult<Vec<RingAction>> {
        let frame = Frame::from_bytes(frame).raised(py)?;
        self.on(py, ReceiverEvent::Message { peer: Peer(peer), frame })
    }

    fn read_ended(&self, py: Python<'_>, slot: u32, ok: bool) -> PyResult<Vec<RingAction>> {
        self.on(py, ReceiverEvent::ReadEnded { slot, ok })
    }

    fn scattered(&self, py: Python<'_>, slot: u32, ok: bool) -> PyResult<Vec<RingAction>> {
        self.on(py, ReceiverEvent::Scattered { slot, ok })
    }

    fn tick(&self, py: Python<'_>) -> PyResult<Vec<RingAction>> {
        self.on(py, ReceiverEvent::Tick)
    }
}

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
        let flow = crate::ring::flow(py, flow)?;
        self.on(py, SenderEvent::PeerUp { peer: Peer(peer), session: crate::ring::session(session), flow, slots })
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
