//! A sender's slots: whose chunk is next, and where it goes.

use crate::error::Result;
use crate::ring::message::Message;
use crate::ring::names::{Flow, Peer, Session, SlotUse};
use crate::ring::report::{Action, Move, Piece, Reason, RequestKey};
use crate::ring::session::send;
use crate::ring::slots::{Cargo, Claim, Slots};
use crate::ring::table::{State, Step};
use crate::ring::turn;

use super::requests::Serving;
use super::{Partner, Sender};

impl Partner {
    /// Whether a chunk of the request could be gathered, if there were a slot for it.
    fn can_go(&self, serving: &Serving) -> bool {
        let room = || self.held_credit(serving.chunks.chunk_bytes()).is_some();
        serving.todo() > 0 && (self.flow == Flow::Pull || room())
    }

    fn needs(&self, peer: Peer, slots: &Slots) -> bool {
        slots.may_take(peer, true) && self.serving.values().any(|serving| self.can_go(serving))
    }
}

impl Sender {
    /// Gives free slots to the peers in turn, and each peer's to its requests in turn.
    pub(super) fn fill(&mut self, out: &mut Vec<Action>) -> Result<()> {
        let rules = self.slots.rules().clone();
        while let Some(peer) = turn::next(&self.partners, self.last, |peer, partner| partner.needs(peer, &self.slots)) {
            self.last = Some(peer);
            let Some(partner) = self.partners.get_mut(&peer) else { break };
            let next = turn::next(&partner.serving, partner.last, |_, serving| partner.can_go(serving));
            partner.last = next;
            let Some(ticket) = next else { break };
            let Some(chunk_bytes) = partner.serving.get(&ticket).map(|serving| serving.chunks.chunk_bytes()) else {
                break;
            };
            let remote = if partner.flow == Flow::Push { partner.held_credit(chunk_bytes) } else { None };
            let Some(serving) = partner.serving.get_mut(&ticket) else { break };
            let sequence = serving.begin();
            let (offset, bytes) = serving.chunks.span(sequence)?;
            let key = RequestKey { peer, ticket: Some(ticket), request: serving.name.clone() };
            let cargo = Cargo { ticket, sequence };
            let claim = Claim { peer, session: partner.session, cargo: Some(cargo), remote };
            let at = self.slots.take(Step::Gather, claim)?;
            if let Some(remote) = remote {
                partner.use_credit(&rules, remote.slot, cargo)?;
            }
            out.push(Action::Gather(Piece { key, slot: at.slot, sequence, offset, bytes, remote }));
        }
        Ok(())
    }

    pub(super) fn gathered(&mut self, slot: u32, ok: bool, out: &mut Vec<Action>) -> Result<()> {
        let (at, claim) = self.slots.expect(slot, State::Gathering, "a gather ended")?;
        let Claim { peer, session, cargo: Some(cargo), remote } = claim else { return Ok(()) };
        let rules = self.slots.rules().clone();
        let mut live = self.partners.get_mut(&peer).filter(|partner| partner.session == session);
        let serving = live.as_mut().and_then(|partner| partner.serving.get_mut(&cargo.ticket));
        let bytes = serving.and_then(|serving| {
            serving.gathering = serving.gathering.saturating_sub(1);
            serving.chunks.span(cargo.sequence).ok().map(|(_, bytes)| bytes)
        });
        match (bytes.filter(|_| ok), remote) {
            (Some(bytes), Some(remote)) => {
                self.slots.step(slot, Step::Write)?;
                out.push(Action::Write(Move { peer, slot, remote, bytes }));
            }
            (Some(_), None) => {
                self.slots.step(slot, Step::Ship)?;
                send(out, peer, session, Message::Shipped { at, ticket: cargo.ticket, sequence: cargo.sequence });
            }
            (None, remote) => {
                self.slots.step(slot, Step::Dropped)?;
                match (live, remote) {
                    (Some(partner), Some(remote)) => partner.step_credit(&rules, remote.slot, Step::Unused)?,
                    (None, Some(at)) => send(out, peer, session, Message::Returned { at }),
                    (_, None) => {}
                }
                match bytes {
                    Some(_) => self.fail(peer, cargo.ticket, Reason::Kernel, false, out),
                    None => self.held.release(peer, session, cargo.ticket, out),
                }
            }
        }
        Ok(())
    }

    pub(super) fn write_ended(&mut self, slot: u32, ok: bool, out: &mut Vec<Action>) -> Result<()> {
        let (_, claim) = self.slots.expect(slot, State::Writing, "a write ended")?;
        let Claim { peer, session, cargo: Some(cargo), remote: Some(at) } = claim else { return Ok(()) };
        let rules = self.slots.rules().clone();
        self.slots.step(slot, Step::WriteEnded)?;
        let Some(partner) = self.partners.get_mut(&peer).filter(|partner| partner.session == session) else {
            send(out, peer, session, Message::Returned { at });
            return Ok(());
        };
        if ok {
            partner.step_credit(&rules, at.slot, Step::Ship)?;
            let Cargo { ticket, sequence } = cargo;
            send(out, peer, session, Message::Shipped { at, ticket, sequence });
        } else {
            partner.step_credit(&rules, at.slot, Step::Returned)?;
            send(out, peer, session, Message::Returned { at });
            self.fail(peer, cargo.ticket, Reason::Transfer, false, out);
        }
        Ok(())
    }

    pub(super) fn consumed_pull(
        &mut self,
        peer: Peer,
        session: Session,
        at: SlotUse,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        if self.is_announced(peer, session, at, State::Ready) {
            let cargo = self.slots.get(at.slot).and_then(|slot| slot.claim).and_then(|claim| claim.cargo);
            self.slots.step(at.slot, Step::Consumed)?;
            if let Some(cargo) = cargo {
                self.chunk_done(peer, cargo.ticket, out);
            }
        }
        Ok(())
    }
}
