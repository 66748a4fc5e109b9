//! Receiver and sender, one behaviour at a time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing
)]

use std::collections::VecDeque;

use kvreshard::Error;
use kvreshard::ring::{
    Action, Chunks, Config, Flow, Frame, Message, Pages, Peer, Reason, Receiver, ReceiverEvent, Report, RequestName,
    Role, Sender, SenderEvent, Session, SlotUse, State, Ticket, table,
};

const SLOT: u64 = 4096;
const A: Peer = Peer(1);
const B: Peer = Peer(2);

fn config(slots: u32, minimum: u32) -> Config {
    Config { slots, slot_bytes: SLOT, minimum, requests: 4, resend: 2 }
}

fn name(text: &str) -> RequestName {
    RequestName::new(text).unwrap()
}

fn chunks(count: u64) -> Chunks {
    Chunks::new(count * SLOT, SLOT).unwrap()
}

/// A receiver and a sender on a network without faults, on which kernels and transfers end at once. Each is `A` to the other.
struct Pair {
    receiver: Receiver,
    sender: Sender,
    flow: Flow,
    reports: Vec<(Role, Report)>,
    /// Bytes of every chunk scattered, in order.
    scattered: Vec<(RequestName, u32, u64)>,
    /// Whether kernels and transfers of the sender stay under way.
    stalled: bool,
}

impl Pair {
    fn new(flow: Flow, ring: Config, staging: Config) -> Self {
        let (receiver, sender) = (Receiver::new(ring, 10).unwrap(), Sender::new(staging, 20).unwrap());
        let mut pair = Self { receiver, sender, flow, reports: Vec::new(), scattered: Vec::new(), stalled: false };
        pair.connect(ring.slots, staging.slots);
        pair
    }

    fn connect(&mut self, ring: u32, staging: u32) {
        let session = Session { receiver: self.receiver.epoch(), sender: self.sender.epoch() };
        let flow = self.flow;
        self.receiver.on(ReceiverEvent::PeerUp { peer: A, session, flow, slots: staging }).unwrap();
        self.sender.on(SenderEvent::PeerUp { peer: A, session, flow, slots: ring }).unwrap();
    }

    fn want(&mut self, request: &str, count: u64) {
        let event = ReceiverEvent::Want { peer: A, request: name(request), chunks: chunks(count), deadline: None };
        self.receive(event);
    }

    fn offer(&mut self, request: &str, count: u64, lease: Option<u32>) {
        self.send(SenderEvent::Offer { peer: A, request: name(request), chunks: chunks(count), lease });
    }

    fn receive(&mut self, event: ReceiverEvent) {
        let actions = self.receiver.on(event).unwrap();
        self.run(Role::Receiver, actions);
    }

    fn send(&mut self, event: SenderEvent) {
        let actions = self.sender.on(event).unwrap();
        self.run(Role::Sender, actions);
    }

    fn run(&mut self, role: Role, actions: Vec<Action>) {
        let mut queue: VecDeque<_> = actions.into_iter().map(|action| (role, action)).collect();
        while let Some((role, action)) = queue.pop_front() {
            let receive = |event| Some((Role::Receiver, ReceiverOrSender::R(event)));
            let send = |event| Some((Role::Sender, ReceiverOrSender::S(event)));
            let next = match action {
                Action::Send { frame, .. } if frame.message.to() == Role::Receiver => {
                    receive(ReceiverEvent::Message { peer: A, frame })
                }
                Action::Send { frame, .. } => send(SenderEvent::Message { peer: A, frame }),
                Action::Read(it) => receive(ReceiverEvent::ReadEnded { slot: it.slot, ok: true }),
                Action::Scatter(piece) => {
                    self.scattered.push((piece.key.request, piece.sequence, piece.bytes));
                    receive(ReceiverEvent::Scattered { slot: piece.slot, ok: true })
                }
                Action::Gather(_) | Action::Write(_) if self.stalled => None,
                Action::Gather(piece) => send(SenderEvent::Gathered { slot: piece.slot, ok: true }),
                Action::Write(it) => send(SenderEvent::WriteEnded { slot: it.slot, ok: true }),
                Action::Report(report) => {
                    self.reports.push((role, report));
                    None
                }
            };
            match next {
                Some((role, ReceiverOrSender::R(event))) => {
                    queue.extend(self.receiver.on(event).unwrap().into_iter().map(|action| (role, action)));
                }
                Some((role, ReceiverOrSender::S(event))) => {
                    queue.extend(self.sender.on(event).unwrap().into_iter().map(|action| (role, action)));
                }
                None => {}
            }
        }
    }

