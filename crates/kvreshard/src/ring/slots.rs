//! The slots of one ring, and who may take how many.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::units::{add, index, wide};

use super::names::{Peer, Session, SlotUse, Ticket};
use super::table::{Place, Rules, State, Step};

/// The most slots a ring may have.
pub const MAX_SLOTS: u32 = 1 << 16;

/// The most requests a peer may have open at a time.
pub const MAX_REQUESTS: u32 = 1 << 16;

/// The size of a ring and the patience of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// Slots of the ring.
    pub slots: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots that every admitted peer can count on. `slots / minimum` peers are admitted at most.
    pub minimum: u32,
    /// Requests that a peer may have open at a time.
    pub requests: u32,
    /// Ticks after which a message without answer is sent again.
    pub resend: u32,
}

impl Config {
    fn check(&self) -> Result<()> {
        let bounds = [
            ("slots of a ring", self.slots, MAX_SLOTS),
            ("guaranteed slots of a peer", self.minimum, self.slots),
            ("open requests of a peer", self.requests, MAX_REQUESTS),
            ("ticks before a message is sent again", self.resend, u32::MAX),
        ];
        for (what, found, limit) in bounds {
            if found > limit {
                return Err(Error::limit(what, found.into(), limit.into()));
            }
            if found == 0 {
                return Err(Error::ring(what, "is 0", "at least 1"));
            }
        }
        if self.slot_bytes == 0 {
            return Err(Error::ring("bytes of a slot", "is 0", "at least 1"));
        }
        Ok(())
    }
}

/// What a slot is in use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) peer: Peer,
    pub(super) session: Session,
    /// The chunk; a slot that is merely granted has none yet.
    pub(super) cargo: Option<Cargo>,
    /// The peer's slot that the chunk comes from or goes to.
    pub(super) remote: Option<SlotUse>,
}

/// A chunk of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Cargo {
    pub(super) ticket: Ticket,
    pub(super) sequence: u32,
}

impl Claim {
    pub(super) fn is_of(&self, peer: Peer, session: Session) -> bool {
        self.peer == peer && self.session == session
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) state: State,
    pub(super) generation: u64,
    pub(super) claim: Option<Claim>,
    /// Ticks since the peer was last told.
    pub(super) age: u32,
}

/// An admitted peer's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Seat {
    session: Session,
    held: u32,
}

/// Slots in their states. Every change goes by the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Slots {
    place: Place,
    config: Config,
    rules: Rules,
    slots: Vec<Slot>,
    free: BTreeSet<u32>,
    seats: BTreeMap<Peer, Seat>,
}

impl Slots {
    pub(super) fn new(place: Place, config: Config, rules: Rules) -> Result<Self> {
        config.check()?;
        let empty = Slot { state: State::Free, generation: 0, claim: None, age: 0 };
        let slots = vec![empty; index(config.slots.into(), "slots of a ring")?];
        Ok(Self { place, config, rules, slots, free: (0..config.slots).collect(), seats: BTreeMap::new() })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(usize::try_from(slot).ok()?)
    }

