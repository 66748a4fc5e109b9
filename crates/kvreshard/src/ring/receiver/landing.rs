//! What comes into a receiver's slots, and who gets the next one.

use std::collections::btree_map::Entry;

use crate::error::Result;
use crate::ring::message::Message;
use crate::ring::names::{Flow, Peer, Role, Session, SlotUse, Ticket};
use crate::ring::report::{Action, Move, Piece, Reason, Report, RequestKey};
use crate::ring::session::send;
use crate::ring::slots::{Cargo, Claim, Slots};
use crate::ring::table::{State, Step};
use crate::ring::turn;

use super::{Announced, Partner, Receiver};

/// What part of the ring may wait for a peer that has not begun: one in so many slots.
const EARLY: u32 = 2;

impl Partner {
    /// Whether the peer should have another slot now.
    ///
    /// A request that has not begun counts for one slot beyond the minimum: its sender may not have the pages yet, and slots
    /// that wait for it would be slots that others miss. Half of the ring a peer may wait with all the same: fewer slots would
    /// let the first chunks pause until the sender is known to have begun.
    fn needs(&self, peer: Peer, slots: &Slots) -> bool {
        match self.flow {
            Flow::Push => {
                let sum = |of: fn(&super::Wanted) -> u32| self.requests.values().map(of).fold(0, u32::saturating_add);
                let all = sum(|wanted| wanted.missing);
                let begun = sum(|wanted| if wanted.begun() { wanted.missing } else { wanted.missing.min(1) });
                let early = slots.config().slots.checked_div(EARLY).unwrap_or(0);
                !self.paused
                    && slots.has_free(|slot| self.may_be_granted(slot))
                    && self.granted < all
                    && slots.may_take(peer, self.granted < begun.max(early))
            }
            Flow::Pull => {
                self.announced.values().any(|announced| announced.waiting.is_some()) && slots.may_take(peer, true)
            }
        }
    }

    /// Lets go of chunks that wait to be read for a request that is over.
    pub(super) fn give_up_announced(&mut self, ticket: Ticket, peer: Peer, out: &mut Vec<Action>) {
        let mut given_up = Vec::new();
        for (&slot, announced) in &mut self.announced {
            if announced.waiting.is_some_and(|cargo| cargo.ticket == ticket) {
                announced.waiting = None;
                let at = SlotUse { slot, generation: announced.generation };
                given_up.push(at);
            }
        }
        for at in given_up {
            self.consumed(peer, ticket, at, out);
        }
    }

    /// Whether a free slot can be the peer's: it takes a grant for `consumed` of what it shipped there before.
    fn may_be_granted(&self, slot: u32) -> bool {
        !self.owed.contains_key(&slot)
    }

    /// Says that this side is done with what was shipped; if its request was given up, once the peer knows of that: it would take
    /// the last chunk that is consumed for the end of a request that went well.
    fn consumed(&mut self, peer: Peer, ticket: Ticket, at: SlotUse, out: &mut Vec<Action>) {
        if !self.aborting.contains_key(&ticket) {
            send(out, peer, self.session, Message::Consumed { at });
            return;
        }
        // An honest peer uses a slot again when the last use is consumed; of another one no more is kept either.
        let newest = self.owed.get(&at.slot).is_none_or(|&(generation, _)| generation <= at.generation);
        if newest {
            self.owed.insert(at.slot, (at.generation, ticket));
        }
    }

    /// The peer knows that a request was given up.
    pub(super) fn settle(&mut self, peer: Peer, ticket: Ticket, out: &mut Vec<Action>) {
        self.aborting.remove(&ticket);
        let session = self.session;
        self.owed.retain(|&slot, &mut (generation, of)| {
            if of == ticket {
                send(out, peer, session, Message::Consumed { at: SlotUse { slot, generation } });
            }
            of != ticket
        });
    }
}

/// The same of a session that is over, which nothing is kept of. Unless the peer learns it first, its request has failed.
fn consumed_late(peer: Peer, session: Session, ticket: Ticket, at: SlotUse, out: &mut Vec<Action>) {
    let reason = Reason::PeerLost;
    send(out, peer, session, Message::Abort { ticket, floor: Ticket(0), from: Role::Receiver, answer: false, reason });
    send(out, peer, session, Message::Consumed { at });
}

