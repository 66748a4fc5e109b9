//! The requests of a sender: offered, asked for, served, over.

use crate::error::{Error, Result};
use crate::ring::chunks::Chunks;
use crate::ring::names::{Flow, Peer, RequestName, Ticket};
use crate::ring::receiver::Progress;
use crate::ring::report::{Action, Pages, Reason, Report, RequestKey};
use crate::ring::session::send;
use crate::units::{add, wide};

use super::{Partner, Sender};

/// Pages leased to a request that nobody asked for yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Offer {
    chunks: Chunks,
    /// Ticks that are left.
    lease: Option<u32>,
}

impl Offer {
    pub(super) fn progress(&self) -> Progress {
        Progress { done: 0, chunks: self.chunks.count(), begun: false }
    }
}

/// A request that a peer wants and nobody offered yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    name: RequestName,
    chunks: Chunks,
}

/// A request under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Serving {
    pub(super) name: RequestName,
    pub(super) chunks: Chunks,
    lease: Option<u32>,
    /// The next chunk to gather; chunks go in order.
    pub(super) next: u32,
    /// Chunks that the receiver has in its pages.
    pub(super) done: u32,
    /// Gathers at work on the pages.
    pub(super) gathering: u32,
}

impl Serving {
    /// Chunks that were not begun.
    pub(super) fn todo(&self) -> u32 {
        self.chunks.count().saturating_sub(self.next)
    }

    /// The next chunk, begun.
    pub(super) fn begin(&mut self) -> u32 {
        let sequence = self.next;
        self.next = self.next.saturating_add(1);
        self.gathering = self.gathering.saturating_add(1);
        sequence
    }

    pub(super) fn progress(&self) -> Progress {
        Progress { done: self.done, chunks: self.chunks.count(), begun: true }
    }
}

/// What became of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Over {
    Finished,
    Aborted(Reason),
}

impl Partner {
    pub(super) fn is_asked(&self, request: &RequestName) -> bool {
        self.asked.values().any(|asked| asked.name == *request)
    }

    pub(super) fn served(&self, request: &RequestName) -> Option<(Ticket, &Serving)> {
        self.serving.iter().find(|(_, serving)| serving.name == *request).map(|(&ticket, serving)| (ticket, serving))
    }

    /// Chunks that a granted slot may be needed for.
    pub(super) fn todo(&self) -> u64 {
        let serving = self.serving.values().map(Serving::todo);
        let asked = self.asked.values().map(|asked| asked.chunks.count());
        serving.chain(asked).map(u64::from).fold(0, u64::saturating_add)
    }

    /// Whether the receiver may have the ticket open: more than `window` from its floor on it has not.
    fn is_in_window(&self, ticket: Ticket, window: u32) -> bool {
        self.floor <= ticket && ticket.0 < self.floor.0.saturating_add(window.into())
    }

    fn serve(&mut self, ticket: Ticket, name: RequestName, offer: Offer) {
        let Offer { chunks, lease } = offer;
        self.serving.insert(ticket, Serving { name, chunks, lease, next: 0, done: 0, gathering: 0 });
    }
}

impl Sender {
    pub(super) fn offer(
        &mut self,
        peer: Peer,
        request: RequestName,
        chunks: Chunks,
        lease: Option<u32>,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let (room, open) = (self.slots.config().slot_bytes, self.slots.config().requests);
        let partner = self.partners.get_mut(&peer);
        let partner = partner.ok_or_else(|| Error::ring(peer.to_string(), "is not connected", "connect it first"))?;
        if chunks.chunk_bytes() > room {
            return Err(Error::limit("bytes of a chunk", chunks.chunk_bytes(), room));
        }
        if partner.offers.contains_key(&request) || partner.served(&request).is_some() {
            return Err(Error::ring(format!("request {request}"), "is offered", "offer it once"));
        }
        // The latest, should an earlier one be on its way to its end.
        let asked = partner.asked.iter().rev().find(|(_, asked)| asked.name == request);
        let asked = asked.map(|(&ticket, asked)| (ticket, asked.chunks));
        let offer = Offer { chunks, lease };
        match asked {
            // What the peer waits for is always taken: it could not want anything else before.
            None => {
                let offers = add(wide(partner.offers.len()), 1, "offers to a peer")?;
                if offers > open.into() {
                    return Err(Error::limit("offers that a peer has not asked for", offers, open.into()));
                }
                partner.offers.insert(request, offer);
            }
            Some((ticket, wanted)) => {
                partner.asked.remove(&ticket);
                if wanted == chunks {
                    partner.serve(ticket, request, offer);
                } else {
                    partner.offers.insert(request.clone(), offer);
                    self.fail_offer(peer, &request, Some(ticket), Reason::Mismatch, out);
                }
            }
        }
        Ok(())
    }

