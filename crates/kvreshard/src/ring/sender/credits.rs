//! Slots of a receiver that this sender was granted.

use crate::error::{Error, Result};
use crate::ring::message::Message;
use crate::ring::names::{Peer, SlotUse};
use crate::ring::report::Action;
use crate::ring::session::send;
use crate::ring::slots::Cargo;
use crate::ring::table::{Place, Rules, State, Step};
use crate::units::wide;

use super::{Partner, Sender};

/// One slot of a peer, as far as this side knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Credit {
    generation: u64,
    state: State,
    /// Room in the slot.
    bytes: u64,
    /// The chunk that goes there.
    cargo: Option<Cargo>,
    /// Ticks since the peer was told what became of it.
    age: u32,
}

impl Partner {
    pub(super) fn step_credit(&mut self, rules: &Rules, slot: u32, step: Step) -> Result<()> {
        let unknown =
            || Error::ring(format!("slot {slot} of the peer"), "was not granted", format!("not legal: {step}"));
        let credit = self.credits.get_mut(&slot).ok_or_else(unknown)?;
        let illegal = || {
            Error::ring(
                format!("slot {slot} of the peer"),
                format!("is {}", credit.state),
                format!("not legal: {step}"),
            )
        };
        credit.state = rules.next(Place::Credit, credit.state, step).ok_or_else(illegal)?;
        credit.age = 0;
        Ok(())
    }

    /// A slot that may be written and has room for `bytes`.
    pub(super) fn held_credit(&self, bytes: u64) -> Option<SlotUse> {
        let mut credits = self.credits.iter();
        let (&slot, credit) = credits.find(|(_, credit)| credit.state == State::Held && credit.bytes >= bytes)?;
        Some(SlotUse { slot, generation: credit.generation })
    }

    pub(super) fn use_credit(&mut self, rules: &Rules, slot: u32, cargo: Cargo) -> Result<()> {
        self.step_credit(rules, slot, Step::Use)?;
        if let Some(credit) = self.credits.get_mut(&slot) {
            credit.cargo = Some(cargo);
        }
        Ok(())
    }
}

impl Sender {
    pub(super) fn granted(&mut self, peer: Peer, at: SlotUse, bytes: u64, out: &mut Vec<Action>) -> Result<()> {
        let rules = self.slots.rules().clone();
        let Some(partner) = self.partners.get_mut(&peer).filter(|partner| at.slot < partner.remote_slots) else {
            return Ok(());
        };
        let fresh = Credit { generation: 0, state: State::Free, bytes: 0, cargo: None, age: 0 };
        let known = partner.credits.get(&at.slot).copied().unwrap_or(fresh);
        if at.generation == known.generation && known.state == State::Returned {
            // It asks again: the answer was lost.
            send(out, peer, partner.session, Message::Returned { at });
        }
        let busy = matches!(known.state, State::Held | State::Used);
        if at.generation <= known.generation || busy {
            return Ok(());
        }
        partner.credits.insert(at.slot, Credit { generation: at.generation, bytes, ..known });
        partner.step_credit(&rules, at.slot, Step::Grant)?;
        if let (State::Shipped, Some(cargo)) = (known.state, known.cargo) {
            // The receiver used the slot again, so it has what was there.
            self.chunk_done(peer, cargo.ticket, out);
        }
        Ok(())
    }

    pub(super) fn consumed_push(&mut self, peer: Peer, at: SlotUse, out: &mut Vec<Action>) -> Result<()> {
        let rules = self.slots.rules().clone();
        let Some(partner) = self.partners.get_mut(&peer) else { return Ok(()) };
        let Some(&credit) = partner.credits.get(&at.slot) else { return Ok(()) };
        if credit.generation == at.generation && credit.state == State::Shipped {
            partner.step_credit(&rules, at.slot, Step::Consumed)?;
            if let Some(cargo) = credit.cargo {
                self.chunk_done(peer, cargo.ticket, out);
            }
        }
        Ok(())
    }

    /// Gives back slots that nothing is left for, so that the receiver can grant them to others.
    pub(super) fn trim(&mut self, out: &mut Vec<Action>) -> Result<()> {
        for peer in self.peers() {
            let Some(partner) = self.partners.get(&peer) else { continue };
            let held = partner.credits.values().filter(|credit| credit.state == State::Held).count();
            let surplus = wide(held).saturating_sub(partner.todo());
            self.return_credits(peer, surplus, out)?;
        }
        Ok(())
    }

    /// Gives back all slots that were not begun.
    pub(super) fn return_held(&mut self, peer: Peer, out: &mut Vec<Action>) -> Result<()> {
        self.return_credits(peer, u64::MAX, out)
    }

    fn return_credits(&mut self, peer: Peer, count: u64, out: &mut Vec<Action>) -> Result<()> {
        let rules = self.slots.rules().clone();
        let Some(partner) = self.partners.get_mut(&peer) else { return Ok(()) };
        let held = partner.credits.iter().filter(|(_, credit)| credit.state == State::Held);
        let held: Vec<_> = held.map(|(&slot, credit)| SlotUse { slot, generation: credit.generation }).collect();
        for at in held.into_iter().rev().zip(0..count).map(|(at, _)| at) {
            partner.step_credit(&rules, at.slot, Step::Returned)?;
            send(out, peer, partner.session, Message::Returned { at });
        }
        Ok(())
    }

    pub(super) fn tick_credits(&mut self, out: &mut Vec<Action>) {
        let patience = self.slots.config().resend;
        for (&peer, partner) in &mut self.partners {
            for (&slot, credit) in &mut partner.credits {
                let Some(Cargo { ticket, sequence }) = credit.cargo.filter(|_| credit.state == State::Shipped) else {
                    continue;
                };
                credit.age = credit.age.saturating_add(1);
                if credit.age >= patience {
                    credit.age = 0;
                    let at = SlotUse { slot, generation: credit.generation };
                    send(out, peer, partner.session, Message::Shipped { at, ticket, sequence });
                }
            }
        }
    }
}
