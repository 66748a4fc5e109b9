//! A receiver or a sender alone, and what its peer `A` says to it.
#![allow(unreachable_pub, reason = "one module of the tests, used by the others")]

use super::pair::{A, chunks, config, name};
use kvreshard::ring::{Action, Flow, Frame, Message, Receiver, ReceiverEvent, Sender, SenderEvent, Session, SlotUse};

pub const SESSION: Session = Session { receiver: 10, sender: 20 };

pub fn at(slot: u32, generation: u64) -> SlotUse {
    SlotUse { slot, generation }
}

/// What is said, without what else is done.
pub fn said(actions: &[Action]) -> Vec<Message> {
    let of = |action: &Action| match action {
        Action::Send { frame, .. } => Some(frame.message.clone()),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

pub fn receiver(flow: Flow, slots: u32, remote_slots: u32) -> Receiver {
    let mut receiver = Receiver::new(config(slots, 1), SESSION.receiver).unwrap();
    receiver.on(ReceiverEvent::PeerUp { peer: A, session: SESSION, flow, slots: remote_slots }).unwrap();
    receiver
}

pub fn sender(flow: Flow, slots: u32, remote_slots: u32) -> Sender {
    let mut sender = Sender::new(config(slots, 1), SESSION.sender).unwrap();
    sender.on(SenderEvent::PeerUp { peer: A, session: SESSION, flow, slots: remote_slots }).unwrap();
    sender
}

pub fn want(request: &str, count: u64) -> ReceiverEvent {
    ReceiverEvent::Want { peer: A, request: name(request), chunks: chunks(count), deadline: None }
}

pub fn hear(session: Session, message: Message) -> ReceiverEvent {
    ReceiverEvent::Message { peer: A, frame: Frame { session, message } }
}

pub fn heed(session: Session, message: Message) -> SenderEvent {
    SenderEvent::Message { peer: A, frame: Frame { session, message } }
}
