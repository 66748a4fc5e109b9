//! The sending side: it leases pages to requests, gathers them chunk by chunk, and writes or announces what it gathered.

mod credits;
mod requests;
mod staging;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};

use super::chunks::Chunks;
use super::message::{Frame, Message};
use super::names::{Flow, Peer, RequestName, Role, Session, SlotUse, Ticket};
use super::receiver::Progress;
use super::report::{Action, Reason};
use super::session::{Epochs, Held, send};
use super::slots::{Cargo, Claim, Config, Slots};
use super::table::{Place, Rules, State, Step};

use credits::Credit;
use requests::{Asked, Offer, Over, Serving};

/// What a sender is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SenderEvent {
    /// A receiver is connected.
    PeerUp {
        /// The receiver.
        peer: Peer,
        /// The connection: [`Sender::epoch`], and the epoch that the receiver told.
        session: Session,
        /// Who issues the transfers.
        flow: Flow,
        /// Slots of the receiver's ring.
        slots: u32,
    },
    /// A receiver is lost, as far as this host can tell. It may still read slots that were announced to it.
    PeerDown {
        /// The receiver.
        peer: Peer,
    },
    /// A lost receiver can read nothing here any more, nor will it use what it read.
    ReaderGone {
        /// The receiver.
        peer: Peer,
    },
    /// The staging ring is registered anew, in other memory. All sessions end.
    Registered,
    /// Lease the pages of a request to a receiver.
    Offer {
        /// The receiver.
        peer: Peer,
        /// The request.
        request: RequestName,
        /// Its size.
        chunks: Chunks,
        /// Ticks until the pages are wanted back.
        lease: Option<u32>,
    },
    /// End a lease now, or refuse a request that was asked for and not offered.
    Withdraw {
        /// The receiver.
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
    /// A gather of [`Action::Gather`] is over.
    Gathered {
        /// The slot.
        slot: u32,
        /// Whether it went well.
        ok: bool,
    },
    /// A transfer of [`Action::Write`] is over: nothing moves any more. A transfer that failed and may still move is not over.
    WriteEnded {
        /// The slot of this side.
        slot: u32,
        /// Whether all bytes went.
        ok: bool,
    },
    /// Time passes. Leases and the patience for answers count in ticks.
    Tick,
}

/// A connected receiver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Partner {
    session: Session,
    flow: Flow,
    remote_slots: u32,
    /// No ticket below it is of use to the receiver.
    floor: Ticket,
    offers: BTreeMap<RequestName, Offer>,
    /// Wanted before they were offered.
    asked: BTreeMap<Ticket, Asked>,
    serving: BTreeMap<Ticket, Serving>,
    /// What became of tickets from the floor on, so that a late `want` does not begin them again.
    over: BTreeMap<Ticket, Over>,
    /// Given up, and not yet answered; ticks since the peer was told.
    aborting: BTreeMap<Ticket, (Reason, u32)>,
    /// Push: what is known of the peer's slots.
    credits: BTreeMap<u32, Credit>,
    last: Option<Ticket>,
}

impl Partner {
    fn abort(&self, ticket: Ticket, answer: bool, reason: Reason) -> Message {
        Message::Abort { ticket, floor: self.floor, from: Role::Sender, answer, reason }
    }
}

/// The sending side of the protocol: events in, actions out; no socket, no clock, no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sender {
    slots: Slots,
    epochs: Epochs,
    partners: BTreeMap<Peer, Partner>,
    last: Option<Peer>,
    held: Held,
}

