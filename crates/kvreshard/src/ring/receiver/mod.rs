//! The receiving side: it wants requests, grants slots or reads the peer's, and scatters what came into pages.

mod landing;
mod requests;

use std::collections::BTreeMap;

use crate::error::{Error, Result};

use super::chunks::Chunks;
use super::message::{Frame, Message};
use super::names::{Flow, Peer, RequestName, Role, Session, SlotUse, Ticket};
use super::report::{Action, Reason};
use super::session::{Epochs, Held, send};
use super::slots::{Cargo, Config, Slots};
use super::table::{Place, Rules, State, Step};

use requests::Wanted;

/// What a receiver is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReceiverEvent {
    /// A sender is connected.
    PeerUp {
        /// The sender.
        peer: Peer,
        /// The connection: [`Receiver::epoch`], and the epoch that the sender told.
        session: Session,
        /// Who issues the transfers.
        flow: Flow,
        /// Slots of the sender's staging ring.
        slots: u32,
    },
    /// A sender is lost, as far as this host can tell. It may still write into slots that it was granted.
    PeerDown {
        /// The sender.
        peer: Peer,
    },
    /// Nothing of a lost sender can write here any more: its process has ended, and no transfer is under way.
    WriterGone {
        /// The sender.
        peer: Peer,
    },
    /// The ring is registered anew, in other memory, and no peer can reach the old one. All sessions end.
    Registered,
    /// Fetch a request from a sender.
    Want {
        /// The sender.
        peer: Peer,
        /// The request.
        request: RequestName,
        /// Its size.
        chunks: Chunks,
        /// Ticks until it is given up.
        deadline: Option<u32>,
    },
    /// Give a request up.
    Cancel {
        /// The sender.
        peer: Peer,
        /// The request.
        request: RequestName,
    },
    /// A message came.
    Message {
        /// From whom.
        peer: Peer,
        /// What.
        frame: Frame,
    },
    /// A transfer of [`Action::Read`] is over: nothing moves any more.
    ReadEnded {
        /// The slot of this side.
        slot: u32,
        /// Whether all bytes came.
        ok: bool,
    },
    /// A scatter of [`Action::Scatter`] is over.
    Scattered {
        /// The slot.
        slot: u32,
        /// Whether it went well.
        ok: bool,
    },
    /// Time passes. Deadlines and the patience for answers count in ticks.
    Tick,
}

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Chunks that are done with on this side.
    pub done: u32,
    /// Chunks of the request.
    pub chunks: u32,
    /// Whether the peer has begun to serve it (receiver), or to ask for it (sender).
    pub begun: bool,
}

/// A connected sender.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Partner {
    session: Session,
    flow: Flow,
    remote_slots: u32,
    next: Ticket,
    requests: BTreeMap<Ticket, Wanted>,
    names: BTreeMap<RequestName, Ticket>,
    /// Given up, and not yet answered; ticks since the peer was told.
    aborting: BTreeMap<Ticket, (Reason, u32)>,
    /// Slots with chunks of those that this side is done with, and of which use and ticket. They are consumed for the peer when it has
    /// answered.
    owed: BTreeMap<u32, (u64, Ticket)>,
    /// Push: slots that the peer may write.
    granted: u32,
    /// Push: it gave a slot back; none is granted before the next tick, so that the two do not play ball.
    paused: bool,
    /// Pull: what is known of the peer's slots.
    announced: BTreeMap<u32, Announced>,
    last: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Announced {
    generation: u64,
    /// The chunk that waits there; `None` when it is being read, or done with.
    waiting: Option<Cargo>,
}

/// The receiving side of the protocol: events in, actions out; no socket, no clock, no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receiver {
    slots: Slots,
    epochs: Epochs,
    partners: BTreeMap<Peer, Partner>,
    last: Option<Peer>,
    held: Held,
}

