//! What receiver and sender refuse, ignore and promise.

use super::alone::{SESSION, at, heed, said};
use super::pair::{A, B, Pair, SLOT, chunks, config, name};
use kvreshard::Error;
use kvreshard::ring::{
    Action, Chunks, Config, Flow, Frame, Message, Peer, Place, Reason, Receiver, ReceiverEvent, Report, Role, Rules,
    Sender, SenderEvent, Session, SlotUse, State, Step, Ticket, table,
};

#[test]
fn every_admitted_peer_has_its_minimum_and_none_is_admitted_beyond_the_ring() {
    let mut receiver = Receiver::new(config(5, 2), 10).unwrap();
    let up =
        |peer| ReceiverEvent::PeerUp { peer, session: Session { receiver: 10, sender: 1 }, flow: Flow::Push, slots: 8 };
    receiver.on(up(A)).unwrap();
    receiver.on(up(B)).unwrap();
    let refused = receiver.on(up(Peer(3))).unwrap_err();
    assert_eq!(refused, Error::Limit { what: "peers admitted to the ring".to_owned(), found: 3, limit: 2 });
    let want =
        |peer, request: &str| ReceiverEvent::Want { peer, request: name(request), chunks: chunks(9), deadline: None };
    let grants = |actions: &[Action], to| {
        let is = |action: &&Action| matches!(action, Action::Send { peer, frame } if *peer == to && matches!(frame.message, Message::Grant { .. }));
        actions.iter().filter(is).count()
    };
    // Five requests that have not begun: the minimum for the first two slots, then one each while others keep their minimum.
    let mut given = 0;
    for request in ["a", "b", "c", "d"] {
        given += grants(&receiver.on(want(A, request)).unwrap(), A);
    }
    assert_eq!(given, 3);
    assert_eq!(grants(&receiver.on(want(B, "e")).unwrap(), B), 2);
}

#[test]
fn slots_in_quarantine_are_nobodys_share() {
    let mut receiver = Receiver::new(config(4, 2), 10).unwrap();
    let session = Session { receiver: 10, sender: 1 };
    let up = |peer, receiver: u64| ReceiverEvent::PeerUp {
        peer,
        session: Session { receiver, sender: 1 },
        flow: Flow::Push,
        slots: 8,
    };
    receiver.on(up(A, 10)).unwrap();
    receiver.on(ReceiverEvent::Want { peer: A, request: name("r"), chunks: chunks(9), deadline: None }).unwrap();
    receiver.on(ReceiverEvent::PeerDown { peer: A }).unwrap();
    assert_eq!(receiver.count(State::Quarantined), 2);
    assert_eq!(receiver.epoch(), 11);
    receiver.on(up(B, 11)).unwrap();
    assert!(receiver.on(up(Peer(3), 11)).is_err());
    // The lost peer says of one slot that it does not write it; of the other the host knows.
    let returned =
        |slot, generation| Frame { session, message: Message::Returned { at: SlotUse { slot, generation } } };
    receiver.on(ReceiverEvent::Message { peer: B, frame: returned(0, 1) }).unwrap();
    receiver.on(ReceiverEvent::Message { peer: A, frame: returned(0, 2) }).unwrap();
    assert_eq!(receiver.count(State::Quarantined), 2);
    receiver.on(ReceiverEvent::Message { peer: A, frame: returned(0, 1) }).unwrap();
    assert_eq!(receiver.count(State::Quarantined), 1);
    receiver.on(ReceiverEvent::WriterGone { peer: A }).unwrap();
    assert_eq!(receiver.count(State::Quarantined), 0);
    receiver.on(up(Peer(3), 11)).unwrap();
}

#[test]
fn peers_take_turns() {
    let mut sender = Sender::new(config(2, 1), 20).unwrap();
    let session = Session { receiver: 1, sender: 20 };
    let mut gathered = Vec::new();
    let mut actions = Vec::new();
    for peer in [A, B] {
        actions.extend(sender.on(SenderEvent::PeerUp { peer, session, flow: Flow::Pull, slots: 8 }).unwrap());
        actions.extend(
            sender.on(SenderEvent::Offer { peer, request: name("r"), chunks: chunks(50), lease: None }).unwrap(),
        );
    }
    // One peer asks first and for all slots; the other has every second one from then on.
    for (peer, at) in [(A, 0), (B, 1)] {
        let mut other = Receiver::new(config(8, 1), 1).unwrap();
        other.on(ReceiverEvent::PeerUp { peer: Peer(0), session, flow: Flow::Pull, slots: 2 }).unwrap();
        let want = ReceiverEvent::Want { peer: Peer(0), request: name("r"), chunks: chunks(50), deadline: None };
        let Some(Action::Send { frame, .. }) = other.on(want).unwrap().into_iter().next() else {
            panic!("no want: {at}")
        };
        actions.extend(sender.on(SenderEvent::Message { peer, frame }).unwrap());
    }
    while gathered.len() < 20 {
        assert!(!actions.is_empty(), "nothing is under way after {gathered:?}");
        let next: Vec<_> = std::mem::take(&mut actions);
        for action in next {
            match action {
                Action::Gather(piece) => {
                    gathered.push(piece.key.peer);
                    actions.extend(sender.on(SenderEvent::Gathered { slot: piece.slot, ok: true }).unwrap());
                }
                Action::Send { peer, frame: Frame { message: Message::Shipped { at, .. }, .. } } => {
                    let frame = Frame { session, message: Message::Consumed { at } };
                    actions.extend(sender.on(SenderEvent::Message { peer, frame }).unwrap());
                }
                _ => {}
            }
        }
    }
    assert!(gathered[2..].windows(2).all(|two| two[0] != two[1]), "{gathered:?}");
}