    fn finished(&self, request: &str) -> usize {
        let is = |report: &Report| matches!(report, Report::Finished(key) if key.request == name(request));
        self.reports.iter().filter(|(_, report)| is(report)).count()
    }

    fn failed(&self, role: Role) -> Vec<(Reason, bool, Pages)> {
        let of = |(by, report): &(Role, Report)| match report {
            Report::Failed { reason, by_peer, pages, .. } if *by == role => Some((*reason, *by_peer, *pages)),
            _ => None,
        };
        self.reports.iter().filter_map(of).collect()
    }
}

enum ReceiverOrSender {
    R(ReceiverEvent),
    S(SenderEvent),
}

fn both(test: impl Fn(Flow)) {
    test(Flow::Push);
    test(Flow::Pull);
}

#[test]
fn all_chunks_arrive_once_and_the_last_is_short() {
    both(|flow| {
        let mut pair = Pair::new(flow, config(3, 1), config(2, 1));
        let odd = Chunks::new(9 * SLOT + 5, SLOT).unwrap();
        pair.send(SenderEvent::Offer { peer: A, request: name("r"), chunks: odd, lease: None });
        pair.receive(ReceiverEvent::Want { peer: A, request: name("r"), chunks: odd, deadline: None });
        assert_eq!(pair.finished("r"), 2);
        let mut got: Vec<_> = pair.scattered.iter().map(|(_, sequence, bytes)| (*sequence, *bytes)).collect();
        got.sort_unstable();
        let expected: Vec<_> = (0..9).map(|at| (at, SLOT)).chain([(9, 5)]).collect();
        assert_eq!(got, expected);
        assert_eq!((pair.receiver.count(State::Free), pair.sender.count(State::Free)), (3, 2));
    });
}

#[test]
fn a_request_wanted_before_it_is_offered_is_asked_for_and_served() {
    both(|flow| {
        let mut pair = Pair::new(flow, config(2, 1), config(2, 1));
        pair.want("r", 3);
        let asked = pair.reports.iter().any(|(role, report)| {
            *role == Role::Sender
                && matches!(report, Report::Asked { key, chunks } if key.request == name("r") && chunks.count() == 3)
        });
        assert!(asked && pair.sender.is_asked(A, &name("r")));
        pair.offer("r", 3, None);
        assert_eq!(pair.finished("r"), 2);
    });
}

#[test]
fn a_request_that_has_not_begun_holds_no_more_than_the_minimum() {
    let mut pair = Pair::new(Flow::Push, config(8, 2), config(8, 2));
    pair.want("r", 100);
    assert_eq!(pair.receiver.count(State::Granted), 2);
    // Begun, it may use what nobody else was promised.
    pair.stalled = true;
    pair.offer("r", 100, None);
    let shipped = |pair: &mut Pair, slot: u32| {
        pair.send(SenderEvent::Gathered { slot, ok: true });
        pair.send(SenderEvent::WriteEnded { slot, ok: true });
    };
    shipped(&mut pair, 0);
    assert_eq!(pair.receiver.count(State::Granted), 8);
}

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
fn a_small_request_is_not_stuck_behind_a_large_one() {
    both(|flow| {
        let mut pair = Pair::new(flow, config(4, 1), config(4, 1));
        pair.offer("large", 1000, None);
        pair.offer("small", 1, None);
        // Both are wanted before anything moves.
        pair.stalled = true;
        pair.want("large", 1000);
        pair.want("small", 1);
        pair.stalled = false;
        let busy = (0..4).filter(|&slot| pair.sender.slot(slot).unwrap().0 == State::Gathering).collect::<Vec<_>>();
        let ended = |slot| pair.sender.on(SenderEvent::Gathered { slot, ok: true }).unwrap();
        let actions = busy.into_iter().flat_map(ended).collect();
        pair.run(Role::Sender, actions);
        assert_eq!((pair.finished("large"), pair.finished("small")), (2, 2));
        let small = pair.scattered.iter().position(|(request, ..)| *request == name("small")).unwrap();
        assert!(small <= 8, "the small request came after {small} chunks of the large one");
    });
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
fn pages_are_held_while_a_kernel_is_at_them() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    pair.stalled = true;
    pair.offer("r", 4, None);
    pair.want("r", 4);
    assert_eq!(pair.sender.count(State::Gathering), 1);
    pair.send(SenderEvent::Withdraw { peer: A, request: name("r") });
    assert_eq!(pair.failed(Role::Sender), [(Reason::Cancelled, false, Pages::Held)]);
    assert_eq!(pair.failed(Role::Receiver), [(Reason::Cancelled, true, Pages::Free)]);
    assert_eq!(pair.sender.held(), 1);
    pair.send(SenderEvent::Gathered { slot: 0, ok: true });
    assert!(matches!(pair.reports.last(), Some((Role::Sender, Report::Freed(key))) if key.request == name("r")));
    assert_eq!(pair.sender.held(), 0);
    assert_eq!((pair.receiver.count(State::Free), pair.sender.count(State::Free)), (2, 2));
}

