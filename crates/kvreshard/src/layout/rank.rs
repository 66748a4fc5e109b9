//! All that a peer must know of one rank.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::shard::{ContextParallel, Place};
use crate::units::{div, mul, rem};

use super::group::{Group, GroupKind, TokensPerState};
use super::layer::Layer;
use super::limits::{MAX_ENGINE_BYTES, MAX_GROUPS, MAX_LAYERS, MAX_PARTS, MAX_REGIONS, MAX_SEGMENTS, shown, within};
use super::region::Region;

/// The axis that counts states of tokens.
pub(crate) const TOKEN_AXIS: &str = "n";

/// Where a rank stands in its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// Tensor parallelism: which heads.
    pub tp: Place,
    /// Pipeline parallelism: which layers; the layers themselves are listed, this tells whether some may be elsewhere.
    pub pp: Place,
    /// Context parallelism: which tokens.
    pub cp: ContextParallel,
}

impl Position {
    /// The only rank of an engine.
    pub const ALONE: Self = Self { tp: Place::ALONE, pp: Place::ALONE, cp: ContextParallel::WHOLE };
}

/// What a [`RankLayout`] is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankParts {
    /// The engine's id.
    pub engine: String,
    /// Counts registrations: memory that is registered anew gets a new generation, and what peers prepared for the old one is void.
    pub generation: u64,
    /// Where the rank stands.
    pub position: Position,
    /// The registrations.
    pub regions: Vec<Region>,
    /// The groups of layers.
    pub groups: Vec<Group>,
    /// The layers that this rank holds.
    pub layers: Vec<Layer>,
}

/// Context parallelism deals tokens, and a state of several tokens would have several owners.
fn check_dealing(layer: &str, group: &Group, position: &Position) -> Result<()> {
    let (size, scale) = (position.cp.place().size(), group.tokens_per_state());
    if group.kind() == GroupKind::Tokens && size > 1 && scale != TokensPerState::ONE {
        let expected = format!("1 where {size} context-parallel ranks share the tokens: they deal tokens, not states");
        return Err(Error::layout(Some(layer), "tokens_per_state", scale, expected));
    }
    Ok(())
}

/// All that a peer must know of one rank; valid when made, immutable, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankLayout(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    parts: RankParts,
    /// Indices of the layers, in the order of their names.
    by_name: Vec<usize>,
    states: Vec<u64>,
}

impl RankLayout {
    /// Checks the parts against one another.
    ///
    /// # Errors
    /// [`Error::Layout`] naming layer and field: a segment outside its region, heads held that contradict the share, components
    /// without tokens in a group that counts them, a component held twice, two layers of one name, an engine id with characters that do not print, layers of one group with
    /// pages of different lengths, states of several tokens where context parallelism deals tokens. [`Error::Limit`] when there are too many of anything.
    pub fn new(mut parts: RankParts) -> Result<Self> {
        let segments = || parts.layers.iter().flat_map(Layer::segments);
        within("bytes of an engine id", parts.engine.len(), MAX_ENGINE_BYTES)?;
        shown("character of an engine id", &parts.engine)?;
        within("layers", parts.layers.len(), MAX_LAYERS)?;
        within("segments", segments().count(), MAX_SEGMENTS)?;
        within("components of all segments", segments().map(|s| s.format().components().len()).sum(), MAX_PARTS)?;
        within("regions", parts.regions.len(), MAX_REGIONS)?;
        within("groups", parts.groups.len(), MAX_GROUPS)?;
        for layer in &parts.layers {
            if let Some(group) = parts.groups.get(layer.group()) {
                check_dealing(layer.name(), group, &parts.position)?;
            }
        }
        if parts.layers.is_empty() {
            return Err(Error::layout(None, "layers", 0, "at least 1"));
        }
        let mut states = vec![0; parts.groups.len()];
        let RankParts { regions, groups, layers, position, .. } = &mut parts;
        for index in 0..layers.len() {
            let (before, rest) = layers.split_at_mut_checked(index).unwrap_or_default();
            let Some(layer) = rest.first_mut() else { continue };
            layer.settle(regions, groups, position, before.last())?;
            if let Some(slot) = states.get_mut(layer.group()) {
                let found = layer.states_per_page();
                // Block ids are shared, so a block must hold the same tokens in every layer of the group.
                if *slot != 0 && *slot != found {
                    let expected = format!("{slot}, as in the group's other layers");
                    return Err(Error::layout(Some(layer.name()), "states per page", found, expected));
                }
                *slot = found;
            }
        }
        let by_name = order_names(&parts.layers)?;
        Ok(Self(Arc::new(Inner { parts, by_name, states })))
    }