    pub(super) fn withdraw(&mut self, peer: Peer, request: &RequestName, out: &mut Vec<Action>) -> Result<()> {
        let unknown =
            || Error::ring(format!("request {request}"), "is neither offered nor asked for", "withdraw what is");
        let partner = self.partners.get(&peer).ok_or_else(unknown)?;
        match partner.served(request) {
            Some((ticket, _)) => self.fail(peer, ticket, Reason::Cancelled, false, out),
            None if partner.offers.contains_key(request) => {
                self.fail_offer(peer, request, None, Reason::Cancelled, out);
            }
            None => {
                let asked = partner.asked.iter().find(|(_, asked)| asked.name == *request).map(|(&ticket, _)| ticket);
                let ticket = asked.ok_or_else(unknown)?;
                if let Some(partner) = self.partners.get_mut(&peer) {
                    partner.asked.remove(&ticket);
                }
                self.refuse(peer, ticket, Reason::Cancelled, out);
            }
        }
        Ok(())
    }

    /// A receiver that moved on says so with its next request; what became of older ones need not be remembered.
    pub(super) fn raise_floor(&mut self, peer: Peer, floor: Ticket) {
        if let Some(partner) = self.partners.get_mut(&peer).filter(|partner| partner.floor < floor) {
            partner.floor = floor;
            partner.over = partner.over.split_off(&floor);
            partner.asked = partner.asked.split_off(&floor);
        }
    }

    pub(super) fn wanted(
        &mut self,
        peer: Peer,
        ticket: Ticket,
        name: RequestName,
        chunks: Chunks,
        flow: Flow,
        out: &mut Vec<Action>,
    ) {
        let window = self.slots.config().requests;
        let Some(partner) = self.partners.get_mut(&peer).filter(|partner| partner.is_in_window(ticket, window)) else {
            return;
        };
        match partner.over.get(&ticket) {
            Some(Over::Finished) => return,
            Some(&Over::Aborted(reason)) => {
                send(out, peer, partner.session, partner.abort(ticket, false, reason));
                return;
            }
            None if partner.serving.contains_key(&ticket) || partner.asked.contains_key(&ticket) => return,
            None => {}
        }
        match partner.offers.get(&name).copied() {
            _ if flow != partner.flow => self.refuse(peer, ticket, Reason::Mismatch, out),
            None => {
                let key = RequestKey { peer, ticket: Some(ticket), request: name.clone() };
                partner.asked.insert(ticket, Asked { name, chunks });
                out.push(Action::Report(Report::Asked { key, chunks }));
            }
            Some(offer) if offer.chunks == chunks => {
                partner.offers.remove(&name);
                partner.serve(ticket, name, offer);
            }
            Some(_) => self.fail_offer(peer, &name, Some(ticket), Reason::Mismatch, out),
        }
    }

    /// Tells the peer that a ticket is over, until it answers.
    fn refuse(&mut self, peer: Peer, ticket: Ticket, reason: Reason, out: &mut Vec<Action>) {
        let Some(partner) = self.partners.get_mut(&peer) else { return };
        if ticket >= partner.floor {
            partner.over.insert(ticket, Over::Aborted(reason));
        }
        partner.aborting.insert(ticket, (reason, 0));
        send(out, peer, partner.session, partner.abort(ticket, false, reason));
    }

