//! Who sends what to whom, between two engines.
//!
//! Every rank of the destination must receive every member of every layer that it holds, from exactly one source. Where several
//! sources hold the same (replicas), destinations are dealt to them evenly. Both sides compute the same route from the same layouts.
//!
//! ```text
//! 2 KV heads, source TP 4, destination TP 1         MLA, source TP 8, destination TP 4
//!
//! s0 h0 --+                                         s0 --> d0     s1 . . . d0 (told only)
//! s1 h0   |  (told only)                            s2 --> d1     s3 . . . d1
//! s2 h1 --+--> d0                                   s4 --> d2     ...
//! s3 h1      (told only)                            s6 --> d3
//! ```

mod dealing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::{Error, Result, Side};
use crate::layout::{Layer, RankLayout};
use crate::plan::{Direction, Plan, Take};
use dealing::{Dealt, Router, dealt_index};

/// One pair of ranks and what goes between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    local: usize,
    remote: usize,
    direction: Direction,
    takes: Vec<(Arc<str>, Arc<Take>)>,
}

impl Edge {
    /// An edge between two ranks whose engines have them first, as told by a peer that has routed them: what it carries is checked
    /// against both layouts when it is planned.
    pub fn told(direction: Direction, takes: impl IntoIterator<Item = (Arc<str>, Take)>) -> Self {
        let takes = takes.into_iter().map(|(layer, take)| (layer, Arc::new(take))).collect();
        Self { local: 0, remote: 0, direction, takes }
    }

    /// Index of the local engine's rank.
    pub const fn local(&self) -> usize {
        self.local
    }

    /// Index of the remote engine's rank.
    pub const fn remote(&self) -> usize {
        self.remote
    }

    /// The layers with what of each is carried.
    pub fn takes(&self) -> &[(Arc<str>, Arc<Take>)] {
        &self.takes
    }

    /// Which way the bytes go.
    pub const fn direction(&self) -> Direction {
        self.direction
    }

    /// This edge with some of its layers alone: prefill that sends each layer as soon as it is computed.
    ///
    /// # Errors
    /// [`Error::Missing`] when the edge does not carry one of the layers.
    pub fn of_layers<'n>(&self, layers: impl IntoIterator<Item = &'n str>) -> Result<Self> {
        let wanted: BTreeSet<&str> = layers.into_iter().collect();
        let carried: BTreeSet<&str> = self.takes.iter().map(|(name, _)| &**name).collect();
        if let Some(absent) = wanted.difference(&carried).next() {
            let missing =
                format!("the layer on the edge from local rank {} to remote rank {}", self.local, self.remote);
            return Err(Error::Missing { layer: (*absent).to_owned(), side: Side::Remote, missing });
        }
        let takes = self.takes.iter().filter(|(name, _)| wanted.contains(&**name)).cloned().collect();
        Ok(Self { takes, ..*self })
    }

    /// Plans this edge between the two ranks' layouts.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan(&self, local: &RankLayout, remote: &RankLayout) -> Result<Plan> {
        Plan::of_takes(local, remote, self.direction, &self.takes)
    }
}

/// All edges between two engines, for one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    direction: Direction,
    edges: Vec<Edge>,
    notify: Vec<(usize, usize)>,
    readers: Vec<u64>,
    writers: Vec<u64>,
}

impl Route {
    /// Routes two engines.
    ///
    /// # Errors
    /// [`Error::Missing`] naming a layer, or the members of it, that no source holds; [`Error::Incompatible`] when totals of a layer
    /// contradict one another.
    pub fn new(local: &Engine, remote: &Engine, direction: Direction) -> Result<Self> {
        let (to, from) = match direction.destination() {
            Side::Local => (local.ranks(), remote.ranks()),
            Side::Remote => (remote.ranks(), local.ranks()),
        };
        let source_side = if direction.destination() == Side::Local { Side::Remote } else { Side::Local };
        let mut router = Router::new(to, from, source_side);
        let mut kinds: Vec<Kind<'_>> = Vec::new();
        let numbered =
            |(rank, of)| RankLayout::layers(of).iter().enumerate().map(move |(index, layer)| (rank, (index, layer)));
        for (rank, (index, layer)) in to.iter().enumerate().flat_map(numbered) {
            // Once, at the first rank that has it.
            if to.iter().take(rank).any(|earlier| earlier.layer_near(layer.name(), index).is_some()) {
                continue;
            }
            let at = match kinds.iter().position(|kind| router.alike(kind.sample, (index, layer))) {
                Some(at) => at,
                None => {
                    let dealt = router.deal(&router.spread(layer)?)?;
                    kinds.push(Kind { sample: (index, layer), dealt, layers: Vec::new() });
                    kinds.len().saturating_sub(1)
                }
            };
            if let Some(kind) = kinds.get_mut(at) {
                kind.layers.push(layer.shared_name());
            }
        }
        let mut parts = Parts::new();
        for kind in &kinds {
            for (target, source, take) in &kind.dealt {
                let layers = kind.layers.iter().map(|name| (Arc::clone(name), Arc::clone(take)));
                parts.entry((*target, *source)).or_default().extend(layers);
            }
        }
        Ok(Self::of_parts(parts, to.len(), from.len(), direction))
    }

    fn of_parts(parts: Parts, targets: usize, sources: usize, direction: Direction) -> Self {
        let mut readers = vec![0_u64; sources];
        let mut writers = vec![0_u64; targets];
        let mut edges = Vec::with_capacity(parts.len());
        let oriented = |target: usize, source: usize| match direction.destination() {
            Side::Local => (target, source),
            Side::Remote => (source, target),
        };
        for ((target, source), takes) in parts {
            let counts = [readers.get_mut(source), writers.get_mut(target)];
            for count in counts.into_iter().flatten() {
                *count = count.saturating_add(1);
            }
            let (local, remote) = oriented(target, source);
            edges.push(Edge { local, remote, direction, takes });
        }
        let mut notify = Vec::new();
        for (source, count) in readers.iter_mut().enumerate().filter(|(_, count)| **count == 0) {
            // Its pages are held for this request too, so one destination rank tells it when they are free.
            let target = dealt_index(source, sources, targets);
            notify.push(oriented(target, source));
            *count = 1;
        }
        Self { direction, edges, notify, readers, writers }
    }

    /// Which way the bytes go.
    pub const fn direction(&self) -> Direction {
        self.direction
    }

    /// The transfers, ordered by destination rank and then by source rank.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Pairs (local rank, remote rank) that exchange no bytes, only the news that a request is done: replicas that nobody reads.
    pub fn notify(&self) -> &[(usize, usize)] {
        &self.notify
    }

    /// For each source rank, how many destination ranks report on each request: readers and those that only notify.
    pub fn readers(&self) -> &[u64] {
        &self.readers
    }

    /// For each destination rank, how many source ranks fill its pages.
    pub fn writers(&self) -> &[u64] {
        &self.writers
    }
}

type Parts = BTreeMap<(usize, usize), Vec<(Arc<str>, Arc<Take>)>>;

/// Layers that are held at the same places in the same way, and so are dealt alike.
struct Kind<'a> {
    /// The first of them, with its index.
    sample: (usize, &'a Layer),
    dealt: Dealt,
    layers: Vec<Arc<str>>,
}