    /// The engine's id.
    pub fn engine(&self) -> &str {
        &self.0.parts.engine
    }

    /// The generation of its registration.
    pub fn generation(&self) -> u64 {
        self.0.parts.generation
    }

    /// Where the rank stands in its engine.
    pub fn position(&self) -> Position {
        self.0.parts.position
    }

    /// The registrations.
    pub fn regions(&self) -> &[Region] {
        &self.0.parts.regions
    }

    /// The groups.
    pub fn groups(&self) -> &[Group] {
        &self.0.parts.groups
    }

    /// The layers, in the order given.
    pub fn layers(&self) -> &[Layer] {
        &self.0.parts.layers
    }

    /// The layer of that name.
    pub fn layer(&self, name: &str) -> Option<&Layer> {
        self.layer_index(name).and_then(|index| self.layers().get(index))
    }

    /// The index of the layer of that name.
    pub(crate) fn layer_index(&self, name: &str) -> Option<usize> {
        let name_of = |index: &usize| self.layers().get(*index).map_or("", Layer::name);
        let at = self.0.by_name.binary_search_by(|index| name_of(index).cmp(name)).ok()?;
        self.0.by_name.get(at).copied()
    }

    /// The same, where it is likely to be layer number `guess`: peers list their layers in one order.
    pub(crate) fn layer_near(&self, name: &str, guess: usize) -> Option<usize> {
        let there = self.layers().get(guess).is_some_and(|layer| layer.name() == name);
        if there { Some(guess) } else { self.layer_index(name) }
    }

    /// States (indices of axis `n`) in a page of group `group`; 1 for a group of states.
    pub fn states_per_page(&self, group: usize) -> u64 {
        match (self.0.parts.groups.get(group).map(Group::kind), self.0.states.get(group)) {
            (Some(GroupKind::Tokens), Some(states)) if *states > 0 => *states,
            _ => 1,
        }
    }

    /// Tokens in a block of group `group`, counted over all context-parallel ranks; `None` for a group of states.
    ///
    /// # Errors
    /// [`Error::Layout`] when a block does not hold a whole number of tokens, [`Error::Overflow`] when that does not fit.
    pub fn tokens_per_block(&self, group: usize) -> Result<Option<u64>> {
        let Some(about) = self.groups().get(group).filter(|about| about.kind() == GroupKind::Tokens) else {
            return Ok(None);
        };
        let term = "tokens of a block";
        let states = mul(about.pages_per_block(), self.states_per_page(group), term)?;
        let scale = about.tokens_per_state();
        let tokens = mul(mul(states, self.position().cp.place().size(), term)?, scale.tokens(), term)?;
        if rem(tokens, scale.states(), term)? != 0 {
            let found = format!("{tokens}/{} in group {group}", scale.states());
            return Err(Error::layout(None, "tokens of a block", found, "a whole number"));
        }
        div(tokens, scale.states(), term).map(Some)
    }

    /// The parts, to make a changed layout of them.
    pub fn parts(&self) -> &RankParts {
        &self.0.parts
    }
}

/// Indices of the layers in the order of their names; an error where two have one name.
fn order_names(layers: &[Layer]) -> Result<Vec<usize>> {
    let mut named: Vec<(&str, usize)> = layers.iter().enumerate().map(|(index, layer)| (layer.name(), index)).collect();
    named.sort_unstable();
    for (one, next) in named.iter().zip(named.iter().skip(1)) {
        if one.0 == next.0 {
            return Err(Error::layout(Some(one.0), "layer name", one.0, "each name once"));
        }
    }
    Ok(named.into_iter().map(|(_, index)| index).collect())
}
