//! What comes late: after its session, after its request, once more; and what is given up or given back then.

use super::alone::{SESSION, at, hear, heed, receiver, said, sender, want};
use super::pair::{A, SLOT, both, chunks, name};
use kvreshard::ring::{
    Action, Flow, Message, Pages, Reason, ReceiverEvent, Report, Role, Sender, SenderEvent, State, Ticket,
};

fn abort(ticket: u64, from: Role, answer: bool, reason: Reason) -> Message {
    Message::Abort { ticket: Ticket(ticket), floor: Ticket(0), from, answer, reason }
}

fn shipped(slot: u32, ticket: u64, sequence: u32) -> Message {
    Message::Shipped { at: at(slot, 1), ticket: Ticket(ticket), sequence }
}

fn granted(slot: u32) -> Message {
    Message::Grant { at: at(slot, 1), bytes: SLOT }
}

/// The `want` of a receiver's first request, of `count` chunks.
fn wanted(flow: Flow, request: &str, count: u64) -> Message {
    said(&receiver(flow, 4, 4).on(want(request, count)).unwrap()).swap_remove(0)
}

fn offer(sender: &mut Sender, request: &str, count: u64) {
    let offer = SenderEvent::Offer { peer: A, request: name(request), chunks: chunks(count), lease: None };
    assert_eq!(sender.on(offer).unwrap(), []);
}

#[test]
fn pages_of_a_receiver_are_held_until_all_scatters_into_them_have_ended() {
    let mut receiver = receiver(Flow::Push, 4, 4);
    receiver.on(want("r", 4)).unwrap();
    for slot in 0..2 {
        receiver.on(hear(SESSION, shipped(slot, 0, slot))).unwrap();
    }
    assert_eq!((receiver.count(State::Scattering), receiver.held()), (2, 0));
    let given_up = receiver.on(ReceiverEvent::Cancel { peer: A, request: name("r") }).unwrap();
    let held = |action: &Action| matches!(action, Action::Report(Report::Failed { pages: Pages::Held, .. }));
    assert!(given_up.iter().any(held), "{given_up:?}");
    assert_eq!(receiver.held(), 1);
    // The first scatter to end frees its slot, the second the pages.
    for (slot, freed) in [(0, false), (1, true)] {
        let ended = receiver.on(ReceiverEvent::Scattered { slot, ok: true }).unwrap();
        let reported = ended.iter().any(|action| matches!(action, Action::Report(Report::Freed(_))));
        assert_eq!((reported, receiver.held()), (freed, usize::from(!freed)));
    }
}

/// Whoever asks for the end of a request is answered, even by a side that has ended the session: it would ask for ever. An answer is
/// not answered.
#[test]
fn an_end_heard_after_the_session_is_answered_once() {
    both(|flow| {
        let mut receiver = receiver(flow, 2, 2);
        receiver.on(ReceiverEvent::PeerDown { peer: A }).unwrap();
        let mut sender = sender(flow, 2, 2);
        sender.on(SenderEvent::PeerDown { peer: A }).unwrap();
        for reason in [Reason::Cancelled, Reason::LeaseEnded] {
            let (theirs, ours) = (Role::Sender, Role::Receiver);
            let answer = receiver.on(hear(SESSION, abort(7, theirs, false, reason))).unwrap();
            assert_eq!(said(&answer), [abort(7, ours, true, reason)]);
            assert_eq!(receiver.on(hear(SESSION, abort(7, theirs, true, reason))).unwrap(), []);
            let answer = sender.on(heed(SESSION, abort(7, ours, false, reason))).unwrap();
            assert_eq!(said(&answer), [abort(7, theirs, true, reason)]);
            assert_eq!(sender.on(heed(SESSION, abort(7, ours, true, reason))).unwrap(), []);
        }
    });
}

/// A receiver that has not noticed the end of the session would wait until its deadline, or for ever.
#[test]
fn a_request_wanted_after_the_session_is_refused() {
    both(|flow| {
        let mut sender = sender(flow, 2, 2);
        sender.on(SenderEvent::PeerDown { peer: A }).unwrap();
        let refused = sender.on(heed(SESSION, wanted(flow, "r", 1))).unwrap();
        assert_eq!(said(&refused), [abort(0, Role::Sender, false, Reason::PeerLost)]);
        let mut receiver = receiver(flow, 2, 2);
        receiver.on(want("r", 1)).unwrap();
        let heard = receiver.on(hear(SESSION, said(&refused).swap_remove(0))).unwrap();
        let failed = |action: &Action| {
            matches!(action, Action::Report(Report::Failed { reason: Reason::PeerLost, by_peer: true, .. }))
        };
        assert!(heard.iter().any(failed), "{heard:?}");
    });
}

/// A sender takes its peer for lost with one slot of it being filled and another not begun: that one is given back at once, not when
/// the peer asks what became of it.
#[test]
fn slots_that_were_not_begun_are_given_back_with_the_session() {
    let mut sender = sender(Flow::Push, 1, 4);
    offer(&mut sender, "r", 3);
    sender.on(heed(SESSION, wanted(Flow::Push, "r", 3))).unwrap();
    for slot in 0..3 {
        sender.on(heed(SESSION, granted(slot))).unwrap();
    }
    assert_eq!(sender.count(State::Gathering), 1);
    let mut given_back = said(&sender.on(SenderEvent::PeerDown { peer: A }).unwrap());
    given_back.retain(|message| matches!(message, Message::Returned { .. }));
    assert_eq!(given_back, [Message::Returned { at: at(2, 1) }, Message::Returned { at: at(1, 1) }]);
    // The one that was being filled, when that has ended.
    let ended = said(&sender.on(SenderEvent::Gathered { slot: 0, ok: true }).unwrap());
    assert_eq!(ended, [Message::Returned { at: at(0, 1) }]);
}

