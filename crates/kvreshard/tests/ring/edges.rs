//! What is heard twice, late or in part, and what is asked at a bound.

use super::alone::{SESSION, at, said};
use super::pair::{A, B, Pair, SLOT, both, chunks, config, name};
use kvreshard::Error;
use kvreshard::ring::{
    Action, Chunks, Flow, Frame, Message, Reason, Receiver, ReceiverEvent, SenderEvent, State, Ticket,
};

#[test]
fn progress_tells_how_many_chunks_are_in_the_pages() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    assert!(pair.receiver.progress(A, &name("r")).is_none());
    pair.stalled = true;
    pair.offer("r", 3, None);
    pair.want("r", 3);
    let progress = |pair: &Pair| pair.receiver.progress(A, &name("r")).map(|progress| (progress.done, progress.chunks));
    assert_eq!(progress(&pair), Some((0, 3)));
    pair.send(SenderEvent::Gathered { slot: 0, ok: true });
    pair.send(SenderEvent::WriteEnded { slot: 0, ok: true });
    assert_eq!(progress(&pair), Some((1, 3)));
    assert!(pair.receiver.progress(A, &name("s")).is_none());
    pair.receive(ReceiverEvent::Cancel { peer: A, request: name("r") });
    assert!(pair.receiver.progress(A, &name("r")).is_none());
}

#[test]
fn offers_have_bounds() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    let offer = |request: &str, chunks| SenderEvent::Offer { peer: A, request: name(request), chunks, lease: None };
    let before = pair.sender.clone();
    let big = Chunks::new(2 * SLOT, SLOT + 1).unwrap();
    let error = pair.sender.on(offer("big", big)).unwrap_err();
    assert!(matches!(error, Error::Limit { found, limit: SLOT, .. } if found == SLOT + 1), "{error}");
    assert_eq!(pair.sender, before);
    for request in ["a", "b", "c", "d"] {
        pair.send(offer(request, chunks(1)));
    }
    let error = pair.sender.on(offer("e", chunks(1))).unwrap_err();
    assert!(matches!(error, Error::Limit { found: 5, limit: 4, .. }), "{error}");
    assert!(matches!(pair.sender.on(offer("a", chunks(1))).unwrap_err(), Error::Ring { .. }), "offered twice");
    // One that is asked for makes room, and slots smaller than a chunk's most are no reason to refuse a short one.
    pair.want("a", 1);
    pair.send(offer("e", Chunks::new(5, 5).unwrap()));
}

#[test]
fn a_want_heard_again_after_the_end_is_no_new_request() {
    both(|flow| {
        let mut receiver = Receiver::new(config(2, 1), 10).unwrap();
        receiver.on(ReceiverEvent::PeerUp { peer: A, session: SESSION, flow, slots: 2 }).unwrap();
        let want = ReceiverEvent::Want { peer: A, request: name("r"), chunks: chunks(1), deadline: None };
        let wanted = receiver.on(want).unwrap();
        let want = wanted.iter().find_map(|action| match action {
            Action::Send { frame, .. } if matches!(frame.message, Message::Want { .. }) => Some(frame.clone()),
            _ => None,
        });
        let mut pair = Pair::new(flow, config(2, 1), config(2, 1));
        pair.offer("r", 1, None);
        pair.want("r", 1);
        assert_eq!(pair.finished("r"), 2);
        let actions = pair.sender.on(SenderEvent::Message { peer: A, frame: want.unwrap() }).unwrap();
        assert!(!actions.iter().any(|action| matches!(action, Action::Report(_))), "{actions:?}");
        assert!(!pair.sender.is_asked(A, &name("r")));
    });
}