impl Receiver {
    /// A receiver whose first epoch is `epoch`. Epochs of one host grow from process to process: time since 1970 in microseconds
    /// will do, a constant will not.
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::Ring`] when `config` is out of bounds.
    pub fn new(config: Config, epoch: u64) -> Result<Self> {
        Self::with_rules(config, epoch, Rules::default())
    }

    /// A receiver that goes by other rules, for tests.
    #[doc(hidden)]
    pub fn with_rules(config: Config, epoch: u64, rules: Rules) -> Result<Self> {
        let slots = Slots::new(Place::Ring, config, rules)?;
        Ok(Self { slots, epochs: Epochs::new(epoch), partners: BTreeMap::new(), last: None, held: Held::default() })
    }

    /// The epoch to tell a peer when connecting.
    pub fn epoch(&self) -> u64 {
        self.epochs.now()
    }

    /// State and generation of a slot.
    pub fn slot(&self, slot: u32) -> Option<(State, u64)> {
        self.slots.get(slot).map(|slot| (slot.state, slot.generation))
    }

    /// How many slots are in `state`.
    pub fn count(&self, state: State) -> u32 {
        self.slots.count(state)
    }

    /// Whom a slot is in use for.
    pub fn user(&self, slot: u32) -> Option<Peer> {
        self.slots.get(slot)?.claim.map(|claim| claim.peer)
    }

    /// A request under way; `None` when it is over or was never wanted.
    pub fn progress(&self, peer: Peer, request: &RequestName) -> Option<Progress> {
        let partner = self.partners.get(&peer)?;
        partner.requests.get(partner.names.get(request)?).map(Wanted::progress)
    }

    /// Failed requests whose pages are held.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes in an event and tells what to do, in order.
    ///
    /// # Errors
    /// [`Error::Ring`] when the host does what is not legal in the present state, [`Error::Limit`] when a bound is passed; nothing
    /// has changed then. What a peer says is never an error: what makes no sense is ignored.
    pub fn on(&mut self, event: ReceiverEvent) -> Result<Vec<Action>> {
        let mut out = Vec::new();
        match event {
            ReceiverEvent::PeerUp { peer, session, flow, slots } => self.peer_up(peer, session, flow, slots)?,
            ReceiverEvent::PeerDown { peer } => self.end_session(peer, Reason::PeerLost, &mut out)?,
            ReceiverEvent::WriterGone { peer } => self.slots.step_all(Step::Gone, |slot| {
                slot.state == State::Quarantined && slot.claim.is_some_and(|claim| claim.peer == peer)
            })?,
            ReceiverEvent::Registered => self.registered(&mut out)?,
            ReceiverEvent::Want { peer, request, chunks, deadline } => {
                self.want(peer, request, chunks, deadline, &mut out)?;
            }
            ReceiverEvent::Cancel { peer, request } => self.cancel(peer, &request, &mut out)?,
            ReceiverEvent::Message { peer, frame } => self.message(peer, &frame, &mut out)?,
            ReceiverEvent::ReadEnded { slot, ok } => self.read_ended(slot, ok, &mut out)?,
            ReceiverEvent::Scattered { slot, ok } => self.scattered(slot, ok, &mut out)?,
            ReceiverEvent::Tick => self.tick(&mut out),
        }
        self.fill(&mut out)?;
        Ok(out)
    }

    fn peer_up(&mut self, peer: Peer, session: Session, flow: Flow, remote_slots: u32) -> Result<()> {
        if self.partners.contains_key(&peer) {
            return Err(Error::ring(peer.to_string(), "is connected", "end its session first"));
        }
        if session.receiver != self.epochs.now() {
            let found = format!("was told epoch {}", session.receiver);
            return Err(Error::ring(peer.to_string(), found, format!("tell it epoch {}", self.epochs.now())));
        }
        self.slots.admit(peer, session)?;
        let partner = Partner {
            session,
            flow,
            remote_slots,
            next: Ticket(0),
            requests: BTreeMap::new(),
            names: BTreeMap::new(),
            aborting: BTreeMap::new(),
            owed: BTreeMap::new(),
            granted: 0,
            paused: false,
            announced: BTreeMap::new(),
            last: None,
        };
        self.partners.insert(peer, partner);
        Ok(())
    }

    /// Fails all that is under way with a peer. Slots that it may still write stay its own.
    fn end_session(&mut self, peer: Peer, reason: Reason, out: &mut Vec<Action>) -> Result<()> {
        let Some(partner) = self.partners.get(&peer) else {
            return Err(Error::ring(peer.to_string(), "is not connected", "connect it first"));
        };
        let (session, tickets) = (partner.session, partner.requests.keys().copied().collect::<Vec<_>>());
        self.epochs.leave(session.receiver)?;
        for ticket in tickets {
            self.fail(peer, ticket, reason, false, out);
        }
        let may_write = |claim: super::slots::Claim| claim.is_of(peer, session);
        self.slots.step_all(Step::Lost, |slot| slot.state == State::Granted && slot.claim.is_some_and(may_write))?;
        self.slots.dismiss(peer);
        self.partners.remove(&peer);
        Ok(())
    }

    fn registered(&mut self, out: &mut Vec<Action>) -> Result<()> {
        self.epochs.leave(self.epochs.now())?;
        for peer in self.partners.keys().copied().collect::<Vec<_>>() {
            self.end_session(peer, Reason::Registered, out)?;
        }
        self.slots.step_all(Step::Registered, |slot| slot.state == State::Quarantined)
    }

    fn message(&mut self, peer: Peer, frame: &Frame, out: &mut Vec<Action>) -> Result<()> {
        let session = frame.session;
        let live = self.partners.get(&peer).filter(|partner| partner.session == session).map(|partner| partner.flow);
        if live.is_none() && !self.epochs.left(session.receiver) {
            // Not connected yet, or a session of another process: whoever sent it sends it again.
            return Ok(());
        }
        match (&frame.message, live) {
            (&Message::Shipped { at, ticket, sequence }, live) => {
                let cargo = Cargo { ticket, sequence };
                match live {
                    Some(Flow::Push) => self.pushed(peer, session, at, cargo, out)?,
                    Some(Flow::Pull) => self.announced(peer, session, at, cargo, out),
                    None => self.shipped_late(peer, session, at, ticket, out)?,
                }
            }
            (&Message::Returned { at }, _) => self.returned(peer, session, at)?,
            (&Message::Abort { ticket, from: Role::Sender, answer, reason, .. }, Some(_)) => {
                self.abort_heard(peer, ticket, answer, reason, out);
            }
            (&Message::Abort { ticket, from: Role::Sender, answer: false, reason, .. }, None) => {
                let message = Message::Abort { ticket, floor: Ticket(0), from: Role::Receiver, answer: true, reason };
                send(out, peer, session, message);
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, out: &mut Vec<Action>) {
        self.tick_requests(out);
        let bytes = self.slots.config().slot_bytes;
        for (at, claim, _) in self.slots.overdue(&[State::Granted, State::Quarantined]) {
            send(out, claim.peer, claim.session, Message::Grant { at, bytes });
        }
    }

    /// Whether what was shipped there is on its way into the pages: being read from the peer's slot, or scattered.
    fn is_fetching(&self, peer: Peer, session: Session, at: SlotUse) -> bool {
        self.slots.iter().any(|(index, slot)| {
            let own = SlotUse { slot: index, generation: slot.generation };
            matches!(slot.state, State::Reading | State::Scattering)
                && slot.claim.is_some_and(|claim| claim.is_of(peer, session) && claim.remote.unwrap_or(own) == at)
        })
    }
}
