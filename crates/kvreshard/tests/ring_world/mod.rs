//! A world for the ring protocol: receivers, senders, a network that loses, delays, doubles and reorders, NIXL transfers that go on
//! when their process stops, and memory whose content is followed chunk by chunk.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    missing_docs,
    unreachable_pub
)]

pub mod check;
pub mod explore;
pub mod host;
pub mod moves;
pub mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kvreshard::ring::{Chunks, Config, Flow, Frame, Peer, Receiver, RequestName, Role, Rules, Sender, Session, State};

/// One request of the world: between which two, and how many chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job {
    pub receiver: usize,
    pub sender: usize,
    pub chunks: u64,
}

/// How often each unkind thing may happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub drops: u8,
    pub doubles: u8,
    pub receivers_killed: u8,
    pub senders_killed: u8,
    /// A receiver takes a living sender for dead.
    pub senders_suspected: u8,
    /// A sender takes a living receiver for dead.
    pub receivers_suspected: u8,
    pub cancels: u8,
    pub withdrawals: u8,
    /// Transfers and kernels that fail.
    pub failures: u8,
    pub reconnects: u8,
    pub rings_registered: u8,
    pub stagings_registered: u8,
    /// Ticks while messages are under way.
    pub early_ticks: u8,
}

/// What does not change.
#[derive(Debug, Clone)]
pub struct Setup {
    pub flow: Flow,
    pub receivers: usize,
    pub senders: usize,
    pub ring: Config,
    pub staging: Config,
    pub jobs: Vec<Job>,
    pub rules: Rules,
    /// Whether every message that was ever sent may arrive at any time, any number of times.
    pub sticky: bool,
    pub budget: Budget,
}

pub const CHUNK: u64 = 64;

pub fn config(slots: u32, minimum: u32) -> Config {
    Config { slots, slot_bytes: CHUNK, minimum, requests: 4, resend: 1 }
}

impl Setup {
    pub fn new(flow: Flow, receivers: usize, senders: usize, slots: (u32, u32), jobs: &[(usize, usize, u64)]) -> Self {
        let jobs = jobs.iter().map(|&(receiver, sender, chunks)| Job { receiver, sender, chunks }).collect();
        Self {
            flow,
            receivers,
            senders,
            ring: config(slots.0, 1),
            staging: config(slots.1, 1),
            jobs,
            rules: Rules::default(),
            sticky: false,
            budget: Budget::default(),
        }
    }

    pub fn with(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    pub fn sticky(mut self, budget: Budget) -> Self {
        self.sticky = true;
        self.budget = budget;
        self
    }

    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }
}

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    Receiver(usize),
    Sender(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    pub from: Node,
    pub to: Node,
    pub frame: Frame,
}

/// A slot in one of the memories that its ring was registered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub memory: usize,
    pub slot: u32,
}

/// Something that a host was asked to start and that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    Gather { sender: usize, slot: Place, job: usize, sequence: u32 },
    Write { sender: usize, slot: Place, receiver: usize, remote: Place, generation: u64 },
    Read { receiver: usize, slot: Place, sender: usize, remote: Place, generation: u64 },
    Scatter { receiver: usize, slot: Place, job: usize, sequence: u32 },
}

impl Op {
    pub fn node(self) -> Node {
        match self {
            Self::Gather { sender, .. } | Self::Write { sender, .. } => Node::Sender(sender),
            Self::Read { receiver, .. } | Self::Scatter { receiver, .. } => Node::Receiver(receiver),
        }
    }
}

/// What lies in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    Junk,
    Chunk { job: usize, sequence: u32 },
}

/// A request on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    Before,
    Open,
    Finished,
    Held,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub receivers: Vec<Receiver>,
    pub senders: Vec<Sender>,
    pub dead: BTreeSet<Node>,
    /// Sessions that a side has not ended: who, with whom; and the peer's memory that it knows.
    pub linked: BTreeMap<(Node, usize), usize>,
    /// A handshake is done, and the side has not taken notice yet.
    pub invited: BTreeMap<(Node, usize), (Session, usize)>,
    pub packets: Vec<Packet>,
    pub ops: Vec<Op>,
    /// Content of each slot, in every memory that the ring was registered in; the last is the present one.
    pub rings: Vec<Vec<Vec<Content>>>,
    pub stagings: Vec<Vec<Vec<Content>>>,
    /// Each job on the receiver, on the sender, and the chunks scattered.
    pub lives: Vec<(Life, Life, u32)>,
    pub budget: Budget,
}