impl Sender {
    /// A sender whose first epoch is `epoch`, as for [`Receiver::new`](super::Receiver::new).
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::Ring`] when `config` is out of bounds.
    pub fn new(config: Config, epoch: u64) -> Result<Self> {
        Self::with_rules(config, epoch, Rules::default())
    }

    /// A sender that goes by other rules, for tests.
    #[doc(hidden)]
    pub fn with_rules(config: Config, epoch: u64, rules: Rules) -> Result<Self> {
        let slots = Slots::new(Place::Staging, config, rules)?;
        Ok(Self { slots, epochs: Epochs::new(epoch), partners: BTreeMap::new(), last: None, held: Held::default() })
    }

    /// The epoch to tell a peer when connecting.
    pub fn epoch(&self) -> u64 {
        self.epochs.now()
    }

    /// State and generation of a staging slot.
    pub fn slot(&self, slot: u32) -> Option<(State, u64)> {
        self.slots.get(slot).map(|slot| (slot.state, slot.generation))
    }

    /// How many staging slots are in `state`.
    pub fn count(&self, state: State) -> u32 {
        self.slots.count(state)
    }

    /// Whom a staging slot is in use for.
    pub fn user(&self, slot: u32) -> Option<Peer> {
        self.slots.get(slot)?.claim.map(|claim| claim.peer)
    }

    /// A request that is offered or served; `None` when it is over or was never offered.
    pub fn progress(&self, peer: Peer, request: &RequestName) -> Option<Progress> {
        let partner = self.partners.get(&peer)?;
        let offered = partner.offers.get(request).map(Offer::progress);
        offered.or_else(|| partner.served(request).map(|(_, serving)| serving.progress()))
    }

    /// Whether a peer waits for a request that was not offered.
    pub fn is_asked(&self, peer: Peer, request: &RequestName) -> bool {
        self.partners.get(&peer).is_some_and(|partner| partner.is_asked(request))
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
    pub fn on(&mut self, event: SenderEvent) -> Result<Vec<Action>> {
        let mut out = Vec::new();
        match event {
            SenderEvent::PeerUp { peer, session, flow, slots } => self.peer_up(peer, session, flow, slots)?,
            SenderEvent::PeerDown { peer } => self.end_session(peer, Reason::PeerLost, &mut out)?,
            SenderEvent::ReaderGone { peer } => self.slots.step_all(Step::Gone, |slot| {
                slot.state == State::Quarantined && slot.claim.is_some_and(|claim| claim.peer == peer)
            })?,
            SenderEvent::Registered => self.registered(&mut out)?,
            SenderEvent::Offer { peer, request, chunks, lease } => {
                self.offer(peer, request, chunks, lease, &mut out)?;
            }
            SenderEvent::Withdraw { peer, request } => self.withdraw(peer, &request, &mut out)?,
            SenderEvent::Message { peer, frame } => self.message(peer, &frame, &mut out)?,
            SenderEvent::Gathered { slot, ok } => self.gathered(slot, ok, &mut out)?,
            SenderEvent::WriteEnded { slot, ok } => self.write_ended(slot, ok, &mut out)?,
            SenderEvent::Tick => self.tick(&mut out),
        }
        self.trim(&mut out)?;
        self.fill(&mut out)?;
        Ok(out)
    }

    fn peer_up(&mut self, peer: Peer, session: Session, flow: Flow, remote_slots: u32) -> Result<()> {
        if self.partners.contains_key(&peer) {
            return Err(Error::ring(peer.to_string(), "is connected", "end its session first"));
        }
        if session.sender != self.epochs.now() {
            let found = format!("was told epoch {}", session.sender);
            return Err(Error::ring(peer.to_string(), found, format!("tell it epoch {}", self.epochs.now())));
        }
        self.slots.admit(peer, session)?;
        let partner = Partner {
            session,
            flow,
            remote_slots,
            floor: Ticket(0),
            offers: BTreeMap::new(),
            asked: BTreeMap::new(),
            serving: BTreeMap::new(),
            over: BTreeMap::new(),
            aborting: BTreeMap::new(),
            credits: BTreeMap::new(),
            last: None,
        };
        self.partners.insert(peer, partner);
        Ok(())
    }

    /// Fails all that is under way with a peer. Slots that it may still read stay its own; slots of its ring that were not begun are
    /// given back, those that are being written when the write ends.
    fn end_session(&mut self, peer: Peer, reason: Reason, out: &mut Vec<Action>) -> Result<()> {
        let Some(partner) = self.partners.get(&peer) else {
            return Err(Error::ring(peer.to_string(), "is not connected", "connect it first"));
        };
        let (session, tickets) = (partner.session, partner.serving.keys().copied().collect::<Vec<_>>());
        let offers = partner.offers.keys().cloned().collect::<Vec<_>>();
        self.epochs.leave(session.sender)?;
        for ticket in tickets {
            self.fail(peer, ticket, reason, false, out);
        }
        for request in offers {
            self.fail_offer(peer, &request, None, reason, out);
        }
        self.return_held(peer, out)?;
        let may_read = |claim: Claim| claim.is_of(peer, session);
        self.slots.step_all(Step::Lost, |slot| slot.state == State::Ready && slot.claim.is_some_and(may_read))?;
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
        let Some(flow) =
            self.partners.get(&peer).filter(|partner| partner.session == session).map(|partner| partner.flow)
        else {
            // Not connected yet, or a session of another process: whoever sent it sends it again.
            return if self.epochs.left(session.sender) { self.message_late(peer, frame, out) } else { Ok(()) };
        };
        match (&frame.message, flow) {
            (Message::Want { ticket, floor, request, flow }, _) => {
                let Ok((name, chunks)) = request.read() else { return Ok(()) };
                self.raise_floor(peer, *floor);
                self.wanted(peer, *ticket, name, chunks, *flow, out);
            }
            (&Message::Grant { at, bytes }, Flow::Push) => self.granted(peer, at, bytes, out)?,
            (&Message::Consumed { at }, Flow::Push) => self.consumed_push(peer, at, out)?,
            (&Message::Consumed { at }, Flow::Pull) => self.consumed_pull(peer, session, at, out)?,
            (&Message::Abort { ticket, floor, from: Role::Receiver, answer, reason }, _) => {
                self.raise_floor(peer, floor);
                self.abort_heard(peer, ticket, answer, reason, out);
            }
            _ => {}
        }
        Ok(())
    }

    /// A message of a session that is over: answered, so that the peer can end what it keeps for this side.
    fn message_late(&mut self, peer: Peer, frame: &Frame, out: &mut Vec<Action>) -> Result<()> {
        let session = frame.session;
        match frame.message {
            Message::Grant { at, .. } if !self.is_filling(peer, session, at) => {
                send(out, peer, session, Message::Returned { at });
            }
            Message::Consumed { at } if self.is_announced(peer, session, at, State::Quarantined) => {
                self.slots.step(at.slot, Step::Consumed)?;
            }
            Message::Want { ticket, floor, .. } => {
                let reason = Reason::PeerLost;
                let message = Message::Abort { ticket, floor, from: Role::Sender, answer: false, reason };
                send(out, peer, session, message);
            }
            Message::Abort { ticket, floor, from: Role::Receiver, answer: false, reason } => {
                let message = Message::Abort { ticket, floor, from: Role::Sender, answer: true, reason };
                send(out, peer, session, message);
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, out: &mut Vec<Action>) {
        self.tick_requests(out);
        self.tick_credits(out);
        for (at, claim, _) in self.slots.overdue(&[State::Ready, State::Quarantined]) {
            if let Some(Cargo { ticket, sequence }) = claim.cargo {
                send(out, claim.peer, claim.session, Message::Shipped { at, ticket, sequence });
            }
        }
    }

    /// Whether a chunk is on its way into the peer's slot.
    fn is_filling(&self, peer: Peer, session: Session, remote: SlotUse) -> bool {
        self.slots.iter().any(|(_, slot)| {
            matches!(slot.state, State::Gathering | State::Writing)
                && slot.claim.is_some_and(|claim| claim.is_of(peer, session) && claim.remote == Some(remote))
        })
    }

    /// Whether this use of a slot of this side is in `state`, for the peer.
    fn is_announced(&self, peer: Peer, session: Session, at: SlotUse, state: State) -> bool {
        self.slots.get(at.slot).is_some_and(|slot| {
            slot.state == state
                && slot.generation == at.generation
                && slot.claim.is_some_and(|claim| claim.is_of(peer, session))
        })
    }

    fn peers(&self) -> BTreeSet<Peer> {
        self.partners.keys().copied().collect()
    }
}
