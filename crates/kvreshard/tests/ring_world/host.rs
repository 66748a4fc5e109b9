//! What a move does: the part of a host.

use std::rc::Rc;

use kvreshard::ring::{Action, Pages, Peer, ReceiverEvent, Report, RequestKey, SenderEvent, Session};

use super::{Content, Life, Move, Node, Op, Packet, Place, Setup, World, job_of, name};

/// What a checker calls a violation.
pub type Checked = Result<(), String>;

pub(super) fn peer(at: usize) -> Peer {
    Peer(at as u32)
}

impl World {
    /// Makes a move. `Err` is a violation.
    pub fn apply(&mut self, setup: &Rc<Setup>, next: &Move) -> Checked {
        match *next {
            Move::Want(job) => {
                self.lives[job].0 = Life::Open;
                let at = setup.jobs[job];
                let chunks = setup.chunks(job);
                let (peer, request) = (peer(at.sender), name(job));
                self.receive(setup, at.receiver, ReceiverEvent::Want { peer, request, chunks, deadline: None })?;
            }
            Move::Offer(job) => {
                self.lives[job].1 = Life::Open;
                let at = setup.jobs[job];
                let chunks = setup.chunks(job);
                let event = SenderEvent::Offer { peer: peer(at.receiver), request: name(job), chunks, lease: None };
                self.send(setup, at.sender, event)?;
            }
            Move::Deliver(at) => {
                let packet = if setup.sticky { self.packets[at].clone() } else { self.packets.remove(at) };
                self.deliver(setup, packet)?;
            }
            Move::Double(at) => {
                self.budget.doubles -= 1;
                let packet = self.packets[at].clone();
                self.deliver(setup, packet)?;
            }
            Move::Drop(at) => {
                self.budget.drops -= 1;
                self.packets.remove(at);
            }
            Move::End(op, ok) => self.end(setup, op, ok)?,
            Move::Tick(node) => {
                if !self.packets.is_empty() {
                    self.budget.early_ticks -= 1;
                }
                match node {
                    Node::Receiver(at) => self.receive(setup, at, ReceiverEvent::Tick)?,
                    Node::Sender(at) => self.send(setup, at, SenderEvent::Tick)?,
                }
            }
            Move::Kill(node) => {
                match node {
                    Node::Receiver(_) => self.budget.receivers_killed -= 1,
                    Node::Sender(_) => self.budget.senders_killed -= 1,
                }
                self.dead.insert(node);
                self.packets.retain(|packet| packet.to != node);
                // Kernels and reads stop with their process; a write that the network card has begun does not.
                self.ops.retain(|op| op.node() != node || matches!(op, Op::Write { .. } | Op::Read { .. }));
            }
            Move::Down(node, at) => {
                if !self.ended_there(node, at) {
                    match node {
                        Node::Receiver(_) => self.budget.senders_suspected -= 1,
                        Node::Sender(_) => self.budget.receivers_suspected -= 1,
                    }
                }
                self.linked.remove(&(node, at));
                match node {
                    Node::Receiver(of) => self.receive(setup, of, ReceiverEvent::PeerDown { peer: peer(at) })?,
                    Node::Sender(of) => self.send(setup, of, SenderEvent::PeerDown { peer: peer(at) })?,
                }
            }
            Move::Gone(node, at) => match node {
                Node::Receiver(of) => self.receive(setup, of, ReceiverEvent::WriterGone { peer: peer(at) })?,
                Node::Sender(of) => self.send(setup, of, SenderEvent::ReaderGone { peer: peer(at) })?,
            },
            Move::Invite(receiver, sender) => {
                self.budget.reconnects -= 1;
                self.invite(receiver, sender);
            }
            Move::Up(node, at) => self.up(setup, node, at)?,
            Move::Cancel(job) => {
                self.budget.cancels -= 1;
                let at = setup.jobs[job];
                let event = ReceiverEvent::Cancel { peer: peer(at.sender), request: name(job) };
                self.receive(setup, at.receiver, event)?;
            }
            Move::Withdraw(job) => {
                self.budget.withdrawals -= 1;
                let at = setup.jobs[job];
                let event = SenderEvent::Withdraw { peer: peer(at.receiver), request: name(job) };
                self.send(setup, at.sender, event)?;
            }
            Move::Refuse(job) => {
                let at = setup.jobs[job];
                let event = SenderEvent::Withdraw { peer: peer(at.receiver), request: name(job) };
                self.send(setup, at.sender, event)?;
            }
            Move::Register(node) => {
                self.linked.retain(|(of, _), _| *of != node);
                self.invited.retain(|(of, _), _| *of != node);
                match node {
                    Node::Receiver(at) => {
                        self.budget.rings_registered -= 1;
                        self.rings[at].push(vec![Content::Junk; setup.ring.slots as usize]);
                        self.receive(setup, at, ReceiverEvent::Registered)?;
                    }
                    Node::Sender(at) => {
                        self.budget.stagings_registered -= 1;
                        self.stagings[at].push(vec![Content::Junk; setup.staging.slots as usize]);
                        self.send(setup, at, SenderEvent::Registered)?;
                    }
                }
                self.check_registered(node)?;
            }
        }
        self.check(setup)
    }

