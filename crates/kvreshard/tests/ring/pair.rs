//! A receiver and a sender on a network without faults.
#![allow(unreachable_pub, reason = "one module of the tests, used by the others")]

use std::collections::VecDeque;

use kvreshard::ring::{
    Action, Chunks, Config, Flow, Pages, Peer, Reason, Receiver, ReceiverEvent, Report, RequestName, Role, Sender,
    SenderEvent, Session,
};

pub const SLOT: u64 = 4096;
pub const A: Peer = Peer(1);
pub const B: Peer = Peer(2);

pub fn config(slots: u32, minimum: u32) -> Config {
    Config { slots, slot_bytes: SLOT, minimum, requests: 4, resend: 2 }
}

pub fn name(text: &str) -> RequestName {
    RequestName::new(text).unwrap()
}

pub fn chunks(count: u64) -> Chunks {
    Chunks::new(count * SLOT, SLOT).unwrap()
}

/// A receiver and a sender on a network without faults, on which kernels and transfers end at once. Each is `A` to the other.
pub struct Pair {
    pub receiver: Receiver,
    pub sender: Sender,
    pub flow: Flow,
    pub reports: Vec<(Role, Report)>,
    /// Bytes of every chunk scattered, in order.
    pub scattered: Vec<(RequestName, u32, u64)>,
    /// Whether kernels and transfers of the sender stay under way.
    pub stalled: bool,
}

impl Pair {
    pub fn new(flow: Flow, ring: Config, staging: Config) -> Self {
        let (receiver, sender) = (Receiver::new(ring, 10).unwrap(), Sender::new(staging, 20).unwrap());
        let mut pair = Self { receiver, sender, flow, reports: Vec::new(), scattered: Vec::new(), stalled: false };
        pair.connect(ring.slots, staging.slots);
        pair
    }

    pub fn connect(&mut self, ring: u32, staging: u32) {
        let session = Session { receiver: self.receiver.epoch(), sender: self.sender.epoch() };
        let flow = self.flow;
        self.receiver.on(ReceiverEvent::PeerUp { peer: A, session, flow, slots: staging }).unwrap();
        self.sender.on(SenderEvent::PeerUp { peer: A, session, flow, slots: ring }).unwrap();
    }

    pub fn want(&mut self, request: &str, count: u64) {
        let event = ReceiverEvent::Want { peer: A, request: name(request), chunks: chunks(count), deadline: None };
        self.receive(event);
    }

    pub fn offer(&mut self, request: &str, count: u64, lease: Option<u32>) {
        self.send(SenderEvent::Offer { peer: A, request: name(request), chunks: chunks(count), lease });
    }

    pub fn receive(&mut self, event: ReceiverEvent) {
        let actions = self.receiver.on(event).unwrap();
        self.run(Role::Receiver, actions);
    }

    pub fn send(&mut self, event: SenderEvent) {
        let actions = self.sender.on(event).unwrap();
        self.run(Role::Sender, actions);
    }

    pub fn run(&mut self, role: Role, actions: Vec<Action>) {
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

    pub fn finished(&self, request: &str) -> usize {
        let is = |report: &Report| matches!(report, Report::Finished(key) if key.request == name(request));
        self.reports.iter().filter(|(_, report)| is(report)).count()
    }

    pub fn failed(&self, role: Role) -> Vec<(Reason, bool, Pages)> {
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

pub fn both(test: impl Fn(Flow)) {
    test(Flow::Push);
    test(Flow::Pull);
}
