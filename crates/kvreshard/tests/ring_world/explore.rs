//! Every state of a world that can be reached, and whether it leads to the end.
//!
//! States are told apart by 128-bit fingerprints, so a whole state is kept only until its moves are known. Each state keeps the state
//! and the move that led to it; a trace is made by making the moves again.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::rc::Rc;

use super::{Move, Setup, World};

/// What an exploration found.
#[derive(Debug)]
pub struct Found {
    pub states: usize,
    pub steps: usize,
    /// States at the end: everything over, every slot free.
    pub ends: usize,
    /// The first fault, with the moves that lead to it.
    pub fault: Option<(String, Vec<Move>)>,
    /// Whether every state was visited.
    pub complete: bool,
}

/// Two multiply-and-fold hashes in one pass.
#[derive(Clone, Copy)]
struct Fingerprint(u64, u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f)
    }
}

impl Fingerprint {
    fn mix(&mut self, word: u64) {
        let fold = |value: u64, by: u64| {
            let product = u128::from(value) * u128::from(by);
            (product as u64) ^ ((product >> 64) as u64)
        };
        self.0 = fold(self.0 ^ word, 0xa076_1d64_78bd_642f).rotate_left(23);
        self.1 = fold(self.1.rotate_left(31) ^ word.wrapping_add(0x1656_67b1_9e37_79f9), 0xe703_7ed1_a0b4_28db);
    }

    fn of(world: &World) -> u128 {
        let mut hasher = Self::default();
        world.hash(&mut hasher);
        (u128::from(hasher.0) << 64) | u128::from(hasher.1)
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(u64::from_ne_bytes((value as i64).to_ne_bytes()));
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Known(u64);

impl Hasher for Known {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

/// Explores breadth first, `limit` states at most. Stops at the first fault; where all states were visited, looks for one from which
/// fair moves alone do not lead to the end.
pub fn explore(setup: Setup, limit: usize) -> Found {
    let setup = Rc::new(setup);
    let start = setup.start();
    let mut known: HashMap<u128, u32, BuildHasherDefault<Known>> = HashMap::default();
    // The state before, and which of its moves.
    let mut parents: Vec<(u32, u16)> = vec![(0, 0)];
    let mut fair: Vec<(u32, u32)> = Vec::new();
    let mut ends: Vec<u32> = Vec::new();
    let mut frontier = VecDeque::from([(0_u32, start.clone())]);
    known.insert(Fingerprint::of(&start), 0);
    let (mut steps, mut complete) = (0, true);
    while let Some((at, world)) = frontier.pop_front() {
        if world.settled(&setup) {
            ends.push(at);
        }
        for (choice, step) in world.moves(&setup).iter().enumerate() {
            let mut after = world.clone();
            steps += 1;
            if let Err(fault) = after.apply(&setup, step) {
                let mut trace = trace(&setup, &parents, at);
                trace.push(step.clone());
                let fault = Some((fault, trace));
                return Found { states: parents.len(), steps, ends: ends.len(), fault, complete: false };
            }
            let new = parents.len() as u32;
            let next = *known.entry(Fingerprint::of(&after)).or_insert(new);
            if next == new {
                if parents.len() >= limit {
                    known.remove(&Fingerprint::of(&after));
                    complete = false;
                    continue;
                }
                parents.push((at, choice as u16));
                frontier.push_back((new, after));
            }
            if step.is_fair(&world) && next != at {
                fair.push((next, at));
            }
        }
    }
    let fault = if complete { stuck(&setup, &parents, fair, &ends) } else { None };
    Found { states: parents.len(), steps, ends: ends.len(), fault, complete }
}

/// The first state from which no fair moves lead to the end.
fn stuck(
    setup: &Rc<Setup>,
    parents: &[(u32, u16)],
    mut back: Vec<(u32, u32)>,
    ends: &[u32],
) -> Option<(String, Vec<Move>)> {
    back.sort_unstable();
    let mut reaches = vec![false; parents.len()];
    let mut left: Vec<u32> = ends.to_vec();
    for &end in ends {
        reaches[end as usize] = true;
    }
    while let Some(at) = left.pop() {
        let first = back.partition_point(|&(to, _)| to < at);
        for &(_, from) in back[first..].iter().take_while(|&&(to, _)| to == at) {
            if !std::mem::replace(&mut reaches[from as usize], true) {
                left.push(from);
            }
        }
    }
    let at = reaches.iter().position(|reaches| !reaches)?;
    let many = reaches.iter().filter(|reaches| !**reaches).count();
    let mut steps = trace(setup, parents, at as u32);
    steps.extend(sink(setup, replay(setup, &steps)));
    let world = replay(setup, &steps);
    let text = format!("{many} of {} states do not lead to the end; one that stays: {world:?}", parents.len());
    Some((text, steps))
}

/// Fair moves as far as they lead somewhere new, to show where the way ends.
fn sink(setup: &Rc<Setup>, mut world: World) -> Vec<Move> {
    let mut seen = vec![world.clone()];
    let mut steps = Vec::new();
    loop {
        let fair = world.moves(setup).into_iter().filter(|step| step.is_fair(&world));
        let next = fair.map(|step| {
            let mut after = world.clone();
            after.apply(setup, &step).unwrap();
            (step, after)
        });
        let Some((step, after)) = next.into_iter().find(|(_, after)| !seen.contains(after)) else { return steps };
        steps.push(step);
        seen.push(after.clone());
        world = after;
    }
}

fn trace(setup: &Rc<Setup>, parents: &[(u32, u16)], mut at: u32) -> Vec<Move> {
    let mut choices = Vec::new();
    while at != 0 {
        let (parent, choice) = parents[at as usize];
        choices.push(choice);
        at = parent;
    }
    let mut world = setup.start();
    let mut steps = Vec::new();
    for choice in choices.into_iter().rev() {
        let step = world.moves(setup)[choice as usize].clone();
        world.apply(setup, &step).unwrap();
        steps.push(step);
    }
    steps
}

/// The world after `steps`, without the last when that is a fault.
pub fn replay(setup: &Rc<Setup>, steps: &[Move]) -> World {
    let mut world = setup.start();
    for step in steps {
        let before = world.clone();
        if world.apply(setup, step).is_err() {
            return before;
        }
    }
    world
}
