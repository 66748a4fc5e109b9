//! What may happen next.

use kvreshard::ring::{ReceiverEvent, SenderEvent, State};

use super::host::peer;
use super::{Job, Life, Move, Node, Setup, World, name};

impl Move {
    /// Whether a world that means well lets it happen sooner or later.
    pub fn is_fair(&self, world: &World) -> bool {
        match *self {
            Self::Want(_) | Self::Offer(_) | Self::Refuse(_) | Self::Deliver(_) | Self::End(_, true) => true,
            Self::Up(..) | Self::Gone(..) => true,
            Self::Tick(_) => world.packets.is_empty(),
            // A dead peer is noticed, and so is one that has ended the session.
            Self::Down(node, at) => world.ended_there(node, at),
            _ => false,
        }
    }
}

impl Setup {
    /// Whether all requests of one pair may be open at a time.
    fn are_few(&self, job: usize) -> bool {
        let pair = |job: &Job| (job.receiver, job.sender);
        self.jobs.iter().filter(|other| pair(other) == pair(&self.jobs[job])).count() <= self.ring.requests as usize
    }
}

impl World {
    /// Whether the other side of a session is dead or has ended it.
    pub(super) fn ended_there(&self, node: Node, at: usize) -> bool {
        let other = Self::other(node, at);
        let back = (other, Self::node_index(node));
        !self.alive(other) || (!self.linked.contains_key(&back) && !self.invited.contains_key(&back))
    }

    /// Whether the receiver may open another request with the sender; if not, its host waits.
    fn has_room(&self, setup: &Setup, job: usize) -> bool {
        let Job { receiver, sender, .. } = setup.jobs[job];
        let (peer, request, chunks) = (peer(sender), name(job), setup.chunks(job));
        let event = ReceiverEvent::Want { peer, request, chunks, deadline: None };
        setup.are_few(job) || self.receivers[receiver].clone().on(event).is_ok()
    }

    /// Whether the sender may offer another request to the receiver; if not, its host waits.
    fn has_room_to_offer(&self, setup: &Setup, job: usize) -> bool {
        let Job { receiver, sender, .. } = setup.jobs[job];
        let (peer, request, chunks) = (peer(receiver), name(job), setup.chunks(job));
        let event = SenderEvent::Offer { peer, request, chunks, lease: None };
        setup.are_few(job) || self.senders[sender].clone().on(event).is_ok()
    }

    /// Whether only one side of a request still waits: the sender with an offer, of which the receiver wants nothing any more, or
    /// the receiver, for what the sender will not offer again.
    fn is_forlorn(&self, at: usize, job: &Job) -> bool {
        let (sender, receiver) = (&self.senders[job.sender], peer(job.receiver));
        match self.lives[at] {
            (Life::Before, Life::Open, _) => !self.linked.contains_key(&(Node::Receiver(job.receiver), job.sender)),
            (Life::Held | Life::Failed, Life::Open, _) => {
                sender.progress(receiver, &name(at)).is_some_and(|progress| !progress.begun)
            }
            (_, Life::Held | Life::Failed, _) => sender.is_asked(receiver, &name(at)),
            _ => false,
        }
    }

    /// Everything that may happen next.
    pub fn moves(&self, setup: &Setup) -> Vec<Move> {
        let mut moves = Vec::new();
        let budget = &self.budget;
        for (at, packet) in self.packets.iter().enumerate() {
            if at > 0 && self.packets[at - 1] == *packet {
                continue;
            }
            moves.push(Move::Deliver(at));
            if !setup.sticky {
                if budget.drops > 0 {
                    moves.push(Move::Drop(at));
                }
                if budget.doubles > 0 {
                    moves.push(Move::Double(at));
                }
            }
        }
        for &op in &self.ops {
            moves.push(Move::End(op, true));
            if budget.failures > 0 && self.alive(op.node()) {
                moves.push(Move::End(op, false));
            }
        }
        for (at, job) in setup.jobs.iter().enumerate() {
            let (receiver, sender) = (Node::Receiver(job.receiver), Node::Sender(job.sender));
            let (here, there, _) = self.lives[at];
            if self.alive(receiver) {
                if here == Life::Before && self.linked.contains_key(&(receiver, job.sender)) && self.has_room(setup, at)
                {
                    moves.push(Move::Want(at));
                }
                if here == Life::Open && budget.cancels > 0 {
                    moves.push(Move::Cancel(at));
                }
            }
            if self.alive(sender) {
                if there == Life::Before
                    && self.linked.contains_key(&(sender, job.receiver))
                    && self.has_room_to_offer(setup, at)
                {
                    moves.push(Move::Offer(at));
                }
                if there == Life::Open && budget.withdrawals > 0 {
                    moves.push(Move::Withdraw(at));
                }
                if self.is_forlorn(at, job) {
                    moves.push(Move::Refuse(at));
                }
            }
        }
        for node in self.nodes().filter(|&node| self.alive(node)) {
            let (killed, suspected, registered) = match node {
                Node::Receiver(_) => (budget.receivers_killed, budget.senders_suspected, budget.rings_registered),
                Node::Sender(_) => (budget.senders_killed, budget.receivers_suspected, budget.stagings_registered),
            };
            if self.packets.is_empty() || budget.early_ticks > 0 {
                moves.push(Move::Tick(node));
            }
            if killed > 0 {
                moves.push(Move::Kill(node));
            }
            if registered > 0 {
                moves.push(Move::Register(node));
            }
            for &(_, at) in self.linked.keys().filter(|(of, _)| *of == node) {
                if suspected > 0 || self.ended_there(node, at) {
                    moves.push(Move::Down(node, at));
                }
            }
            for &(_, at) in self.invited.keys().filter(|(of, _)| *of == node) {
                moves.push(Move::Up(node, at));
            }
            for (_, state, _, user) in self.slots(node) {
                let Some(at) = user.map(|peer| peer.0 as usize).filter(|_| state == State::Quarantined) else {
                    continue;
                };
                let gone = Move::Gone(node, at);
                // Known only of a dead process of which nothing moves any more.
                let moving = self.ops.iter().any(|op| op.node() == Self::other(node, at));
                if !self.alive(Self::other(node, at)) && !moving && !moves.contains(&gone) {
                    moves.push(gone);
                }
            }
        }
        if budget.reconnects > 0 {
            for receiver in 0..self.receivers.len() {
                for sender in 0..self.senders.len() {
                    let both = [(Node::Receiver(receiver), sender), (Node::Sender(sender), receiver)];
                    let free = |side: &(Node, usize)| {
                        self.alive(side.0) && !self.linked.contains_key(side) && !self.invited.contains_key(side)
                    };
                    if both.iter().all(free) {
                        moves.push(Move::Invite(receiver, sender));
                    }
                }
            }
        }
        moves
    }
}