    pub(super) fn invite(&mut self, receiver: usize, sender: usize) {
        let session = Session { receiver: self.receivers[receiver].epoch(), sender: self.senders[sender].epoch() };
        let (ring, staging) = (self.memory(Node::Receiver(receiver)), self.memory(Node::Sender(sender)));
        self.invited.insert((Node::Receiver(receiver), sender), (session, staging));
        self.invited.insert((Node::Sender(sender), receiver), (session, ring));
    }

    pub(super) fn up(&mut self, setup: &Rc<Setup>, node: Node, at: usize) -> Checked {
        let Some((session, memory)) = self.invited.remove(&(node, at)) else { return Ok(()) };
        let flow = setup.flow;
        let (stale, full) = match node {
            Node::Receiver(of) => {
                let event = ReceiverEvent::PeerUp { peer: peer(at), session, flow, slots: setup.staging.slots };
                (session.receiver != self.receivers[of].epoch(), self.receivers[of].on(event).is_err())
            }
            Node::Sender(of) => {
                let event = SenderEvent::PeerUp { peer: peer(at), session, flow, slots: setup.ring.slots };
                (session.sender != self.senders[of].epoch(), self.senders[of].on(event).is_err())
            }
        };
        // An epoch that passed meanwhile, or a ring in quarantine, refuses it; the hosts would try again.
        if !stale && !full {
            self.linked.insert((node, at), memory);
        }
        Ok(())
    }

    fn deliver(&mut self, setup: &Rc<Setup>, Packet { from, to, frame }: Packet) -> Checked {
        if frame.message.to() != Self::role(to) {
            return Err(format!("{frame:?} goes to {to:?}"));
        }
        let (peer, message) = (peer(Self::node_index(from)), frame.message.clone());
        match to {
            Node::Receiver(at) => self.receive(setup, at, ReceiverEvent::Message { peer, frame })?,
            Node::Sender(at) => self.send(setup, at, SenderEvent::Message { peer, frame })?,
        }
        self.check_answered(to, peer, &message)
    }

    fn receive(&mut self, setup: &Rc<Setup>, at: usize, event: ReceiverEvent) -> Checked {
        let actions =
            self.receivers[at].on(event.clone()).map_err(|error| format!("receiver {at}, {event:?}: {error}"))?;
        self.act(setup, Node::Receiver(at), actions)
    }

    fn send(&mut self, setup: &Rc<Setup>, at: usize, event: SenderEvent) -> Checked {
        let actions = self.senders[at].on(event.clone()).map_err(|error| format!("sender {at}, {event:?}: {error}"))?;
        self.act(setup, Node::Sender(at), actions)
    }

    fn act(&mut self, setup: &Rc<Setup>, node: Node, actions: Vec<Action>) -> Checked {
        let me = Self::node_index(node);
        let memory = self.memory(node);
        for action in actions {
            let op = match action {
                Action::Send { peer, frame } => {
                    self.post(setup, node, peer, frame);
                    continue;
                }
                Action::Report(report) => {
                    self.report(setup, node, &report)?;
                    continue;
                }
                Action::Gather(piece) => {
                    let (slot, job) = (Place { memory, slot: piece.slot }, job_of(&piece.key.request));
                    *self.content(node, slot) = Content::Junk;
                    Op::Gather { sender: me, slot, job, sequence: piece.sequence }
                }
                Action::Scatter(piece) => {
                    let (slot, job) = (Place { memory, slot: piece.slot }, job_of(&piece.key.request));
                    self.expect_content(me, slot, job, piece.sequence)?;
                    Op::Scatter { receiver: me, slot, job, sequence: piece.sequence }
                }
                Action::Write(it) | Action::Read(it) => {
                    let at = it.peer.0 as usize;
                    let Some(&theirs) = self.linked.get(&(node, at)) else {
                        return Err(format!("{node:?} starts {it:?}, and has no session"));
                    };
                    let (slot, generation) = (Place { memory, slot: it.slot }, it.remote.generation);
                    let remote = Place { memory: theirs, slot: it.remote.slot };
                    match node {
                        Node::Sender(sender) => {
                            *self.content(Node::Receiver(at), remote) = Content::Junk;
                            Op::Write { sender, slot, receiver: at, remote, generation }
                        }
                        Node::Receiver(receiver) => {
                            *self.content(node, slot) = Content::Junk;
                            Op::Read { receiver, slot, sender: at, remote, generation }
                        }
                    }
                }
            };
            self.ops.push(op);
        }
        self.ops.sort_unstable();
        Ok(())
    }