#[test]
fn an_earlier_use_of_a_slot_is_not_read_again() {
    let mut receiver = Receiver::new(config(2, 1), 10).unwrap();
    receiver.on(ReceiverEvent::PeerUp { peer: A, session: SESSION, flow: Flow::Pull, slots: 1 }).unwrap();
    let want = ReceiverEvent::Want { peer: A, request: name("r"), chunks: chunks(3), deadline: None };
    let actions = receiver.on(want).unwrap();
    let ticket = said(&actions).into_iter().find_map(|message| match message {
        Message::Want { ticket, .. } => Some(ticket),
        _ => None,
    });
    let shipped = |generation, sequence| {
        let message = Message::Shipped { at: at(0, generation), ticket: ticket.unwrap(), sequence };
        ReceiverEvent::Message { peer: A, frame: Frame { session: SESSION, message } }
    };
    // The second use of the peer's slot is read, then the first is heard of.
    let actions = receiver.on(shipped(2, 1)).unwrap();
    assert!(actions.iter().any(|action| matches!(action, Action::Read(_))), "{actions:?}");
    assert_eq!(said(&receiver.on(ReceiverEvent::ReadEnded { slot: 0, ok: true }).unwrap()), []);
    let before = receiver.clone();
    assert_eq!(receiver.on(shipped(1, 0)).unwrap(), []);
    assert_eq!(receiver, before);
    // The same use again: nothing is said until it is in the pages, and as often as it is asked for then.
    assert_eq!(receiver.on(shipped(2, 1)).unwrap(), []);
    let consumed = [Message::Consumed { at: at(0, 2) }];
    assert_eq!(said(&receiver.on(ReceiverEvent::Scattered { slot: 0, ok: true }).unwrap()), consumed);
    assert_eq!(said(&receiver.on(shipped(2, 1)).unwrap()), consumed);
}

#[test]
fn a_grant_of_a_session_that_is_over_comes_back_unless_its_slot_is_being_filled() {
    let mut pair = Pair::new(Flow::Push, config(4, 2), config(4, 1));
    pair.stalled = true;
    pair.offer("r", 1, None);
    pair.want("r", 1);
    assert_eq!(pair.sender.count(State::Gathering), 1);
    pair.send(SenderEvent::PeerDown { peer: A });
    let grant = |at| SenderEvent::Message {
        peer: A,
        frame: Frame { session: SESSION, message: Message::Grant { at, bytes: SLOT } },
    };
    assert_eq!(pair.sender.on(grant(at(0, 1))).unwrap(), [], "a kernel's chunk is on its way there");
    for other in [at(0, 2), at(1, 1), at(3, 1)] {
        let actions = pair.sender.on(grant(other)).unwrap();
        assert_eq!(said(&actions), [Message::Returned { at: other }]);
    }
}

/// A receiver of `slots` slots that wants a request of 4 chunks from a peer whose slots it reads; and what that peer says.
fn reader(slots: u32) -> (Receiver, impl Fn(u32, u64) -> ReceiverEvent) {
    let mut receiver = Receiver::new(config(slots, 1), 10).unwrap();
    receiver.on(ReceiverEvent::PeerUp { peer: A, session: SESSION, flow: Flow::Pull, slots: 4 }).unwrap();
    let want = ReceiverEvent::Want { peer: A, request: name("r"), chunks: chunks(4), deadline: None };
    let wanted = said(&receiver.on(want).unwrap());
    let Some(Message::Want { ticket, .. }) = wanted.into_iter().next() else { panic!("no want") };
    let shipped = move |slot, generation| {
        let message = Message::Shipped { at: at(slot, generation), ticket, sequence: slot };
        ReceiverEvent::Message { peer: A, frame: Frame { session: SESSION, message } }
    };
    (receiver, shipped)
}

#[test]
fn a_slot_that_is_being_read_is_not_said_to_be_consumed() {
    let (mut receiver, shipped) = reader(2);
    assert!(matches!(receiver.on(shipped(0, 1)).unwrap()[..], [Action::Read(_)]));
    assert_eq!(receiver.on(shipped(0, 1)).unwrap(), []);
    // Nor when the session is over: of another slot it is, after the peer has heard that its request failed.
    receiver.on(ReceiverEvent::PeerDown { peer: A }).unwrap();
    assert_eq!(receiver.on(shipped(0, 1)).unwrap(), []);
    for at in [at(1, 1), at(0, 2)] {
        let heard = said(&receiver.on(shipped(at.slot, at.generation)).unwrap());
        assert!(
            matches!(heard[..], [Message::Abort { ticket: Ticket(0), answer: false, reason: Reason::PeerLost, .. }, Message::Consumed { at: it }] if it == at),
            "{heard:?}"
        );
    }
}

