//! What is just allowed and what is just not: sizes, shares, epochs, and the ticks after which a message is said again.

use super::alone::{SESSION, at, hear, heed, receiver, said, sender, want};
use super::pair::{A, B, Pair, SLOT, both, chunks, config, name};
use kvreshard::Error;
use kvreshard::ring::chunks::MAX_CHUNKS;
use kvreshard::ring::message::{MAX_FRAME_BYTES, PREFIX};
use kvreshard::ring::slots::{MAX_REQUESTS, MAX_SLOTS};
use kvreshard::ring::{
    Action, Chunks, Config, Flow, Frame, Message, Peer, Reason, Receiver, ReceiverEvent, Role, Sender, SenderEvent,
    Session, State, Ticket,
};

#[test]
fn a_request_has_so_many_chunks_and_no_more() {
    let most = Chunks::new(MAX_CHUNKS * 8, 8).unwrap();
    assert_eq!((most.bytes(), most.chunk_bytes(), most.count()), (1 << 23, 8, 1 << 20));
    assert_eq!(most.span((1 << 20) - 1), Ok(((1 << 23) - 8, 8)));
    let beyond = Error::Limit { what: "index of a chunk".to_owned(), found: 1 << 20, limit: (1 << 20) - 1 };
    assert_eq!(most.span(1 << 20), Err(beyond));
    let refused = Error::Limit { what: "chunks of a request".to_owned(), found: MAX_CHUNKS + 1, limit: MAX_CHUNKS };
    assert_eq!(Chunks::new(MAX_CHUNKS * 8 + 1, 8), Err(refused));
}

#[test]
fn a_ring_is_refused_from_its_bounds_on() {
    let most = Config { slots: MAX_SLOTS, slot_bytes: 1, minimum: MAX_SLOTS, requests: MAX_REQUESTS, resend: u32::MAX };
    let least = Config { slots: 1, slot_bytes: 1, minimum: 1, requests: 1, resend: 1 };
    for fine in [most, least] {
        assert!(Receiver::new(fine, 0).is_ok() && Sender::new(fine, 0).is_ok(), "{fine:?}");
    }
    let limits = [
        (Config { slots: MAX_SLOTS + 1, ..most }, "slots of a ring", 65_537, 65_536),
        (Config { slots: 7, minimum: 8, ..most }, "guaranteed slots of a peer", 8, 7),
        (Config { requests: MAX_REQUESTS + 1, ..most }, "open requests of a peer", 65_537, 65_536),
    ];
    for (wrong, what, found, limit) in limits {
        let refused = Error::Limit { what: what.to_owned(), found, limit };
        assert_eq!(Receiver::new(wrong, 0).err(), Some(refused.clone()));
        assert_eq!(Sender::new(wrong, 0).err(), Some(refused));
    }
    for nothing in [
        Config { slots: 0, ..least },
        Config { slot_bytes: 0, ..least },
        Config { minimum: 0, ..least },
        Config { requests: 0, ..least },
        Config { resend: 0, ..least },
    ] {
        assert!(matches!(Receiver::new(nothing, 0), Err(Error::Limit { .. } | Error::Ring { .. })), "{nothing:?}");
    }
}

#[test]
fn a_slot_that_is_none_is_named_with_the_last_that_is() {
    let beyond = Error::Limit { what: "index of a slot".to_owned(), found: 3, limit: 2 };
    let ended = receiver(Flow::Push, 3, 3).on(ReceiverEvent::Scattered { slot: 3, ok: true });
    assert_eq!(ended.unwrap_err(), beyond);
    let ended = sender(Flow::Push, 3, 3).on(SenderEvent::Gathered { slot: 3, ok: true });
    assert_eq!(ended.unwrap_err(), beyond);
    assert_eq!(receiver(Flow::Push, 3, 3).slot(2), Some((State::Free, 0)));
    assert_eq!(receiver(Flow::Push, 3, 3).slot(3), None);
}

