//! Which sessions are over, and whose pages outlive their request.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::units::add;

use super::message::{Frame, Message};
use super::names::{Peer, RequestName, Session, Ticket};
use super::report::{Action, Pages, Report, RequestKey};

/// The epochs of one machine. A session begins only in the present epoch, so one of an earlier epoch either lives on or is over
/// for good; what is over can be answered without remembering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Epochs {
    first: u64,
    now: u64,
}

impl Epochs {
    pub(super) const fn new(first: u64) -> Self {
        Self { first, now: first }
    }

    pub(super) const fn now(self) -> u64 {
        self.now
    }

    /// Whether this machine has left `epoch`. Epochs before its first are another process's, for which it cannot speak.
    pub(super) const fn left(self, epoch: u64) -> bool {
        self.first <= epoch && epoch < self.now
    }

    /// Sees to it that no session of `epoch` begins again.
    pub(super) fn leave(&mut self, epoch: u64) -> Result<()> {
        if epoch == self.now {
            self.now = add(epoch, 1, "epoch of a ring")?;
        }
        Ok(())
    }
}

/// Requests that failed while a kernel was at their pages. There are no more of them than slots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Held(BTreeMap<(Peer, Session, Ticket), (RequestName, u32)>);

impl Held {
    /// Notes `kernels` at work on the pages; whether the pages are held.
    pub(super) fn hold(&mut self, key: &RequestKey, session: Session, kernels: u32) -> Pages {
        match key.ticket {
            Some(ticket) if kernels > 0 => {
                self.0.insert((key.peer, session, ticket), (key.request.clone(), kernels));
                Pages::Held
            }
            _ => Pages::Free,
        }
    }

    /// One kernel ended; reports the pages that are free now.
    pub(super) fn release(&mut self, peer: Peer, session: Session, ticket: Ticket, out: &mut Vec<Action>) {
        let at = (peer, session, ticket);
        let Some((_, kernels)) = self.0.get_mut(&at) else { return };
        *kernels = kernels.saturating_sub(1);
        if *kernels > 0 {
            return;
        }
        if let Some((request, _)) = self.0.remove(&at) {
            out.push(Action::Report(Report::Freed(RequestKey { peer, ticket: Some(ticket), request })));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

pub(super) fn send(out: &mut Vec<Action>, peer: Peer, session: Session, message: Message) {
    out.push(Action::Send { peer, frame: Frame { session, message } });
}
