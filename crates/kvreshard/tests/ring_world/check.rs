//! What must hold in every state, and which states are the end.

use kvreshard::ring::{Message, Peer, ReceiverEvent, SenderEvent, State};

use super::host::Checked;
use super::{Budget, Life, Node, Op, Place, Setup, World};

impl World {
    /// Nobody touches a slot that someone else owns.
    pub fn check(&self, setup: &Setup) -> Checked {
        for &op in &self.ops {
            let (mine, state) = match op {
                Op::Gather { slot, .. } => (slot, State::Gathering),
                Op::Write { slot, .. } => (slot, State::Writing),
                Op::Read { slot, .. } => (slot, State::Reading),
                Op::Scatter { slot, .. } => (slot, State::Scattering),
            };
            let found = self.state(op.node(), mine.slot).0;
            if found != state {
                return Err(format!("{op:?} is under way, and its own slot is {found}"));
            }
            match op {
                Op::Write { sender, receiver, remote, generation, .. } => {
                    self.owned_by(op, Node::Receiver(receiver), (remote, generation), State::Granted, sender)?;
                }
                Op::Read { receiver, sender, remote, generation, .. } => {
                    self.owned_by(op, Node::Sender(sender), (remote, generation), State::Ready, receiver)?;
                }
                Op::Gather { job, .. } if !matches!(self.lives[job].1, Life::Open | Life::Held) => {
                    return Err(format!("{op:?} reads pages that were given back"));
                }
                Op::Scatter { job, .. } if !matches!(self.lives[job].0, Life::Open | Life::Held) => {
                    return Err(format!("{op:?} writes pages that were given back"));
                }
                _ => {}
            }
        }
        for node in self.nodes().filter(|&node| self.alive(node)) {
            self.check_slots(node)?;
            self.check_quarantine(setup, node)?;
            self.check_minimum(setup, node)?;
        }
        Ok(())
    }

    fn state(&self, node: Node, slot: u32) -> (State, u64) {
        match node {
            Node::Receiver(at) => self.receivers[at].slot(slot).unwrap(),
            Node::Sender(at) => self.senders[at].slot(slot).unwrap(),
        }
    }

    fn owned_by(&self, op: Op, node: Node, (remote, used): (Place, u64), state: State, peer: usize) -> Checked {
        if remote.memory != self.memory(node) {
            // Memory that is no ring any more is nobody else's either.
            return Ok(());
        }
        let (found, generation) = self.state(node, remote.slot);
        let user = match node {
            Node::Receiver(at) => self.receivers[at].user(remote.slot),
            Node::Sender(at) => self.senders[at].user(remote.slot),
        };
        let its = generation == used && user.is_some_and(|user| user.0 as usize == peer);
        if its && (found == state || found == State::Quarantined) {
            return Ok(());
        }
        Err(format!("{op:?} is under way, and slot {} of {node:?} is {found}, generation {generation}", remote.slot))
    }

    /// Every slot that something is under way for has it.
    fn check_slots(&self, node: Node) -> Checked {
        for (at, state, ..) in self.slots(node) {
            let busy = matches!(state, State::Gathering | State::Writing | State::Reading | State::Scattering);
            let ops = self.ops.iter().filter(|op| {
                let (Op::Gather { slot, .. }
                | Op::Write { slot, .. }
                | Op::Read { slot, .. }
                | Op::Scatter { slot, .. }) = op;
                op.node() == node && slot.slot == at
            });
            if ops.count() != usize::from(busy) {
                return Err(format!("slot {at} of {node:?} is {state}, and that is not what is under way"));
            }
        }
        Ok(())
    }

    /// Only slots of lost peers are in quarantine, and no slot of a lost peer is left to it otherwise. Where peers come back, whom a
    /// slot belongs to does not tell.
    fn check_quarantine(&self, setup: &Setup, node: Node) -> Checked {
        for (at, state, _, user) in self.slots(node) {
            let linked = user.is_some_and(|user| self.linked.contains_key(&(node, user.0 as usize)));
            let wrong = match state {
                State::Quarantined => linked && setup.budget.reconnects == 0,
                State::Granted | State::Ready => !linked,
                _ => false,
            };
            if wrong {
                return Err(format!("slot {at} of {node:?} is {state}, in use for {user:?}"));
            }
        }
        Ok(())
    }