    /// All slots with their indexes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0..self.config.slots).zip(&self.slots)
    }

    pub(super) fn count(&self, state: State) -> u32 {
        self.slots.iter().filter(|slot| slot.state == state).fold(0, |count, _| count.saturating_add(1))
    }

    /// Gives `peer` a share. Slots in quarantine are no one's share until they are back.
    pub(super) fn admit(&mut self, peer: Peer, session: Session) -> Result<()> {
        let usable = self.config.slots.saturating_sub(self.count(State::Quarantined));
        let seats = usable.checked_div(self.config.minimum).unwrap_or(0);
        let wanted = wide(self.seats.len()).saturating_add(1);
        if wanted > seats.into() {
            return Err(Error::limit("peers admitted to the ring", wanted, seats.into()));
        }
        self.seats.insert(peer, Seat { session, held: 0 });
        Ok(())
    }

    /// Takes the share back; what the peer still holds is nobody's share until it is free.
    pub(super) fn dismiss(&mut self, peer: Peer) {
        self.seats.remove(&peer);
    }

    /// Whether the peer may take a slot: up to its minimum always; beyond it, where `elastic`, while what is left serves the
    /// minimum of all others.
    pub(super) fn may_take(&self, peer: Peer, elastic: bool) -> bool {
        let Some(seat) = self.seats.get(&peer) else { return false };
        if seat.held < self.config.minimum {
            return !self.free.is_empty();
        }
        let reserved = |seat: &Seat| u64::from(self.config.minimum.saturating_sub(seat.held));
        elastic && wide(self.free.len()) > self.seats.values().map(reserved).fold(0, u64::saturating_add)
    }

    /// Whether there is a free slot that will do.
    pub(super) fn has_free(&self, will_do: impl Fn(u32) -> bool) -> bool {
        self.free.iter().any(|&at| will_do(at))
    }

    /// Takes a free slot for its next generation. The caller has asked [`may_take`](Self::may_take).
    pub(super) fn take(&mut self, step: Step, claim: Claim) -> Result<SlotUse> {
        self.take_of(step, claim, |_| true)
    }

    /// The same of those that will do; the caller has asked [`has_free`](Self::has_free), too.
    pub(super) fn take_of(&mut self, step: Step, claim: Claim, will_do: impl Fn(u32) -> bool) -> Result<SlotUse> {
        let none = || Error::ring("ring", "has no free slot", "a peer asks before it takes");
        let at = self.free.iter().copied().find(|&at| will_do(at)).ok_or_else(none)?;
        let next = self.next(at, step)?;
        let slot = self.get_mut(at)?;
        let generation = add(slot.generation, 1, "generation of a slot")?;
        *slot = Slot { state: next, generation, claim: Some(claim), age: 0 };
        self.free.remove(&at);
        self.count_held(&claim, true);
        Ok(SlotUse { slot: at, generation })
    }

    /// Moves a slot to its next state; a slot that becomes free is nobody's.
    pub(super) fn step(&mut self, at: u32, step: Step) -> Result<State> {
        let next = self.next(at, step)?;
        let slot = self.get_mut(at)?;
        let claim = slot.claim;
        slot.state = next;
        slot.age = 0;
        if next == State::Free {
            slot.claim = None;
            self.free.insert(at);
        }
        if let Some(claim) = claim.filter(|_| matches!(next, State::Free | State::Quarantined)) {
            self.count_held(&claim, false);
        }
        Ok(next)
    }

    /// Names the chunk in a slot.
    pub(super) fn load(&mut self, at: u32, cargo: Cargo) -> Result<()> {
        if let Some(claim) = &mut self.get_mut(at)?.claim {
            claim.cargo = Some(cargo);
        }
        Ok(())
    }

    /// Counts a tick for every slot in one of `states`, and lists those whose peer should be told again.
    pub(super) fn overdue(&mut self, states: &[State]) -> Vec<(SlotUse, Claim, State)> {
        let mut due = Vec::new();
        for (at, slot) in (0..self.config.slots).zip(&mut self.slots) {
            let Some(claim) = slot.claim.filter(|_| states.contains(&slot.state)) else { continue };
            slot.age = slot.age.saturating_add(1);
            if slot.age >= self.config.resend {
                slot.age = 0;
                due.push((SlotUse { slot: at, generation: slot.generation }, claim, slot.state));
            }
        }
        due
    }

    /// Applies `step` to every slot that `which` picks.
    pub(super) fn step_all(&mut self, step: Step, which: impl Fn(&Slot) -> bool) -> Result<()> {
        let picked: Vec<u32> = self.iter().filter(|(_, slot)| which(slot)).map(|(at, _)| at).collect();
        picked.into_iter().try_for_each(|at| self.step(at, step).map(drop))
    }

    /// The slot in `state`, with what it is in use for.
    pub(super) fn expect(&self, at: u32, state: State, event: &str) -> Result<(SlotUse, Claim)> {
        let slot = self.get(at).ok_or_else(|| Error::limit("index of a slot", at.into(), self.last().into()))?;
        let found = || Error::ring(format!("slot {at}"), format!("is {}, not {state}", slot.state), event);
        let claim = slot.claim.filter(|_| slot.state == state).ok_or_else(found)?;
        Ok((SlotUse { slot: at, generation: slot.generation }, claim))
    }

    fn last(&self) -> u32 {
        self.config.slots.saturating_sub(1)
    }

    fn next(&self, at: u32, step: Step) -> Result<State> {
        let slot = self.get(at).ok_or_else(|| Error::limit("index of a slot", at.into(), self.last().into()))?;
        let illegal = || Error::ring(format!("slot {at}"), format!("is {}", slot.state), format!("not legal: {step}"));
        self.rules.next(self.place, slot.state, step).ok_or_else(illegal)
    }

    fn get_mut(&mut self, at: u32) -> Result<&mut Slot> {
        let last = self.last();
        let slot = usize::try_from(at).ok().and_then(|at| self.slots.get_mut(at));
        slot.ok_or_else(|| Error::limit("index of a slot", at.into(), last.into()))
    }

    fn count_held(&mut self, claim: &Claim, more: bool) {
        if let Some(seat) = self.seats.get_mut(&claim.peer).filter(|seat| seat.session == claim.session) {
            seat.held = if more { seat.held.saturating_add(1) } else { seat.held.saturating_sub(1) };
        }
    }
}
