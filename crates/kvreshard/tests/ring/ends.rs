//! What a sender hears of chunks whose request failed at the receiver: first that it failed, and only then that they are consumed.
//! The last one consumed would be the end of a request that went well.

use super::alone::{SESSION, at, hear, receiver, said, want};
use super::pair::{A, B, SLOT, both, chunks, name};
use kvreshard::ring::{Flow, Message, Reason, Receiver, ReceiverEvent, Role, SlotUse, State, Ticket};

fn aborted(reason: Reason) -> Message {
    Message::Abort { ticket: Ticket(0), floor: Ticket(0), from: Role::Receiver, answer: false, reason }
}

/// The peer has heard it.
fn answered() -> Message {
    let (ticket, reason) = (Ticket(0), Reason::Kernel);
    Message::Abort { ticket, floor: Ticket(0), from: Role::Sender, answer: true, reason }
}

/// A receiver of two slots that wants `first` chunks as ticket 0, and two as ticket 1.
struct Wanting(Receiver);

impl Wanting {
    fn new(flow: Flow, first: u64) -> Self {
        let mut receiver = receiver(flow, 2, 4);
        for (request, count) in [("first", first), ("second", 2)] {
            receiver.on(want(request, count)).unwrap();
        }
        Self(receiver)
    }

    /// What is said upon an event; transfers, kernels and reports are not.
    fn on(&mut self, event: ReceiverEvent) -> Vec<Message> {
        said(&self.0.on(event).unwrap())
    }

    fn hears(&mut self, message: Message) -> Vec<Message> {
        self.on(hear(SESSION, message))
    }

    fn shipped(&mut self, at: SlotUse, ticket: u64, sequence: u32) -> Vec<Message> {
        self.hears(Message::Shipped { at, ticket: Ticket(ticket), sequence })
    }

    /// Brings the first chunk of ticket 0 as far as its scatter, and says which use of a slot it came in.
    fn scattering(flow: Flow, chunks: u64) -> (Self, SlotUse) {
        let mut wanting = Self::new(flow, chunks);
        assert_eq!(wanting.shipped(at(0, 1), 0, 0), []);
        if flow == Flow::Pull {
            assert_eq!(wanting.on(ReceiverEvent::ReadEnded { slot: 0, ok: true }), []);
        }
        assert_eq!(wanting.0.count(State::Scattering), 1);
        (wanting, at(0, 1))
    }
}

#[test]
fn a_chunk_is_consumed_when_it_is_in_the_pages() {
    both(|flow| {
        let (mut wanting, at) = Wanting::scattering(flow, 2);
        let said = wanting.on(ReceiverEvent::Scattered { slot: 0, ok: true });
        assert_eq!(said[0], Message::Consumed { at });
    });
}

#[test]
fn a_scatter_that_fails_is_told_before_its_chunk_is_consumed() {
    both(|flow| {
        let (mut wanting, at) = Wanting::scattering(flow, 1);
        assert_eq!(wanting.on(ReceiverEvent::Scattered { slot: 0, ok: false }), [aborted(Reason::Kernel)]);
        // Nor when the peer asks, which has not heard it; it is told again in time.
        assert_eq!(wanting.shipped(at, 0, 0), []);
        assert_eq!(wanting.on(ReceiverEvent::Tick), []);
        let told = wanting.on(ReceiverEvent::Tick);
        assert!(told.contains(&aborted(Reason::Kernel)), "{told:?}");
        assert!(!told.contains(&Message::Consumed { at }), "{told:?}");
        assert_eq!(wanting.hears(answered())[0], Message::Consumed { at });
        // Said once; and as often as it is asked for from now on.
        assert!(!wanting.hears(answered()).contains(&Message::Consumed { at }));
        assert_eq!(wanting.shipped(at, 0, 0), [Message::Consumed { at }]);
    });
}

#[test]
fn a_read_that_fails_is_told_before_its_chunk_is_consumed() {
    let mut wanting = Wanting::new(Flow::Pull, 1);
    assert_eq!(wanting.shipped(at(3, 5), 0, 0), []);
    assert_eq!(wanting.on(ReceiverEvent::ReadEnded { slot: 0, ok: false }), [aborted(Reason::Transfer)]);
    assert_eq!(wanting.hears(answered()), [Message::Consumed { at: at(3, 5) }]);
}

/// A chunk that comes when the request is over, in a slot granted before.
#[test]
fn a_chunk_that_nobody_waits_for_is_consumed_once_the_peer_knows() {
    both(|flow| {
        let mut wanting = Wanting::new(flow, 2);
        let given_up = wanting.on(ReceiverEvent::Cancel { peer: A, request: name("first") });
        assert_eq!(given_up, [aborted(Reason::Cancelled)]);
        assert_eq!(wanting.shipped(at(0, 1), 0, 0), []);
        assert_eq!(wanting.shipped(at(1, 1), 0, 1), []);
        let said = wanting.hears(answered());
        assert_eq!(said[..2], [at(0, 1), at(1, 1)].map(|at| Message::Consumed { at }));
    });
}