    /// New memory is nobody's: what may be touched from outside was in the old one.
    pub fn check_registered(&self, node: Node) -> Checked {
        let outside = |state| matches!(state, State::Granted | State::Ready | State::Quarantined);
        match self.slots(node).into_iter().find(|&(_, state, ..)| outside(state)) {
            Some(slot) => Err(format!("{slot:?} of {node:?} after its ring was registered anew")),
            None => Ok(()),
        }
    }

    /// What a lost peer says of a slot ends its quarantine.
    pub fn check_answered(&self, node: Node, from: Peer, message: &Message) -> Checked {
        let (Message::Shipped { at: said, .. } | Message::Returned { at: said } | Message::Consumed { at: said }) =
            message
        else {
            return Ok(());
        };
        // A sender's words are of the receiver's slots when it writes, and of its own when the receiver reads.
        match self.slots(node).get(said.slot as usize) {
            Some(&(at, State::Quarantined, generation, user))
                if generation == said.generation && user == Some(from) =>
            {
                Err(format!("slot {at} of {node:?} is in quarantine, and {from} said {message:?}"))
            }
            _ => Ok(()),
        }
    }

    /// What is free serves the minimum of every connected peer. A peer that came back may find its share in use for others' work
    /// that was begun before, so worlds that reconnect or register anew are not held to it.
    fn check_minimum(&self, setup: &Setup, node: Node) -> Checked {
        if setup.budget.reconnects > 0 || setup.budget.rings_registered > 0 || setup.budget.stagings_registered > 0 {
            return Ok(());
        }
        let minimum = if matches!(node, Node::Receiver(_)) { setup.ring.minimum } else { setup.staging.minimum };
        let slots = self.slots(node);
        let free = slots.iter().filter(|(_, state, ..)| *state == State::Free).count();
        let owed = self.linked.keys().filter(|(of, _)| *of == node).map(|&(_, peer)| {
            let held = slots.iter().filter(|(.., user)| user.is_some_and(|user| user.0 as usize == peer)).count();
            (minimum as usize).saturating_sub(held)
        });
        if free < owed.sum() {
            return Err(format!("{node:?} has {free} free slots, too few for what it promised"));
        }
        Ok(())
    }

    /// Whether all is over: every request has ended, every slot of a living process is free, and nobody has anything left to say.
    /// Slots that a dead peer may still touch stay in quarantine until the host knows better.
    pub fn settled(&self, setup: &Setup) -> bool {
        let Budget { drops, doubles, early_ticks, .. } = setup.budget;
        // Where nothing worse happens than a bad network, every request is served.
        let kind = setup.budget == Budget { drops, doubles, early_ticks, ..Budget::default() };
        let ended = |life: Life, linked: bool| match life {
            Life::Before => !linked,
            Life::Open | Life::Held => false,
            Life::Finished => true,
            Life::Failed => !kind,
        };
        let requests = setup.jobs.iter().zip(&self.lives).all(|(job, &(here, there, _))| {
            let (receiver, sender) = (Node::Receiver(job.receiver), Node::Sender(job.sender));
            let here = ended(here, self.linked.contains_key(&(receiver, job.sender)));
            let there = ended(there, self.linked.contains_key(&(sender, job.receiver)));
            (here || !self.alive(receiver)) && (there || !self.alive(sender))
        });
        let free = |node| self.slots(node).iter().all(|&(_, state, ..)| state == State::Free);
        requests && self.nodes().filter(|&node| self.alive(node)).all(|node| free(node) && self.is_quiet(setup, node))
    }

    /// Whether a node says nothing more by itself, however long nobody says anything to it.
    fn is_quiet(&self, setup: &Setup, node: Node) -> bool {
        match node {
            Node::Receiver(at) => {
                let mut receiver = self.receivers[at].clone();
                (0..setup.ring.resend).all(|_| receiver.on(ReceiverEvent::Tick).unwrap().is_empty())
            }
            Node::Sender(at) => {
                let mut sender = self.senders[at].clone();
                (0..setup.staging.resend).all(|_| sender.on(SenderEvent::Tick).unwrap().is_empty())
            }
        }
    }
}