#[test]
fn leases_and_deadlines_end_in_ticks() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    pair.offer("unasked", 1, Some(2));
    pair.send(SenderEvent::Tick);
    assert!(pair.reports.is_empty());
    pair.send(SenderEvent::Tick);
    assert_eq!(pair.failed(Role::Sender), [(Reason::LeaseEnded, false, Pages::Free)]);
    pair.receive(ReceiverEvent::Want { peer: A, request: name("r"), chunks: chunks(2), deadline: Some(1) });
    pair.receive(ReceiverEvent::Tick);
    assert_eq!(pair.failed(Role::Receiver), [(Reason::Deadline, false, Pages::Free)]);
    assert!(!pair.sender.is_asked(A, &name("r")));
    // The slots that were granted for it are back without another tick.
    assert_eq!(pair.receiver.count(State::Free), 2);
}

#[test]
fn a_request_may_be_tried_again_under_its_name() {
    both(|flow| {
        let mut pair = Pair::new(flow, config(2, 1), config(2, 1));
        pair.stalled = true;
        pair.offer("r", 2, None);
        pair.want("r", 2);
        pair.receive(ReceiverEvent::Cancel { peer: A, request: name("r") });
        for slot in 0..2 {
            if pair.sender.slot(slot).unwrap().0 == State::Gathering {
                pair.send(SenderEvent::Gathered { slot, ok: true });
            }
        }
        pair.stalled = false;
        assert_eq!(pair.failed(Role::Sender).len(), 1);
        pair.want("r", 2);
        pair.offer("r", 2, None);
        // A grant that came back unused waits for a tick.
        pair.receive(ReceiverEvent::Tick);
        assert_eq!(pair.finished("r"), 2);
    });
}

#[test]
fn sizes_that_differ_fail_on_both_sides() {
    both(|flow| {
        for offer_first in [true, false] {
            let mut pair = Pair::new(flow, config(2, 1), config(2, 1));
            if offer_first {
                pair.offer("r", 2, None);
                pair.want("r", 3);
            } else {
                pair.want("r", 3);
                pair.offer("r", 2, None);
            }
            assert_eq!(pair.failed(Role::Sender), [(Reason::Mismatch, false, Pages::Free)]);
            assert_eq!(pair.failed(Role::Receiver), [(Reason::Mismatch, true, Pages::Free)]);
            assert_eq!(pair.receiver.count(State::Free), 2);
        }
    });
}

#[test]
fn open_requests_are_bounded() {
    let mut pair = Pair::new(Flow::Push, config(2, 1), config(2, 1));
    for request in ["a", "b", "c", "d"] {
        pair.want(request, 1);
    }
    let fifth = |at: &str| ReceiverEvent::Want { peer: A, request: name(at), chunks: chunks(1), deadline: None };
    let refused = pair.receiver.on(fifth("e")).unwrap_err();
    assert!(matches!(refused, Error::Limit { found: 5, limit: 4, .. }), "{refused}");
    // Only the end of the oldest makes room: what the sender remembers reaches from the oldest to the newest.
    pair.receive(ReceiverEvent::Cancel { peer: A, request: name("b") });
    assert!(pair.receiver.on(fifth("e")).is_err());
    pair.receive(ReceiverEvent::Cancel { peer: A, request: name("a") });
    pair.want("e", 1);
    pair.want("f", 1);
    for request in ["c", "d", "e", "f"] {
        pair.offer(request, 1, None);
    }
    pair.receive(ReceiverEvent::Tick);
    pair.receive(ReceiverEvent::Tick);
    assert!(["c", "d", "e", "f"].iter().all(|request| pair.finished(request) == 2), "{:?}", pair.reports);
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
    let document = include_str!("../../../docs/protocol.md");
    assert!(document.contains(&table::markdown()), "docs/protocol.md must hold this:\n\n{}", table::markdown());
}