    /// Ends a served request without success. Unless the peer said so, it is told until it answers. Its chunks that are in slots
    /// already go their way.
    pub(super) fn fail(&mut self, peer: Peer, ticket: Ticket, reason: Reason, by_peer: bool, out: &mut Vec<Action>) {
        let Some(partner) = self.partners.get_mut(&peer) else { return };
        let Some(serving) = partner.serving.remove(&ticket) else { return };
        let session = partner.session;
        if by_peer {
            partner.over.insert(ticket, Over::Aborted(reason));
        } else {
            self.refuse(peer, ticket, reason, out);
        }
        let key = RequestKey { peer, ticket: Some(ticket), request: serving.name };
        let pages = self.held.hold(&key, session, serving.gathering);
        out.push(Action::Report(Report::Failed { key, reason, by_peer, pages }));
    }

    /// Ends an offer that nobody was served from; `ticket` is told, if one is at fault.
    pub(super) fn fail_offer(
        &mut self,
        peer: Peer,
        request: &RequestName,
        ticket: Option<Ticket>,
        reason: Reason,
        out: &mut Vec<Action>,
    ) {
        let Some(partner) = self.partners.get_mut(&peer) else { return };
        if let Some((request, _)) = partner.offers.remove_entry(request) {
            let key = RequestKey { peer, ticket, request };
            out.push(Action::Report(Report::Failed { key, reason, by_peer: false, pages: Pages::Free }));
        }
        if let Some(ticket) = ticket {
            self.refuse(peer, ticket, reason, out);
        }
    }

    pub(super) fn abort_heard(
        &mut self,
        peer: Peer,
        ticket: Ticket,
        answer: bool,
        reason: Reason,
        out: &mut Vec<Action>,
    ) {
        let window = self.slots.config().requests;
        let Some(partner) = self.partners.get_mut(&peer) else { return };
        partner.aborting.remove(&ticket);
        partner.asked.remove(&ticket);
        // Also when its `want` did not come yet: it must not begin when it does.
        if partner.is_in_window(ticket, window) && !partner.over.contains_key(&ticket) {
            partner.over.insert(ticket, Over::Aborted(reason));
        }
        self.fail(peer, ticket, reason, true, out);
        if let Some(partner) = self.partners.get(&peer).filter(|_| !answer) {
            send(out, peer, partner.session, partner.abort(ticket, true, reason));
        }
    }

    /// The receiver has another chunk in its pages.
    pub(super) fn chunk_done(&mut self, peer: Peer, ticket: Ticket, out: &mut Vec<Action>) {
        let Some(partner) = self.partners.get_mut(&peer) else { return };
        let Some(serving) = partner.serving.get_mut(&ticket) else { return };
        serving.done = serving.done.saturating_add(1);
        if serving.done < serving.chunks.count() {
            return;
        }
        if let Some(serving) = partner.serving.remove(&ticket) {
            if ticket >= partner.floor {
                partner.over.insert(ticket, Over::Finished);
            }
            let key = RequestKey { peer, ticket: Some(ticket), request: serving.name };
            out.push(Action::Report(Report::Finished(key)));
        }
    }

    pub(super) fn tick_requests(&mut self, out: &mut Vec<Action>) {
        let patience = self.slots.config().resend;
        let mut ended = Vec::new();
        let mut unused = Vec::new();
        for (&peer, partner) in &mut self.partners {
            for (&ticket, serving) in &mut partner.serving {
                if runs_out(&mut serving.lease) {
                    ended.push((peer, ticket));
                }
            }
            for (request, offer) in &mut partner.offers {
                if runs_out(&mut offer.lease) {
                    unused.push((peer, request.clone()));
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
            for (ticket, reason) in unanswered {
                send(out, peer, partner.session, partner.abort(ticket, false, reason));
            }
        }
        for (peer, ticket) in ended {
            self.fail(peer, ticket, Reason::LeaseEnded, false, out);
        }
        for (peer, request) in unused {
            self.fail_offer(peer, &request, None, Reason::LeaseEnded, out);
        }
    }
}

fn runs_out(left: &mut Option<u32>) -> bool {
    *left = left.map(|left| left.saturating_sub(1));
    *left == Some(0)
}