#[test]
fn no_more_is_read_at_a_time_than_there_are_slots() {
    let (mut receiver, shipped) = reader(1);
    assert!(matches!(receiver.on(shipped(0, 1)).unwrap()[..], [Action::Read(_)]));
    assert_eq!(receiver.on(shipped(1, 1)).unwrap(), []);
    receiver.on(ReceiverEvent::ReadEnded { slot: 0, ok: true }).unwrap();
    let actions = receiver.on(ReceiverEvent::Scattered { slot: 0, ok: true }).unwrap();
    assert_eq!(said(&actions), [Message::Consumed { at: at(0, 1) }]);
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Read(_))).count(), 1, "{actions:?}");
}

/// A peer is lost while one slot is scattered and another is granted: only what it may still write is in quarantine.
#[test]
fn a_lost_peer_leaves_what_is_under_way_here_alone() {
    let mut pair = Pair::new(Flow::Push, config(4, 2), config(4, 1));
    pair.stalled = true;
    pair.offer("r", 2, None);
    pair.want("r", 2);
    pair.sender.on(SenderEvent::Gathered { slot: 0, ok: true }).unwrap();
    let shipped = said(&pair.sender.on(SenderEvent::WriteEnded { slot: 0, ok: true }).unwrap());
    let frame = Frame { session: SESSION, message: shipped[0].clone() };
    pair.receiver.on(ReceiverEvent::Message { peer: A, frame }).unwrap();
    assert_eq!(pair.receiver.count(State::Scattering), 1);
    pair.receiver.on(ReceiverEvent::PeerDown { peer: A }).unwrap();
    assert_eq!((pair.receiver.count(State::Scattering), pair.receiver.count(State::Quarantined)), (1, 1));
}

/// A sender with one slot that the peer may read.
fn announcing() -> Pair {
    let mut pair = Pair::new(Flow::Pull, config(2, 1), config(2, 1));
    pair.stalled = true;
    pair.offer("r", 1, None);
    pair.want("r", 1);
    pair.sender.on(SenderEvent::Gathered { slot: 0, ok: true }).unwrap();
    assert_eq!(pair.sender.count(State::Ready), 1);
    pair.sender.on(SenderEvent::PeerDown { peer: A }).unwrap();
    assert_eq!(pair.sender.count(State::Quarantined), 1);
    pair
}

#[test]
fn a_slot_of_a_lost_reader_is_free_when_it_is_gone_or_says_that_it_is_done() {
    let mut pair = announcing();
    pair.sender.on(SenderEvent::ReaderGone { peer: B }).unwrap();
    assert_eq!(pair.sender.count(State::Quarantined), 1);
    pair.sender.on(SenderEvent::ReaderGone { peer: A }).unwrap();
    assert_eq!(pair.sender.count(State::Free), 2);
    let mut pair = announcing();
    let consumed =
        |at| SenderEvent::Message { peer: A, frame: Frame { session: SESSION, message: Message::Consumed { at } } };
    pair.sender.on(consumed(at(0, 2))).unwrap();
    assert_eq!(pair.sender.count(State::Quarantined), 1);
    pair.sender.on(consumed(at(0, 1))).unwrap();
    assert_eq!(pair.sender.count(State::Free), 2);
}

#[test]
fn slots_of_a_lost_writer_are_free_when_it_is_gone_and_no_others() {
    let mut receiver = Receiver::new(config(4, 2), 10).unwrap();
    for (peer, request) in [(A, "a"), (B, "b")] {
        receiver.on(ReceiverEvent::PeerUp { peer, session: SESSION, flow: Flow::Push, slots: 4 }).unwrap();
        receiver.on(ReceiverEvent::Want { peer, request: name(request), chunks: chunks(9), deadline: None }).unwrap();
    }
    receiver.on(ReceiverEvent::PeerDown { peer: A }).unwrap();
    receiver.on(ReceiverEvent::WriterGone { peer: B }).unwrap();
    assert_eq!((receiver.count(State::Quarantined), receiver.count(State::Granted)), (2, 2));
    receiver.on(ReceiverEvent::PeerDown { peer: B }).unwrap();
    receiver.on(ReceiverEvent::WriterGone { peer: A }).unwrap();
    assert_eq!((receiver.count(State::Quarantined), receiver.count(State::Free)), (2, 2));
}