impl Receiver {
    /// `shipped` from a peer that writes: the slot is this side's again.
    pub(super) fn pushed(
        &mut self,
        peer: Peer,
        session: Session,
        at: SlotUse,
        cargo: Cargo,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let Some(&slot) = self.slots.get(at.slot) else { return Ok(()) };
        let Some(partner) = self.partners.get_mut(&peer) else { return Ok(()) };
        let its = slot.generation == at.generation && slot.claim.is_some_and(|claim| claim.is_of(peer, session));
        if !its {
            // An older use, long over: the peer missed the answer.
            if at.generation <= slot.generation {
                partner.consumed(peer, cargo.ticket, at, out);
            }
            return Ok(());
        }
        if slot.state != State::Granted {
            return Ok(());
        }
        partner.granted = partner.granted.saturating_sub(1);
        let wanted = partner.requests.get_mut(&cargo.ticket).is_some_and(|wanted| wanted.see(cargo.sequence));
        if !wanted {
            partner.consumed(peer, cargo.ticket, at, out);
            self.slots.step(at.slot, Step::ShippedLate)?;
            return Ok(());
        }
        self.slots.step(at.slot, Step::Shipped)?;
        self.slots.load(at.slot, cargo)?;
        self.scatter(peer, at.slot, cargo, out)
    }

    /// `shipped` in a session that is over: a lost writer has ended, or a lost peer asks whether its slot is read.
    pub(super) fn shipped_late(
        &mut self,
        peer: Peer,
        session: Session,
        at: SlotUse,
        ticket: Ticket,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        if self.is_quarantined(peer, session, at) {
            self.slots.step(at.slot, Step::ShippedLate)?;
        } else if self.is_fetching(peer, session, at) {
            return Ok(());
        }
        consumed_late(peer, session, ticket, at, out);
        Ok(())
    }

    pub(super) fn returned(&mut self, peer: Peer, session: Session, at: SlotUse) -> Result<()> {
        if self.is_quarantined(peer, session, at) {
            self.slots.step(at.slot, Step::Returned)?;
            return Ok(());
        }
        let its = |claim: Claim| claim.is_of(peer, session);
        let granted = self.slots.get(at.slot).is_some_and(|slot| {
            slot.state == State::Granted && slot.generation == at.generation && slot.claim.is_some_and(its)
        });
        if granted {
            self.slots.step(at.slot, Step::Returned)?;
            if let Some(partner) = self.partners.get_mut(&peer) {
                partner.granted = partner.granted.saturating_sub(1);
                partner.paused = true;
            }
        }
        Ok(())
    }

    /// `shipped` from a peer whose slots are read.
    pub(super) fn announced(&mut self, peer: Peer, session: Session, at: SlotUse, cargo: Cargo, out: &mut Vec<Action>) {
        let fetching = self.is_fetching(peer, session, at);
        let Some(partner) = self.partners.get_mut(&peer).filter(|partner| at.slot < partner.remote_slots) else {
            return;
        };
        match partner.announced.get(&at.slot) {
            // An earlier use; by now another chunk may lie there, so it must not be read.
            Some(known) if at.generation < known.generation => {}
            Some(known) if at.generation == known.generation => {
                if known.waiting.is_none() && !fetching {
                    partner.consumed(peer, cargo.ticket, at, out);
                }
            }
            _ => {
                let wanted = partner.requests.get_mut(&cargo.ticket).is_some_and(|wanted| wanted.see(cargo.sequence));
                let waiting = wanted.then_some(cargo);
                partner.announced.insert(at.slot, Announced { generation: at.generation, waiting });
                if !wanted {
                    partner.consumed(peer, cargo.ticket, at, out);
                }
            }
        }
    }

    pub(super) fn read_ended(&mut self, slot: u32, ok: bool, out: &mut Vec<Action>) -> Result<()> {
        let (_, claim) = self.slots.expect(slot, State::Reading, "a read ended")?;
        let Claim { peer, session, cargo: Some(cargo), remote: Some(remote) } = claim else { return Ok(()) };
        let live = self.live(peer, session);
        let wanted = live.is_some_and(|partner| partner.requests.contains_key(&cargo.ticket));
        self.slots.step(slot, if ok && wanted { Step::ReadEnded } else { Step::ReadDropped })?;
        if ok && wanted {
            return self.scatter(peer, slot, cargo, out);
        }
        if wanted {
            self.fail(peer, cargo.ticket, Reason::Transfer, false, out);
        }
        self.done_with(peer, session, cargo.ticket, remote, out);
        Ok(())
    }

    fn live(&mut self, peer: Peer, session: Session) -> Option<&mut Partner> {
        self.partners.get_mut(&peer).filter(|partner| partner.session == session)
    }