#[test]
fn a_frame_that_is_too_long_is_not_read() {
    let of = |length: usize| {
        let mut bytes = PREFIX.to_vec();
        bytes.resize(length, 0x92);
        Frame::from_bytes(&bytes).unwrap_err()
    };
    assert!(matches!(of(MAX_FRAME_BYTES), Error::Wire { .. }));
    assert!(matches!(of(MAX_FRAME_BYTES + 1), Error::Limit { found: 513, limit: 512, .. }));
    assert!(Frame::is_frame(PREFIX) && !Frame::is_frame(&PREFIX[1..]) && !Frame::is_frame(b""));
}

#[test]
fn what_is_left_serves_the_minimum_of_all_others() {
    let grants = |slots: u32, minimum: u32| {
        let mut receiver = Receiver::new(Config { requests: 9, ..config(slots, minimum) }, 10).unwrap();
        for peer in [A, B] {
            receiver.on(ReceiverEvent::PeerUp { peer, session: SESSION, flow: Flow::Push, slots: 9 }).unwrap();
        }
        for request in ["a", "b", "c", "d", "e", "f"] {
            receiver.on(want(request, 9)).unwrap();
        }
        (0..slots).filter(|slot| receiver.user(*slot) == Some(A)).count()
    };
    // Two for each and none over; one over; all but the other's one.
    assert_eq!((grants(4, 2), grants(5, 2), grants(5, 1)), (2, 3, 4));
}

#[test]
fn who_uses_a_slot_is_told_until_it_is_free() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    pair.stalled = true;
    pair.offer("r", 1, None);
    pair.want("r", 1);
    assert_eq!((pair.receiver.user(0), pair.sender.user(0)), (Some(A), Some(A)));
    assert_eq!((pair.receiver.user(1), pair.sender.user(1)), (None, None));
    pair.send(SenderEvent::Gathered { slot: 0, ok: true });
    pair.send(SenderEvent::WriteEnded { slot: 0, ok: true });
    assert_eq!((pair.receiver.user(0), pair.sender.user(0)), (None, None));
    assert_eq!((pair.receiver.slot(0), pair.sender.slot(0)), (Some((State::Free, 1)), Some((State::Free, 1))));
}

#[test]
fn slots_that_a_peer_has_not_are_not_heard_of() {
    let mut receiver = receiver(Flow::Pull, 2, 1);
    receiver.on(want("r", 2)).unwrap();
    let shipped = |slot| hear(SESSION, Message::Shipped { at: at(slot, 1), ticket: Ticket(0), sequence: 0 });
    let before = receiver.clone();
    assert_eq!((receiver.on(shipped(1)).unwrap(), receiver == before), (vec![], true));
    assert!(matches!(receiver.on(shipped(0)).unwrap()[..], [Action::Read(_)]));
    let mut sender = sender(Flow::Push, 2, 1);
    sender.on(SenderEvent::Offer { peer: A, request: name("r"), chunks: chunks(2), lease: None }).unwrap();
    let asked = said(&super::alone::receiver(Flow::Push, 2, 1).on(want("r", 2)).unwrap());
    sender.on(heed(SESSION, asked[0].clone())).unwrap();
    let granted = |slot| heed(SESSION, Message::Grant { at: at(slot, 1), bytes: SLOT });
    let before = sender.clone();
    assert_eq!((sender.on(granted(1)).unwrap(), sender == before), (vec![], true));
    assert!(matches!(sender.on(granted(0)).unwrap()[..], [Action::Gather(_)]));
}

#[test]
fn a_slot_is_written_if_the_chunk_fits() {
    for (room, fits) in [(SLOT - 1, false), (SLOT, true)] {
        let mut sender = sender(Flow::Push, 2, 2);
        sender.on(SenderEvent::Offer { peer: A, request: name("r"), chunks: chunks(1), lease: None }).unwrap();
        sender.on(heed(SESSION, said(&receiver(Flow::Push, 2, 2).on(want("r", 1)).unwrap())[0].clone())).unwrap();
        let actions = sender.on(heed(SESSION, Message::Grant { at: at(0, 1), bytes: room })).unwrap();
        assert_eq!(matches!(actions[..], [Action::Gather(_)]), fits, "{actions:?}");
    }
}