#[test]
fn what_a_host_may_not_do_is_refused_and_changes_nothing() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    pair.want("r", 1);
    let (receiver, sender) = (pair.receiver.clone(), pair.sender.clone());
    let session = Session { receiver: 10, sender: 20 };
    let stale = Session { receiver: 9, sender: 19 };
    let (flow, slots, chunks_) = (Flow::Push, 2, chunks(1));
    let wrong = [
        (ReceiverEvent::PeerUp { peer: A, session, flow, slots }, "is connected"),
        (ReceiverEvent::PeerUp { peer: B, session: stale, flow, slots }, "was told epoch 9"),
        (ReceiverEvent::PeerDown { peer: B }, "is not connected"),
        (ReceiverEvent::Want { peer: B, request: name("r"), chunks: chunks_, deadline: None }, "is not connected"),
        (ReceiverEvent::Want { peer: A, request: name("r"), chunks: chunks_, deadline: None }, "is under way"),
        (ReceiverEvent::Cancel { peer: A, request: name("s") }, "is not under way"),
        (ReceiverEvent::ReadEnded { slot: 0, ok: true }, "is granted, not reading"),
        (ReceiverEvent::Scattered { slot: 0, ok: true }, "is granted, not scattering"),
    ];
    for (event, expected) in wrong {
        let error = pair.receiver.on(event.clone()).unwrap_err();
        assert!(matches!(&error, Error::Ring { found, .. } if found == expected), "{event:?}: {error}");
    }
    let big = Chunks::new(2 * SLOT, 2 * SLOT).unwrap();
    let big = ReceiverEvent::Want { peer: A, request: name("big"), chunks: big, deadline: None };
    assert!(matches!(pair.receiver.on(big).unwrap_err(), Error::Limit { .. }));
    assert!(matches!(
        pair.receiver.on(ReceiverEvent::Scattered { slot: 2, ok: true }).unwrap_err(),
        Error::Limit { .. }
    ));
    assert_eq!(pair.receiver, receiver);
    let wrong = [
        (SenderEvent::PeerUp { peer: A, session, flow, slots }, "is connected"),
        (SenderEvent::PeerUp { peer: B, session: stale, flow, slots }, "was told epoch 19"),
        (SenderEvent::PeerDown { peer: B }, "is not connected"),
        (SenderEvent::Withdraw { peer: A, request: name("s") }, "is neither offered nor asked for"),
        (SenderEvent::Gathered { slot: 0, ok: true }, "is free, not gathering"),
        (SenderEvent::WriteEnded { slot: 0, ok: true }, "is free, not writing"),
    ];
    for (event, expected) in wrong {
        let error = pair.sender.on(event.clone()).unwrap_err();
        assert!(matches!(&error, Error::Ring { found, .. } if found == expected), "{event:?}: {error}");
    }
    assert_eq!(pair.sender, sender);
    for wrong in
        [config(0, 1), config(2, 3), Config { slot_bytes: 0, ..config(2, 1) }, Config { resend: 0, ..config(2, 1) }]
    {
        assert!(Receiver::new(wrong, 0).is_err() && Sender::new(wrong, 0).is_err(), "{wrong:?}");
    }
}