/// One step of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    Want(usize),
    Offer(usize),
    Deliver(usize),
    Double(usize),
    Drop(usize),
    End(Op, bool),
    Tick(Node),
    Kill(Node),
    /// A side ends its session with a peer.
    Down(Node, usize),
    Gone(Node, usize),
    Invite(usize, usize),
    Up(Node, usize),
    Cancel(usize),
    Withdraw(usize),
    /// The sender's host gives up an offer that nobody will ask for, or refuses a request that it will not offer.
    Refuse(usize),
    Register(Node),
}

pub fn name(job: usize) -> RequestName {
    RequestName::new(&format!("r{job}")).unwrap()
}

pub fn job_of(request: &RequestName) -> usize {
    request.as_str()[1..].parse().unwrap()
}

impl Setup {
    pub fn chunks(&self, job: usize) -> Chunks {
        Chunks::new(self.jobs[job].chunks * CHUNK, CHUNK).unwrap()
    }

    pub fn start(self: &Rc<Self>) -> World {
        let receivers: Vec<_> =
            (0..self.receivers).map(|_| Receiver::with_rules(self.ring, 100, self.rules.clone()).unwrap()).collect();
        let senders: Vec<_> =
            (0..self.senders).map(|_| Sender::with_rules(self.staging, 500, self.rules.clone()).unwrap()).collect();
        let memory = |slots: u32| vec![vec![Content::Junk; slots as usize]];
        let mut world = World {
            receivers,
            senders,
            dead: BTreeSet::new(),
            linked: BTreeMap::new(),
            invited: BTreeMap::new(),
            packets: Vec::new(),
            ops: Vec::new(),
            rings: vec![memory(self.ring.slots); self.receivers],
            stagings: vec![memory(self.staging.slots); self.senders],
            lives: vec![(Life::Before, Life::Before, 0); self.jobs.len()],
            budget: self.budget,
        };
        for receiver in 0..self.receivers {
            for sender in 0..self.senders {
                if self.jobs.iter().any(|job| (job.receiver, job.sender) == (receiver, sender)) {
                    world.invite(receiver, sender);
                    world.up(self, Node::Receiver(receiver), sender).unwrap();
                    world.up(self, Node::Sender(sender), receiver).unwrap();
                }
            }
        }
        world
    }
}

impl World {
    pub fn alive(&self, node: Node) -> bool {
        !self.dead.contains(&node)
    }

    /// Who `peer` is to `node`.
    pub fn other(node: Node, peer: usize) -> Node {
        match node {
            Node::Receiver(_) => Node::Sender(peer),
            Node::Sender(_) => Node::Receiver(peer),
        }
    }

    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.receivers.len()).map(Node::Receiver).chain((0..self.senders.len()).map(Node::Sender))
    }

    pub fn content(&mut self, node: Node, at: Place) -> &mut Content {
        let memories = match node {
            Node::Receiver(of) => &mut self.rings[of],
            Node::Sender(of) => &mut self.stagings[of],
        };
        &mut memories[at.memory][at.slot as usize]
    }

    /// The present memory of a ring.
    pub fn memory(&self, node: Node) -> usize {
        match node {
            Node::Receiver(of) => self.rings[of].len() - 1,
            Node::Sender(of) => self.stagings[of].len() - 1,
        }
    }

    pub fn slots(&self, node: Node) -> Vec<(u32, State, u64, Option<Peer>)> {
        let of = |state: &dyn Fn(u32) -> Option<(State, u64)>, user: &dyn Fn(u32) -> Option<Peer>| {
            (0..).map_while(|at| state(at).map(|(state, generation)| (at, state, generation, user(at)))).collect()
        };
        match node {
            Node::Receiver(at) => of(&|slot| self.receivers[at].slot(slot), &|slot| self.receivers[at].user(slot)),
            Node::Sender(at) => of(&|slot| self.senders[at].slot(slot), &|slot| self.senders[at].user(slot)),
        }
    }

    fn node_index(node: Node) -> usize {
        match node {
            Node::Receiver(at) | Node::Sender(at) => at,
        }
    }

    pub fn role(node: Node) -> Role {
        match node {
            Node::Receiver(_) => Role::Receiver,
            Node::Sender(_) => Role::Sender,
        }
    }
}