/// A machine answers for the epochs that it has left: not for those before its first, nor for the present one.
#[test]
fn only_sessions_that_are_over_are_answered() {
    let (ticket, floor, from, reason) = (Ticket(0), Ticket(0), Role::Receiver, Reason::PeerLost);
    let over = vec![Message::Abort { ticket, floor, from, answer: false, reason }, Message::Consumed { at: at(0, 1) }];
    for (epoch, answers) in [(9, vec![]), (10, over.clone()), (11, over), (12, vec![]), (13, vec![])] {
        let mut receiver = receiver(Flow::Push, 2, 2);
        receiver.on(ReceiverEvent::PeerDown { peer: A }).unwrap();
        receiver.on(ReceiverEvent::Registered).unwrap();
        assert_eq!(receiver.epoch(), 12);
        let shipped = Message::Shipped { at: at(0, 1), ticket: Ticket(0), sequence: 0 };
        let heard = receiver.on(hear(Session { receiver: epoch, ..SESSION }, shipped)).unwrap();
        assert_eq!(said(&heard), answers, "epoch {epoch}");
    }
    let returned = Message::Returned { at: at(0, 1) };
    for (epoch, answers) in
        [(19, vec![]), (20, vec![returned.clone()]), (21, vec![returned]), (22, vec![]), (23, vec![])]
    {
        let mut sender = sender(Flow::Push, 2, 2);
        sender.on(SenderEvent::PeerDown { peer: A }).unwrap();
        sender.on(SenderEvent::Registered).unwrap();
        assert_eq!(sender.epoch(), 22);
        let granted = Message::Grant { at: at(0, 1), bytes: SLOT };
        let heard = sender.on(heed(Session { sender: epoch, ..SESSION }, granted)).unwrap();
        assert_eq!(said(&heard), answers, "epoch {epoch}");
    }
}

/// A session that ended is over for its epoch; one that began since is not ended with it.
#[test]
fn an_epoch_is_left_once() {
    both(|flow| {
        let mut pair = Pair::new(flow, config(4, 1), config(4, 1));
        let session = Session { receiver: 10, sender: 20 };
        pair.receiver.on(ReceiverEvent::PeerUp { peer: B, session, flow, slots: 4 }).unwrap();
        pair.sender.on(SenderEvent::PeerUp { peer: B, session, flow, slots: 4 }).unwrap();
        for peer in [A, B] {
            pair.receiver.on(ReceiverEvent::PeerDown { peer }).unwrap();
            pair.sender.on(SenderEvent::PeerDown { peer }).unwrap();
            assert_eq!((pair.receiver.epoch(), pair.sender.epoch()), (11, 21));
        }
    });
}

/// With a patience of 2 ticks: nothing after the first, everything after the second.
#[test]
fn what_is_not_answered_is_said_again_in_its_time() {
    let mut receiver = receiver(Flow::Push, 1, 1);
    let first = said(&receiver.on(want("r", 1)).unwrap());
    assert!(matches!(first[..], [Message::Want { .. }, Message::Grant { .. }]), "{first:?}");
    for _ in 0..2 {
        assert_eq!(receiver.on(ReceiverEvent::Tick).unwrap(), []);
        assert_eq!(said(&receiver.on(ReceiverEvent::Tick).unwrap()), first);
    }
    let given_up = said(&receiver.on(ReceiverEvent::Cancel { peer: A, request: name("r") }).unwrap());
    assert!(matches!(given_up[..], [Message::Abort { answer: false, .. }]), "{given_up:?}");
    for _ in 0..2 {
        assert_eq!(receiver.on(ReceiverEvent::Tick).unwrap(), []);
        assert_eq!(said(&receiver.on(ReceiverEvent::Tick).unwrap()), [given_up[0].clone(), first[1].clone()]);
    }
    // Answered, neither is said again.
    let (ticket, floor, reason) = (Ticket(0), Ticket(0), Reason::Cancelled);
    receiver.on(hear(SESSION, Message::Abort { ticket, floor, from: Role::Sender, answer: true, reason })).unwrap();
    receiver.on(hear(SESSION, Message::Returned { at: at(0, 1) })).unwrap();
    assert_eq!((0..4).flat_map(|_| receiver.on(ReceiverEvent::Tick).unwrap()).count(), 0);
}