    fn done_with(&mut self, peer: Peer, session: Session, ticket: Ticket, at: SlotUse, out: &mut Vec<Action>) {
        match self.live(peer, session) {
            Some(partner) => partner.consumed(peer, ticket, at, out),
            None => consumed_late(peer, session, ticket, at, out),
        }
    }

    fn scatter(&mut self, peer: Peer, slot: u32, cargo: Cargo, out: &mut Vec<Action>) -> Result<()> {
        let Some(partner) = self.partners.get_mut(&peer) else { return Ok(()) };
        let Some(wanted) = partner.requests.get_mut(&cargo.ticket) else { return Ok(()) };
        wanted.scattering = wanted.scattering.saturating_add(1);
        let (offset, bytes) = wanted.chunks.span(cargo.sequence)?;
        let key = RequestKey { peer, ticket: Some(cargo.ticket), request: wanted.name.clone() };
        out.push(Action::Scatter(Piece { key, slot, sequence: cargo.sequence, offset, bytes, remote: None }));
        Ok(())
    }

    pub(super) fn scattered(&mut self, slot: u32, ok: bool, out: &mut Vec<Action>) -> Result<()> {
        let (at, claim) = self.slots.expect(slot, State::Scattering, "a scatter ended")?;
        let Claim { peer, session, cargo: Some(cargo), remote } = claim else { return Ok(()) };
        self.slots.step(slot, Step::Scattered)?;
        let shipped = remote.unwrap_or(at);
        let entry = self.live(peer, session).map(|partner| (&mut partner.names, partner.requests.entry(cargo.ticket)));
        let Some((names, Entry::Occupied(mut wanted))) = entry else {
            self.held.release(peer, session, cargo.ticket, out);
            self.done_with(peer, session, cargo.ticket, shipped, out);
            return Ok(());
        };
        let here = wanted.get_mut();
        here.scattering = here.scattering.saturating_sub(1);
        here.here = here.here.saturating_add(u32::from(ok));
        if here.here == here.chunks.count() {
            let request = wanted.remove().name;
            names.remove(&request);
            let key = RequestKey { peer, ticket: Some(cargo.ticket), request };
            out.push(Action::Report(Report::Finished(key)));
        } else if !ok {
            self.fail(peer, cargo.ticket, Reason::Kernel, false, out);
        }
        self.done_with(peer, session, cargo.ticket, shipped, out);
        Ok(())
    }

    /// Gives free slots to the peers in turn.
    pub(super) fn fill(&mut self, out: &mut Vec<Action>) -> Result<()> {
        while let Some(peer) = turn::next(&self.partners, self.last, |peer, partner| partner.needs(peer, &self.slots)) {
            self.last = Some(peer);
            let Some(partner) = self.partners.get_mut(&peer) else { break };
            let session = partner.session;
            match partner.flow {
                Flow::Push => {
                    let claim = Claim { peer, session, cargo: None, remote: None };
                    let at = self.slots.take_of(Step::Grant, claim, |slot| partner.may_be_granted(slot))?;
                    partner.granted = partner.granted.saturating_add(1);
                    send(out, peer, session, Message::Grant { at, bytes: self.slots.config().slot_bytes });
                }
                Flow::Pull => {
                    let next = turn::next(&partner.announced, partner.last, |_, known| known.waiting.is_some());
                    partner.last = next;
                    let Some((slot, known)) = next.and_then(|slot| Some((slot, partner.announced.get_mut(&slot)?)))
                    else {
                        break;
                    };
                    let Some(cargo) = known.waiting.take() else { break };
                    let remote = SlotUse { slot, generation: known.generation };
                    let Some(wanted) = partner.requests.get(&cargo.ticket) else { break };
                    let (_, bytes) = wanted.chunks.span(cargo.sequence)?;
                    let claim = Claim { peer, session, cargo: Some(cargo), remote: Some(remote) };
                    let at = self.slots.take(Step::Read, claim)?;
                    out.push(Action::Read(Move { peer, slot: at.slot, remote, bytes }));
                }
            }
        }
        Ok(())
    }

    fn is_quarantined(&self, peer: Peer, session: Session, at: SlotUse) -> bool {
        self.slots.get(at.slot).is_some_and(|slot| {
            slot.state == State::Quarantined
                && slot.generation == at.generation
                && slot.claim.is_some_and(|claim| claim.is_of(peer, session))
        })
    }
}
