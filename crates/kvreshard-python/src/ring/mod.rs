//! The packed protocol's machines: `RingReceiver`, `RingSender`, `RingAction`.

mod action;
mod receiver;
mod sender;

use kvreshard::ring::{Flow, Frame, Progress, Role, Session};
use pyo3::prelude::*;

use crate::errors::Raise;

pub(crate) use action::RingAction;
pub(crate) use receiver::RingReceiver;
pub(crate) use sender::RingSender;

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