/// One request is given up while chunks of two wait for a slot to be read into: the peer has back the slots of that one, and the
/// other's chunks are still read.
#[test]
fn chunks_that_wait_to_be_read_are_let_go_with_their_request_and_no_others() {
    let mut receiver = receiver(Flow::Pull, 1, 4);
    receiver.on(want("a", 2)).unwrap();
    receiver.on(want("b", 2)).unwrap();
    let read = receiver.on(hear(SESSION, shipped(0, 0, 0))).unwrap();
    assert!(matches!(read[..], [Action::Read(_)]), "{read:?}");
    for (slot, ticket, sequence) in [(1, 0, 1), (2, 1, 0), (3, 1, 1)] {
        assert_eq!(receiver.on(hear(SESSION, shipped(slot, ticket, sequence))).unwrap(), []);
    }
    let given_up = said(&receiver.on(ReceiverEvent::Cancel { peer: A, request: name("a") }).unwrap());
    assert_eq!(given_up, [abort(0, Role::Receiver, false, Reason::Cancelled)]);
    let answer = abort(0, Role::Sender, true, Reason::Cancelled);
    assert_eq!(said(&receiver.on(hear(SESSION, answer)).unwrap()), [Message::Consumed { at: at(1, 1) }]);
    let reads = |actions: &[Action]| -> Vec<u32> {
        let of = |action: &Action| match action {
            Action::Read(it) => Some(it.remote.slot),
            _ => None,
        };
        actions.iter().filter_map(of).collect()
    };
    let ended = receiver.on(ReceiverEvent::ReadEnded { slot: 0, ok: true }).unwrap();
    assert_eq!((said(&ended), reads(&ended)), (vec![Message::Consumed { at: at(0, 1) }], vec![2]));
    receiver.on(ReceiverEvent::ReadEnded { slot: 0, ok: true }).unwrap();
    let ended = receiver.on(ReceiverEvent::Scattered { slot: 0, ok: true }).unwrap();
    assert_eq!(reads(&ended), [3]);
}

/// Said again because no chunk came yet: the host is not asked twice, and what is under way does not begin anew.
#[test]
fn a_want_heard_twice_is_one_request() {
    both(|flow| {
        let want = || heed(SESSION, wanted(flow, "r", 2));
        let mut sender = sender(flow, 2, 2);
        let asked = sender.on(want()).unwrap();
        assert!(matches!(asked[..], [Action::Report(Report::Asked { .. })]), "{asked:?}");
        let before = sender.clone();
        assert_eq!((sender.on(want()).unwrap(), sender == before), (vec![], true));
        let offer = SenderEvent::Offer { peer: A, request: name("r"), chunks: chunks(2), lease: None };
        sender.on(offer).unwrap();
        assert!(sender.progress(A, &name("r")).unwrap().begun);
        let before = sender.clone();
        assert_eq!((sender.on(want()).unwrap(), sender == before), (vec![], true));
    });
}

/// Who issues the transfers is agreed when connecting; a request that goes by another way would wait for what never comes.
#[test]
fn a_request_that_goes_another_way_than_its_session_is_refused() {
    for (flow, other) in [(Flow::Push, Flow::Pull), (Flow::Pull, Flow::Push)] {
        for offered in [false, true] {
            let mut sender = sender(flow, 2, 2);
            if offered {
                offer(&mut sender, "r", 1);
            }
            let refused = sender.on(heed(SESSION, wanted(other, "r", 1))).unwrap();
            assert_eq!(refused.len(), 1, "{refused:?}");
            assert_eq!(said(&refused), [abort(0, Role::Sender, false, Reason::Mismatch)]);
            assert!(!sender.is_asked(A, &name("r")));
            // What is offered waits for a request that goes the session's way.
            let offered_still = sender.progress(A, &name("r")).map(|progress| progress.begun);
            assert_eq!(offered_still, offered.then_some(false));
        }
    }
}

/// A request that was refused does not begin when its `want` comes once more: the peer missed the refusal.
#[test]
fn a_want_heard_after_the_refusal_is_refused_again() {
    both(|flow| {
        let mut sender = sender(flow, 2, 2);
        sender.on(heed(SESSION, wanted(flow, "r", 1))).unwrap();
        let refused = sender.on(SenderEvent::Withdraw { peer: A, request: name("r") }).unwrap();
        assert_eq!(said(&refused), [abort(0, Role::Sender, false, Reason::Cancelled)]);
        assert_eq!(sender.on(heed(SESSION, wanted(flow, "r", 1))).unwrap(), refused);
        assert!(!sender.is_asked(A, &name("r")));
    });
}

/// What ended is remembered as far as the peer may still ask for it, and a peer that ends what it may not have open fills nothing.
#[test]
fn an_end_of_what_cannot_be_open_is_answered_and_not_remembered() {
    both(|flow| {
        // Four requests at most, so the first ticket that cannot be open is 4.
        for (ticket, remembered) in [(3, true), (4, false), (u64::MAX, false)] {
            let mut sender = sender(flow, 2, 2);
            let before = sender.clone();
            let heard = sender.on(heed(SESSION, abort(ticket, Role::Receiver, false, Reason::Deadline))).unwrap();
            assert_eq!(said(&heard), [abort(ticket, Role::Sender, true, Reason::Deadline)]);
            assert_eq!(sender != before, remembered, "ticket {ticket}");
        }
    });
}