#[test]
fn a_sender_says_again_what_is_not_answered() {
    for flow in [Flow::Push, Flow::Pull] {
        let mut sender = sender(flow, 1, 1);
        sender.on(SenderEvent::Offer { peer: A, request: name("r"), chunks: chunks(1), lease: None }).unwrap();
        sender.on(heed(SESSION, said(&receiver(flow, 1, 1).on(want("r", 1)).unwrap())[0].clone())).unwrap();
        if flow == Flow::Push {
            sender.on(heed(SESSION, Message::Grant { at: at(0, 1), bytes: SLOT })).unwrap();
        }
        let mut actions = sender.on(SenderEvent::Gathered { slot: 0, ok: true }).unwrap();
        if flow == Flow::Push {
            actions = sender.on(SenderEvent::WriteEnded { slot: 0, ok: true }).unwrap();
        }
        let shipped = Message::Shipped { at: at(0, 1), ticket: Ticket(0), sequence: 0 };
        assert_eq!(said(&actions), std::slice::from_ref(&shipped));
        for _ in 0..2 {
            assert_eq!(sender.on(SenderEvent::Tick).unwrap(), []);
            assert_eq!(said(&sender.on(SenderEvent::Tick).unwrap()), std::slice::from_ref(&shipped));
        }
        let given_up = said(&sender.on(SenderEvent::Withdraw { peer: A, request: name("r") }).unwrap());
        assert!(matches!(given_up[..], [Message::Abort { answer: false, .. }]), "{given_up:?}");
        assert_eq!(sender.on(SenderEvent::Tick).unwrap(), []);
        let again = said(&sender.on(SenderEvent::Tick).unwrap());
        assert!(again.len() == 2 && again.contains(&given_up[0]) && again.contains(&shipped), "{again:?}");
    }
}

#[test]
fn an_end_of_a_ticket_that_was_never_given_is_ignored() {
    let mut receiver = receiver(Flow::Push, 2, 2);
    receiver.on(want("r", 1)).unwrap();
    let end = |ticket| {
        let (floor, reason) = (Ticket(0), Reason::Cancelled);
        hear(SESSION, Message::Abort { ticket: Ticket(ticket), floor, from: Role::Sender, answer: false, reason })
    };
    let before = receiver.clone();
    assert_eq!((receiver.on(end(1)).unwrap(), receiver == before), (vec![], true));
    let answers = said(&receiver.on(end(0)).unwrap());
    assert!(matches!(answers[..], [Message::Abort { ticket: Ticket(0), answer: true, .. }]), "{answers:?}");
}

/// What a sender may remember of a receiver reaches from its lowest open ticket on as far as it may have requests.
#[test]
fn a_want_outside_the_window_is_not_heard() {
    let wanting = |ticket, floor| {
        let Message::Want { request, flow, .. } =
            said(&receiver(Flow::Pull, 2, 2).on(want("r", 1)).unwrap())[0].clone()
        else {
            panic!("no want")
        };
        heed(SESSION, Message::Want { ticket: Ticket(ticket), floor: Ticket(floor), request, flow })
    };
    // Four requests at most.
    for (ticket, floor, heard) in
        [(0, 0, true), (3, 0, true), (4, 0, false), (6, 3, true), (7, 3, false), (2, 3, false), (3, 3, true)]
    {
        let mut sender = sender(Flow::Pull, 2, 2);
        let actions = sender.on(wanting(ticket, floor)).unwrap();
        assert_eq!(matches!(actions[..], [Action::Report(_)]), heard, "{ticket} from {floor}: {actions:?}");
    }
}

#[test]
fn who_waits_for_it_is_told_of_the_peer_by_name() {
    assert_eq!(Peer(7).to_string(), "peer 7");
    assert_eq!((name("r").as_str(), name("r").to_string()), ("r", "r".to_owned()));
    assert_eq!((Role::Receiver.to_string(), Role::Sender.to_string()), ("receiver".to_owned(), "sender".to_owned()));
    let reasons = [
        (Reason::Cancelled, "cancelled"),
        (Reason::Deadline, "deadline"),
        (Reason::LeaseEnded, "lease ended"),
        (Reason::PeerLost, "peer lost"),
        (Reason::Transfer, "transfer failed"),
        (Reason::Kernel, "kernel failed"),
        (Reason::Mismatch, "sizes differ"),
        (Reason::Registered, "ring registered anew"),
    ];
    assert!(reasons.iter().all(|(reason, text)| reason.to_string() == *text));
}