#[test]
fn what_a_peer_says_out_of_place_is_ignored() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    pair.stalled = true;
    pair.offer("r", 2, None);
    pair.want("r", 2);
    let session = Session { receiver: 10, sender: 20 };
    let other = Session { receiver: 10, sender: 21 };
    let at = |slot, generation| SlotUse { slot, generation };
    let floor = Ticket(0);
    let messages = [
        (session, Message::Shipped { at: at(0, 2), ticket: Ticket(0), sequence: 0 }),
        (session, Message::Shipped { at: at(9, 1), ticket: Ticket(0), sequence: 0 }),
        (session, Message::Returned { at: at(0, 2) }),
        (session, Message::Returned { at: at(u32::MAX, u64::MAX) }),
        (other, Message::Shipped { at: at(0, 1), ticket: Ticket(0), sequence: 0 }),
        (
            session,
            Message::Abort { ticket: Ticket(7), floor, from: Role::Sender, answer: false, reason: Reason::Cancelled },
        ),
        (session, Message::Consumed { at: at(0, 1) }),
    ];
    let before = pair.receiver.clone();
    for (session, message) in messages {
        let event = ReceiverEvent::Message { peer: A, frame: Frame { session, message } };
        assert_eq!(pair.receiver.on(event.clone()).unwrap(), [], "{event:?}");
        assert_eq!(pair.receiver, before, "{event:?}");
    }
    // From a peer that was never granted the slot.
    let frame = Frame { session, message: Message::Shipped { at: at(0, 1), ticket: Ticket(0), sequence: 0 } };
    assert_eq!(pair.receiver.on(ReceiverEvent::Message { peer: B, frame }).unwrap(), []);
    assert_eq!(pair.receiver, before);
    let messages = [
        (session, Message::Grant { at: at(2, 1), bytes: SLOT }),
        (session, Message::Grant { at: at(0, 1), bytes: SLOT }),
        (session, Message::Grant { at: at(0, 9), bytes: SLOT }),
        (session, Message::Consumed { at: at(0, 1) }),
        (session, Message::Consumed { at: at(5, 1) }),
        (session, Message::Returned { at: at(0, 1) }),
        (other, Message::Grant { at: at(1, 1), bytes: SLOT }),
    ];
    let before = pair.sender.clone();
    for (session, message) in messages {
        let event = SenderEvent::Message { peer: A, frame: Frame { session, message } };
        assert_eq!(pair.sender.on(event.clone()).unwrap(), [], "{event:?}");
        assert_eq!(pair.sender, before, "{event:?}");
    }
}

#[test]
fn a_hostile_receiver_cannot_fill_the_sender() {
    let mut sender = Sender::new(config(2, 1), 20).unwrap();
    let session = Session { receiver: 1, sender: 20 };
    sender.on(SenderEvent::PeerUp { peer: A, session, flow: Flow::Push, slots: 2 }).unwrap();
    let mut receiver = Receiver::new(Config { requests: 60_000, ..config(4, 1) }, 1).unwrap();
    receiver.on(ReceiverEvent::PeerUp { peer: A, session, flow: Flow::Push, slots: 2 }).unwrap();
    let mut asked = 0;
    for at in 0..1000 {
        let want = ReceiverEvent::Want { peer: A, request: name(&format!("r{at}")), chunks: chunks(1), deadline: None };
        for action in receiver.on(want).unwrap() {
            let Action::Send { frame, .. } = action else { continue };
            let actions = sender.on(SenderEvent::Message { peer: A, frame }).unwrap();
            asked += actions.iter().filter(|action| matches!(action, Action::Report(Report::Asked { .. }))).count();
        }
    }
    assert_eq!(asked, 4, "no more than the requests that a peer may have open");
}

#[test]
fn the_document_shows_the_table() {
    let document = include_str!("../../../../docs/protocol.md");
    // Each row once, and a head of two lines for each of three tables.
    let rows = table::markdown().lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(rows, table::TABLE.len() + 3 * 2);
    assert!(document.contains(&table::markdown()), "docs/protocol.md must hold this:\n\n{}", table::markdown());
}

/// The checker looks for faults that it puts into the rules. Printed with a fault, a machine has how many rules it goes by, not which.
#[test]
fn a_machine_goes_by_the_rules_that_it_is_given() {
    let granted = |rules: Rules| {
        let mut sender = Sender::with_rules(config(2, 1), SESSION.sender, rules).unwrap();
        sender.on(SenderEvent::PeerUp { peer: A, session: SESSION, flow: Flow::Push, slots: 2 }).unwrap();
        let actions = sender.on(heed(SESSION, Message::Grant { at: at(0, 1), bytes: SLOT }));
        (actions.map(|actions| said(&actions)), format!("{sender:?}"))
    };
    let (heard, text) = granted(Rules::default());
    assert_eq!(heard.unwrap(), [Message::Returned { at: at(0, 1) }]);
    assert!(text.contains(&format!("Rules({} rows)", table::TABLE.len())), "{text}");
    let lacking = table::TABLE.iter().filter(|row| (row.place, row.step) != (Place::Credit, Step::Grant));
    let (heard, _) = granted(Rules::injected(lacking.copied().collect()));
    let illegal = heard.unwrap_err();
    assert!(matches!(&illegal, Error::Ring { expected, .. } if expected == "not legal: a grant"), "{illegal}");
}