/// Chunks that wait to be read for a request that is given up.
#[test]
fn chunks_that_are_not_read_any_more_are_consumed_once_the_peer_knows() {
    let mut wanting = Wanting::new(Flow::Pull, 4);
    for slot in 0..4 {
        assert_eq!(wanting.shipped(at(slot, 1), 0, slot), []);
    }
    let given_up = wanting.on(ReceiverEvent::Cancel { peer: A, request: name("first") });
    assert_eq!(given_up, [aborted(Reason::Cancelled)]);
    assert_eq!(wanting.hears(answered()), [at(2, 1), at(3, 1)].map(|at| Message::Consumed { at }));
    // The other two are being read.
    assert_eq!(wanting.on(ReceiverEvent::ReadEnded { slot: 1, ok: true }), [Message::Consumed { at: at(1, 1) }]);
    assert_eq!(wanting.on(ReceiverEvent::ReadEnded { slot: 0, ok: false }), [Message::Consumed { at: at(0, 1) }]);
}

/// A grant of a newer use says that the older one is consumed, so the slot is granted to others, or when the peer knows. Other slots
/// are granted meanwhile: a peer of which one request after another is given up gets on with the rest.
#[test]
fn a_slot_is_not_granted_to_a_peer_that_does_not_know() {
    let (mut wanting, _) = Wanting::scattering(Flow::Push, 1);
    let grant = |slot, generation| Message::Grant { at: at(slot, generation), bytes: SLOT };
    assert_eq!(wanting.on(ReceiverEvent::Scattered { slot: 0, ok: false }), [aborted(Reason::Kernel)]);
    assert_eq!(wanting.0.count(State::Free), 1);
    assert_eq!(wanting.hears(Message::Returned { at: at(1, 1) }), []);
    assert_eq!(wanting.on(ReceiverEvent::Tick), [grant(1, 2)]);
    assert_eq!(wanting.shipped(at(1, 2), 1, 0), []);
    assert_eq!((wanting.0.count(State::Scattering), wanting.0.count(State::Free)), (1, 1));
    assert_eq!(wanting.hears(answered()), [Message::Consumed { at: at(0, 1) }, grant(0, 2)]);
}

/// The same slot for one peer that does not know, and for another that has nothing to do with it.
#[test]
fn a_slot_that_is_owed_to_one_peer_is_granted_to_another() {
    let (mut wanting, _) = Wanting::scattering(Flow::Push, 1);
    wanting.on(ReceiverEvent::Scattered { slot: 0, ok: false });
    wanting.0.on(ReceiverEvent::PeerUp { peer: B, session: SESSION, flow: Flow::Push, slots: 4 }).unwrap();
    let other = ReceiverEvent::Want { peer: B, request: name("other"), chunks: chunks(1), deadline: None };
    assert!(wanting.on(other).contains(&Message::Grant { at: at(0, 2), bytes: SLOT }));
    // The first peer asks after its use: it is not answered before it knows, and then of that use.
    assert_eq!(wanting.shipped(at(0, 1), 0, 0), []);
    assert_eq!(wanting.hears(answered()), [Message::Consumed { at: at(0, 1) }]);
}

/// A peer that says what it likes makes no list grow: of each slot the newest use is owed, whatever it says to have shipped there.
#[test]
fn of_each_slot_one_use_is_owed() {
    let mut wanting = Wanting::new(Flow::Pull, 1);
    for request in ["first", "second"] {
        wanting.on(ReceiverEvent::Cancel { peer: A, request: name(request) });
    }
    for (generation, ticket) in [(1, 1), (7, 0), (3, 1)] {
        assert_eq!(wanting.shipped(at(2, generation), ticket, 0), []);
    }
    assert_eq!(wanting.hears(answered()), [Message::Consumed { at: at(2, 7) }]);
}

/// What was still scattered when the session ended: the sender may not know yet that it is over.
#[test]
fn of_a_session_that_is_over_the_failure_is_told_first() {
    both(|flow| {
        let (mut wanting, at) = Wanting::scattering(flow, 1);
        wanting.on(ReceiverEvent::PeerDown { peer: A });
        // Asked meanwhile, it says nothing: a kernel is at the pages.
        assert_eq!(wanting.shipped(at, 0, 0), []);
        let said = wanting.on(ReceiverEvent::Scattered { slot: 0, ok: true });
        assert_eq!(said, [aborted(Reason::PeerLost), Message::Consumed { at }]);
    });
}
