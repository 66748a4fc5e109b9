//! An engine: the layouts of its ranks.

use std::collections::{BTreeMap, HashSet};

use crate::error::{Error, Result};
use crate::format::PageFormat;
use crate::layout::{Layer, MAX_SEGMENTS_PER_LAYER, MemoryKind, RankLayout, RankParts, Region, Segment, Shares};
use crate::shard::{ContextParallel, Place};
use crate::units::{Interval, add, rem, wide};

/// The most ranks of one engine.
pub(crate) const MAX_RANKS: usize = 4_096;

/// The most segments of an engine that one rank and a rule describe.
const MAX_ENGINE_SEGMENTS: u64 = 1_048_576;

/// The layouts of an engine's ranks, in any order; a rank is named by its index here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    ranks: Vec<RankLayout>,
}

impl Engine {
    /// An engine of these ranks.
    ///
    /// # Errors
    /// [`Error::Layout`] when there is none, two stand at one place, or they disagree about the sizes of their parallelism.
    pub fn new(ranks: Vec<RankLayout>) -> Result<Self> {
        let Some(first) = ranks.first().map(RankLayout::position) else {
            return Err(Error::layout(None, "ranks", 0, "at least 1"));
        };
        if ranks.len() > MAX_RANKS {
            return Err(Error::limit("ranks of an engine", wide(ranks.len()), wide(MAX_RANKS)));
        }
        let mut places = HashSet::new();
        for rank in &ranks {
            let position = rank.position();
            for (what, ours, theirs) in [
                ("tp size", first.tp.size(), position.tp.size()),
                ("pp size", first.pp.size(), position.pp.size()),
                ("cp size", first.cp.place().size(), position.cp.place().size()),
                ("cp_interleave", first.cp.interleave(), position.cp.interleave()),
            ] {
                if ours != theirs {
                    return Err(Error::layout(None, what, theirs, format!("{ours}, as at the engine's first rank")));
                }
            }
            let place = (position.tp.rank(), position.pp.rank(), position.cp.place().rank());
            if !places.insert(place) {
                let found = format!("tp {}, pp {}, cp {}", place.0, place.1, place.2);
                return Err(Error::layout(None, "rank position", found, "each position once"));
            }
        }
        Ok(Self { ranks })
    }

    /// Every tensor-parallel rank built like `rank`, each with its share of the heads by the rule. Only shares are worked out, not
    /// addresses: enough to route, not to plan.
    ///
    /// # Errors
    /// As [`RankLayout::new`], when the format does not allow another rank's share; [`Error::Limit`] when the ranks would be too many,
    /// or hold too many segments in all: what `rank` says of the others may be a peer's.
    pub fn uniform(rank: &RankLayout) -> Result<Self> {
        let position = rank.position();
        let size = position.tp.size();
        if size > wide(MAX_RANKS) {
            return Err(Error::limit("ranks of an engine", size, wide(MAX_RANKS)));
        }
        let segments: usize = rank.layers().iter().map(|layer| layer.segments().len()).sum();
        if wide(segments).saturating_mul(size) > MAX_ENGINE_SEGMENTS {
            return Err(Error::limit(
                "segments of an engine",
                wide(segments).saturating_mul(size),
                MAX_ENGINE_SEGMENTS,
            ));
        }
        let mut ranks = Vec::new();
        let mut resized = None;
        for other in 0..size {
            if other == position.tp.rank() {
                ranks.push(rank.clone());
                continue;
            }
            let mut parts = RankParts {
                engine: rank.engine().to_owned(),
                generation: rank.generation(),
                position,
                regions: Vec::new(),
                groups: rank.groups().to_vec(),
                layers: Vec::new(),
            };
            parts.position.tp = Place::new(other, size)?;
            let context = position.cp.place().size();
            let turn = add(position.cp.place().rank(), context, "cp rank")?;
            let moved = add(other, turn.saturating_sub(rem(position.tp.rank(), context, "cp rank")?), "cp rank")?;
            let place = Place::new(rem(moved, context, "cp rank")?, context)?;
            parts.position.cp = ContextParallel::new(place, position.cp.interleave())?;
            for layer in rank.layers() {
                let layer = alike(layer, &mut parts, &mut resized)?;
                parts.layers.push(layer);
            }
            ranks.push(RankLayout::new(parts)?);
        }
        Self::new(ranks)
    }

    /// The ranks.
    pub fn ranks(&self) -> &[RankLayout] {
        &self.ranks
    }
}

/// The format that was made last for other extents: making one reads its notation anew, and most layers are built alike.
#[derive(Debug)]
struct Resized {
    format: PageFormat,
    extents: BTreeMap<String, u64>,
    made: PageFormat,
}

impl Resized {
    /// `format` with these extents: the last one where it was made of the same.
    fn of(last: &mut Option<Self>, format: &PageFormat, extents: BTreeMap<String, u64>) -> Result<PageFormat> {
        // What has the same bytes here need not have them there: an axis of one index leaves no trace, wherever it is written.
        let alike = |last: &&Self| {
            last.extents == extents
                && last.format == *format
                && last.format.notation() == format.notation()
                && last.format.extents() == format.extents()
        };
        if let Some(last) = last.as_ref().filter(alike) {
            return Ok(last.made.clone());
        }
        let made = format.with_extents(&extents)?;
        *last = Some(Self { format: format.clone(), extents, made: made.clone() });
        Ok(made)
    }
}

/// `layer` at another rank: one page a segment, each in a region of its own at address 0. Planes, one segment a member, become as
/// many as the other rank holds.
fn alike(layer: &Layer, parts: &mut RankParts, resized: &mut Option<Resized>) -> Result<Layer> {
    let mut segments = Vec::new();
    let mut planes: Vec<&PageFormat> = Vec::new();
    for segment in layer.segments() {
        let mut extents = BTreeMap::new();
        let mut shares = vec![Shares::default()];
        for (axis, total) in layer.totals() {
            let share = parts.position.tp.share(*total)?;
            if segment.format().extents().contains_key(axis) {
                extents.insert(axis.to_string(), share.len());
                shares.iter_mut().for_each(|held| held.set(axis.clone(), share));
            } else if segment.shares().get(axis).is_some() {
                shares.clear();
                if planes.contains(&segment.format()) {
                    continue;
                }
                planes.push(segment.format());
                if share.len() > wide(MAX_SEGMENTS_PER_LAYER) {
                    return Err(Error::limit("segments of one layer", share.len(), wide(MAX_SEGMENTS_PER_LAYER)));
                }
                let members = (share.start()..share.end()).filter_map(|at| Interval::new(at, at.checked_add(1)?));
                shares.extend(members.map(|member| Shares::new([(axis.clone(), member)])));
            }
        }
        let format = Resized::of(resized, segment.format(), extents)?;
        let bytes = format.page_bytes();
        for held in shares {
            let like = parts.regions.len();
            parts.regions.push(Region::new(0, bytes, 0, MemoryKind::Dram)?);
            segments.push(Segment::new(like, format.clone(), 0, 1, bytes, held)?);
        }
    }
    Layer::new(layer.name(), segments, layer.group(), layer.totals().iter().cloned())
}