    fn post(&mut self, setup: &Setup, from: Node, peer: Peer, frame: kvreshard::ring::Frame) {
        let to = Self::other(from, peer.0 as usize);
        if !self.alive(to) {
            return;
        }
        let packet = Packet { from, to, frame };
        let at = self.packets.partition_point(|other| *other < packet);
        if !setup.sticky || self.packets.get(at) != Some(&packet) {
            self.packets.insert(at, packet);
        }
    }

    fn end(&mut self, setup: &Rc<Setup>, op: Op, ok: bool) -> Checked {
        self.ops.retain(|other| *other != op);
        if !ok {
            self.budget.failures -= 1;
        }
        let alive = self.alive(op.node());
        match op {
            Op::Gather { sender, slot, job, sequence } => {
                *self.content(op.node(), slot) = if ok { Content::Chunk { job, sequence } } else { Content::Junk };
                self.send(setup, sender, SenderEvent::Gathered { slot: slot.slot, ok })
            }
            Op::Write { sender, slot, receiver, remote, .. } => {
                let content = *self.content(op.node(), slot);
                *self.content(Node::Receiver(receiver), remote) = if ok { content } else { Content::Junk };
                if alive { self.send(setup, sender, SenderEvent::WriteEnded { slot: slot.slot, ok }) } else { Ok(()) }
            }
            Op::Read { receiver, slot, sender, remote, .. } => {
                let content = *self.content(Node::Sender(sender), remote);
                *self.content(op.node(), slot) = if ok { content } else { Content::Junk };
                if alive {
                    self.receive(setup, receiver, ReceiverEvent::ReadEnded { slot: slot.slot, ok })
                } else {
                    Ok(())
                }
            }
            Op::Scatter { receiver, slot, job, sequence } => {
                self.expect_content(receiver, slot, job, sequence)?;
                if ok {
                    let bit = 1 << sequence;
                    if self.lives[job].2 & bit != 0 {
                        return Err(format!("chunk {sequence} of request {job} was scattered twice"));
                    }
                    self.lives[job].2 |= bit;
                }
                self.receive(setup, receiver, ReceiverEvent::Scattered { slot: slot.slot, ok })
            }
        }
    }

    fn expect_content(&mut self, receiver: usize, slot: Place, job: usize, sequence: u32) -> Checked {
        let found = *self.content(Node::Receiver(receiver), slot);
        if found == (Content::Chunk { job, sequence }) {
            return Ok(());
        }
        Err(format!("{slot:?} of receiver {receiver} holds {found:?}, scattered as chunk {sequence} of request {job}"))
    }

    fn report(&mut self, setup: &Setup, node: Node, report: &Report) -> Checked {
        let (key, after) = match report {
            Report::Asked { .. } => return Ok(()),
            Report::Finished(key) => (key, Life::Finished),
            Report::Failed { key, pages: Pages::Held, .. } => (key, Life::Held),
            Report::Failed { key, pages: Pages::Free, .. } => (key, Life::Failed),
            Report::Freed(key) => (key, Life::Failed),
        };
        let RequestKey { request, .. } = key;
        let job = job_of(request);
        let (here, there, chunks) = &mut self.lives[job];
        let life = if matches!(node, Node::Receiver(_)) { &mut *here } else { &mut *there };
        let before = if matches!(report, Report::Freed(_)) { Life::Held } else { Life::Open };
        if *life != before {
            return Err(format!("{node:?} reports {report:?} of a request that is {life:?}"));
        }
        *life = after;
        let all = (1 << setup.jobs[job].chunks) - 1;
        if after == Life::Finished {
            let whole = match node {
                Node::Receiver(_) => *chunks == all,
                // Unless the receiver takes it for lost; then another connection has to come before they agree again.
                Node::Sender(sender) => {
                    let receiver = Node::Receiver(setup.jobs[job].receiver);
                    *chunks == all || !self.linked.contains_key(&(receiver, sender))
                }
            };
            if !whole {
                return Err(format!("{node:?} finished request {job} with chunks {chunks:b}"));
            }
        }
        Ok(())
    }
}
