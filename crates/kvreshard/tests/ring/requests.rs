//! Requests between a receiver and a sender: served, shared, given up, failed.

use super::pair::{A, Pair, SLOT, both, chunks, config, name};
use kvreshard::Error;
use kvreshard::ring::{Chunks, Flow, Pages, Reason, ReceiverEvent, Report, Role, SenderEvent, State};

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
fn a_request_that_has_not_begun_holds_no_more_than_the_minimum_or_half() {
    for (slots, minimum, held) in [(8, 5, 5), (8, 3, 4), (16, 2, 8), (16, 1, 8), (3, 1, 1)] {
        let mut pair = Pair::new(Flow::Push, config(slots, minimum), config(slots, minimum));
        pair.want("r", 100);
        assert_eq!(pair.receiver.count(State::Granted), held, "{slots} slots, {minimum} promised");
    }
    let mut pair = Pair::new(Flow::Push, config(8, 2), config(8, 2));
    pair.want("r", 100);
    assert_eq!(pair.receiver.count(State::Granted), 4);
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
