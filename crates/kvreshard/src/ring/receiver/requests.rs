//! The requests of a receiver: wanted, given up, failed.

use crate::error::{Error, Result};
use crate::ring::chunks::Chunks;
use crate::ring::message::{Message, WireRequest};
use crate::ring::names::{Peer, RequestName, Role, Ticket};
use crate::ring::report::{Action, Reason, Report, RequestKey};
use crate::ring::session::send;
use crate::units::{add, index};

use super::{Partner, Progress, Receiver};

/// A request that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub(super) name: RequestName,
    pub(super) chunks: Chunks,
    /// Chunks that have come, or are known to be ready.
    pub(super) seen: Vec<bool>,
    /// Chunks of which nothing was heard.
    pub(super) missing: u32,
    /// Chunks in the pages.
    pub(super) here: u32,
    /// Scatters at work on the pages.
    pub(super) scattering: u32,
    /// Ticks that are left.
    deadline: Option<u32>,
    /// Ticks since anything was heard.
    pub(super) idle: u32,
}

impl Wanted {
    pub(super) fn begun(&self) -> bool {
        self.missing < self.chunks.count()
    }

    pub(super) fn progress(&self) -> Progress {
        Progress { done: self.here, chunks: self.chunks.count(), begun: self.begun() }
    }

    /// Marks a chunk as come, once.
    pub(super) fn see(&mut self, sequence: u32) -> bool {
        let Some(seen) = usize::try_from(sequence).ok().and_then(|at| self.seen.get_mut(at)) else { return false };
        if std::mem::replace(seen, true) {
            return false;
        }
        self.missing = self.missing.saturating_sub(1);
        self.idle = 0;
        true
    }
}

impl Partner {
    /// The lowest ticket that the peer may still hear of.
    fn floor(&self) -> Ticket {
        let open = self.requests.keys().chain(self.aborting.keys()).min();
        open.copied().unwrap_or(self.next)
    }

    fn want(&self, ticket: Ticket, wanted: &Wanted) -> Message {
        let request = WireRequest::new(&wanted.name, wanted.chunks);
        Message::Want { ticket, floor: self.floor(), request, flow: self.flow }
    }

    fn abort(&self, ticket: Ticket, answer: bool, reason: Reason) -> Message {
        Message::Abort { ticket, floor: self.floor(), from: Role::Receiver, answer, reason }
    }
}

impl Receiver {
    pub(super) fn want(
        &mut self,
        peer: Peer,
        request: RequestName,
        chunks: Chunks,
        deadline: Option<u32>,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let (room, open) = (self.slots.config().slot_bytes, self.slots.config().requests);
        let partner = self.partners.get_mut(&peer);
        let partner = partner.ok_or_else(|| Error::ring(peer.to_string(), "is not connected", "connect it first"))?;
        if chunks.chunk_bytes() > room {
            return Err(Error::limit("bytes of a chunk", chunks.chunk_bytes(), room));
        }
        if partner.names.contains_key(&request) {
            return Err(Error::ring(format!("request {request}"), "is under way", "want it once"));
        }
        let ticket = partner.next;
        let spread = add(ticket.0.saturating_sub(partner.floor().0), 1, "open requests of a peer")?;
        if spread > open.into() {
            return Err(Error::limit("open requests of a peer, from the oldest on", spread, open.into()));
        }
        let wanted = Wanted {
            name: request.clone(),
            chunks,
            seen: vec![false; index(chunks.count().into(), "chunks of a request")?],
            missing: chunks.count(),
            here: 0,
            scattering: 0,
            deadline,
            idle: 0,
        };
        partner.next = Ticket(add(ticket.0, 1, "ticket of a request")?);
        partner.names.insert(request, ticket);
        partner.requests.insert(ticket, wanted);
        if let Some(wanted) = partner.requests.get(&ticket) {
            send(out, peer, partner.session, partner.want(ticket, wanted));
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, peer: Peer, request: &RequestName, out: &mut Vec<Action>) -> Result<()> {
        let ticket = self.partners.get(&peer).and_then(|partner| partner.names.get(request)).copied();
        let unknown = || Error::ring(format!("request {request}"), "is not under way", "cancel what is");
        self.fail(peer, ticket.ok_or_else(unknown)?, Reason::Cancelled, false, out);
        Ok(())
    }

    /// Ends a request without success. Unless the peer said so, it is told until it answers.
    pub(super) fn fail(&mut self, peer: Peer, ticket: Ticket, reason: Reason, by_peer: bool, out: &mut Vec<Action>) {
        let Some(partner) = self.partners.get_mut(&peer) else { return };
        let Some(wanted) = partner.requests.remove(&ticket) else { return };
        partner.names.remove(&wanted.name);
        let session = partner.session;
        if !by_peer {
            partner.aborting.insert(ticket, (reason, 0));
            send(out, peer, session, partner.abort(ticket, false, reason));
        }
        partner.give_up_announced(ticket, peer, out);
        let key = RequestKey { peer, ticket: Some(ticket), request: wanted.name };
        let pages = self.held.hold(&key, session, wanted.scattering);
        out.push(Action::Report(Report::Failed { key, reason, by_peer, pages }));
    }

    pub(super) fn abort_heard(
        &mut self,
        peer: Peer,
        ticket: Ticket,
        answer: bool,
        reason: Reason,
        out: &mut Vec<Action>,
    ) {
        let Some(partner) = self.partners.get_mut(&peer).filter(|partner| ticket < partner.next) else { return };
        partner.settle(peer, ticket, out);
        if !answer {
            self.fail(peer, ticket, reason, true, out);
            if let Some(partner) = self.partners.get(&peer) {
                send(out, peer, partner.session, partner.abort(ticket, true, reason));
            }
        }
    }

    pub(super) fn tick_requests(&mut self, out: &mut Vec<Action>) {
        let patience = self.slots.config().resend;
        let mut late = Vec::new();
        for (&peer, partner) in &mut self.partners {
            partner.paused = false;
            let mut silent = Vec::new();
            for (&ticket, wanted) in &mut partner.requests {
                wanted.deadline = wanted.deadline.map(|left| left.saturating_sub(1));
                if wanted.deadline == Some(0) {
                    late.push((peer, ticket));
                    continue;
                }
                wanted.idle = wanted.idle.saturating_add(1);
                if wanted.idle >= patience {
                    wanted.idle = 0;
                    silent.push(ticket);
                }
            }
            let mut unanswered = Vec::new();
            for (&ticket, (reason, age)) in &mut partner.aborting {
                *age = age.saturating_add(1);
                if *age >= patience {
                    *age = 0;
                    unanswered.push((ticket, *reason));
                }
            }
            for ticket in silent {
                if let Some(wanted) = partner.requests.get(&ticket) {
                    send(out, peer, partner.session, partner.want(ticket, wanted));
                }
            }
            for (ticket, reason) in unanswered {
                send(out, peer, partner.session, partner.abort(ticket, false, reason));
            }
        }
        for (peer, ticket) in late {
            self.fail(peer, ticket, Reason::Deadline, false, out);
        }
    }
}
