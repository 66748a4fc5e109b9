//! Pairs of layouts from structured random input, and what must hold of any plan.
//!
//! A pair is a model (layers, heads, what a page holds) that two ranks hold in ways of their own, so that nearly every input is two
//! layouts and most of them can be planned. One field in a few dozen values makes a rank odd: then it is something that must be
//! refused, or that looks so.

mod cast;
mod pulse;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use arbitrary::Arbitrary;
use kvreshard::format::{ElementType, PageFormat, Types};
use kvreshard::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use kvreshard::name::Name;
use kvreshard::plan::Plan;
use kvreshard::shard::{ContextParallel, Place};
use kvreshard::{Interval, Result, Side};

pub use cast::Cast;
pub use pulse::{Stage, pulse};

/// A model as two ranks hold it.
#[derive(Arbitrary, Debug)]
pub struct AnyPair {
    model: AnyModel,
    local: AnyRank,
    remote: AnyRank,
}

#[derive(Arbitrary, Debug)]
struct AnyModel {
    heads: u8,
    d: u8,
    dtype: u8,
    /// For each group: a state, or tokens; and its ratio of tokens to states.
    groups: [(bool, u8); 2],
    /// How many layers, and the cast of components and the group of each.
    count: u8,
    layers: [(u8, bool); 4],
}

#[derive(Arbitrary, Debug)]
struct AnyRank {
    tp: (u8, u8),
    cp: (u8, u8, u8),
    n: [u8; 2],
    pages_per_block: [u8; 2],
    layers: [AnyLayer; 4],
    regions: (u8, u8),
    /// What is wrong with it, for values that [`Odd`] knows.
    odd: u8,
    odder: (u64, u64),
    written: Option<String>,
}

#[derive(Arbitrary, Debug)]
struct AnyLayer {
    notation: u8,
    region: bool,
    offset: u8,
    pages: u8,
    gap: u8,
}

/// What is unlike the model in a rank, or not to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Odd {
    Nothing,
    Dtype,
    Extent,
    Total,
    Cast,
    Group,
    Window,
    Ratio,
    Names,
    Missing,
    Region,
    HighRegion,
    Overlap,
    Stage,
    Written,
    Wide,
}

impl Odd {
    fn of(value: u8) -> Self {
        // Bytes that are not there read as 0, which is nothing odd.
        match value {
            200 => Self::Dtype,
            201 => Self::Extent,
            202 => Self::Total,
            203 => Self::Cast,
            204 => Self::Group,
            205 => Self::Window,
            206 => Self::Ratio,
            207 => Self::Names,
            208 => Self::Missing,
            209 => Self::Region,
            210 => Self::HighRegion,
            211 => Self::Overlap,
            212 => Self::Stage,
            213 => Self::Written,
            214 => Self::Wide,
            _ => Self::Nothing,
        }
    }
}

impl AnyPair {
    /// Both layouts. What is not `large` is small enough to be planned in a fraction of a millisecond.
    ///
    /// # Errors
    /// What making the first of them that cannot be reports.
    pub fn build(&self, large: bool) -> Result<(RankLayout, RankLayout)> {
        Ok((self.local.build(&self.model, large)?, self.remote.build(&self.model, large)?))
    }
}

impl AnyRank {
    fn build(&self, model: &AnyModel, large: bool) -> Result<RankLayout> {
        let odd = Odd::of(self.odd);
        let place = |(rank, size): (u8, u8), most: u64| {
            let size = small(size, most);
            Place::new(u64::from(rank) % size, size)
        };
        let tp = place(self.tp, 5)?;
        // Most have no context parallelism.
        let cp = place((self.cp.0, self.cp.1.saturating_sub(128)), if large { 4 } else { 2 })?;
        let mut groups = Vec::new();
        for ((state, ratio), pages) in model.groups.iter().zip(self.pages_per_block) {
            let kind = if *state != (odd == Odd::Group) { GroupKind::State } else { GroupKind::Tokens };
            let ratio = if odd == Odd::Ratio { self.odder.0.to_le_bytes()[0] } else { *ratio };
            let ratio = match ratio {
                192.. => TokensPerState::new(small(ratio, 4), small(ratio / 4, 4))?,
                _ => TokensPerState::new(1, 1)?,
            };
            let window = (odd == Odd::Window).then_some(self.odder.0.max(1));
            groups.push(Group::new(kind, small(pages / 2, 3), ratio, window)?);
        }
        let high = if odd == Odd::HighRegion { self.odder.0 } else { 1 << 20 };
        let bytes = if odd == Odd::Region { self.odder.1 % 4096 } else { 1 << 28 };
        let memory = |host: bool| if host { MemoryKind::Dram } else { MemoryKind::Vram };
        let regions = vec![
            Region::new(high, bytes, 0, memory(self.regions.0 < 64))?,
            Region::new(1 << 29, 1 << 28, u32::from(self.regions.1 % 2), memory(self.regions.1 < 64))?,
        ];
        let mut layers = Vec::new();
        let count = match model.count {
            0..=127 => 1,
            128..=191 => 2,
            192..=223 => 3,
            _ => 4,
        };
        let count = if large { count } else { count.min(2) };
        let mut at = [0; 2];
        for (index, (layer, (cast, group))) in self.layers.iter().zip(model.layers).enumerate().take(count) {
            if odd == Odd::Missing && self.odder.0.checked_rem(4) == u64::try_from(index).ok() {
                continue;
            }
            let group = usize::from(group);
            let name = if odd == Odd::Names { index / 2 } else { index };
            layers.push(self.layer(
                model,
                layer,
                name,
                group,
                Cast::of(cast, model.groups[group].0),
                &mut at,
                large,
            )?);
        }
        let pp = if odd == Odd::Stage { place((0, self.odder.0.to_le_bytes()[0]), 3)? } else { Place::ALONE };
        RankLayout::new(RankParts {
            engine: "fuzz".to_owned(),
            generation: 0,
            position: Position { tp, pp, cp: ContextParallel::new(cp, 1 << (self.cp.2 % 4))? },
            regions,
            groups,
            layers,
        })
    }

    fn layer(
        &self,
        model: &AnyModel,
        layer: &AnyLayer,
        name: usize,
        group: usize,
        cast: Cast,
        at: &mut [u64; 2],
        large: bool,
    ) -> Result<Layer> {
        let odd = Odd::of(self.odd);
        let heads = small(model.heads, if large { 8 } else { 4 });
        let total = if odd == Odd::Total { self.odder.0 % 16 } else { heads };
        let place = Place::new(u64::from(self.tp.0) % small(self.tp.1, 5), small(self.tp.1, 5))?;
        let held = place.share(heads)?;
        let cast = if odd == Odd::Cast { Cast::of(self.odder.0.to_le_bytes()[0], false) } else { cast };
        let mut parts: Vec<(&str, Option<Interval>)> = Vec::new();
        match (cast.planes(layer.notation), cast.written(layer.notation)) {
            (Some(plane), _) => {
                let heads = (held.start()..held.end()).filter_map(|head| Interval::new(head, head + 1));
                parts.extend(heads.map(|head| (plane, Some(head))));
            }
            (None, notations) => parts.extend(notations.iter().map(|notation| (*notation, None))),
        }
        if let (Odd::Written, Some(written)) = (odd, &self.written) {
            parts = vec![(written, None)];
        }
        let region = usize::from(layer.region);
        let mut segments = Vec::new();
        for (notation, share) in parts {
            let d = match (odd, large) {
                (Odd::Extent, true) => self.odder.0.max(1),
                (Odd::Extent, false) => 1 + self.odder.0 % 16,
                (_, true) => 2 * small(model.d, 4),
                (_, false) => 2 * small(model.d, if heads > 2 { 1 } else { 2 }),
            };
            let n = if odd == Odd::Wide && large { 2 * small(self.n[group], 128) } else { 4 * small(self.n[group], 3) };
            let dtype = if odd == Odd::Dtype { self.odder.0.to_le_bytes()[0] } else { model.dtype };
            let format = format(notation, [held.len(), n, d], dtype)?;
            let stride = format.page_bytes().saturating_add(u64::from(layer.gap.saturating_sub(128)));
            let pages = small(layer.pages, 9);
            // One after the other, as engines lay them out, or with a hole between.
            let offset = if odd == Odd::Overlap { self.odder.1 } else { at[region] + u64::from(layer.offset) };
            at[region] = offset.saturating_add(pages.saturating_mul(stride));
            let shares = Shares::new(share.map(|share| (axis("h"), share)));
            segments.push(Segment::new(region, format, offset, pages, stride, shares)?);
        }
        let totals = (cast.sharded() || odd == Odd::Total).then(|| (axis("h"), total));
        Layer::new(format!("layers.{name}"), segments, group, totals)
    }
}

thread_local! {
    /// Formats of earlier inputs: few are new, and making one is much of what an execution would take. `parse` looks at that.
    static FORMATS: RefCell<HashMap<(String, [u64; 3], u8), PageFormat>> = RefCell::default();
}

fn format(notation: &str, extents: [u64; 3], dtype: u8) -> Result<PageFormat> {
    let dtype = dtype % u8::try_from(ElementType::ALL.len()).unwrap();
    let key = (notation.to_owned(), extents, dtype);
    if let Some(known) = FORMATS.with_borrow(|formats| formats.get(&key).cloned()) {
        return Ok(known);
    }
    let used: BTreeMap<String, u64> = ["h", "n", "d"]
        .into_iter()
        .zip(extents)
        .filter(|(name, _)| notation.contains(name))
        .map(|(name, extent)| (name.to_owned(), extent))
        .collect();
    let format = PageFormat::new(notation, &used, &Types::all(ElementType::ALL[usize::from(dtype)]))?;
    FORMATS.with_borrow_mut(|formats| {
        if formats.len() >= 1 << 14 {
            formats.clear();
        }
        formats.insert(key, format.clone());
    });
    Ok(format)
}

/// 1 to `most`.
fn small(value: u8, most: u64) -> u64 {
    1 + u64::from(value) % most
}

fn axis(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// Every prepared row lies inside one region of its side.
pub fn assert_inside(plan: &Plan) {
    let Ok(lists) = plan.prepare() else { return };
    for list in &lists {
        for side in [Side::Local, Side::Remote] {
            for row in list.table(side).chunks_exact(5) {
                let [address, length, _, stride, count] = row else { unreachable!() };
                let last = u128::from(*address) + u128::from(*stride) * u128::from(count - 1) + u128::from(*length);
                let inside = plan.side(side).regions().iter().any(|region| {
                    region.base() <= *address && last <= u128::from(region.base()) + u128::from(region.bytes())
                });
                assert!(inside, "{side} row {row:?} is outside every region");
            }
        }
    }
}

/// A number that all bytes of an input decide alike. Whatever makes an execution cost more is for some inputs by this number and
/// not by a field: what reaches more is bred, and soon most inputs would be of that kind.
pub fn turn(data: &[u8]) -> u8 {
    data.iter()
        .fold(0_u32, |sum, byte| sum.wrapping_mul(0x0100_0193) ^ u32::from(*byte))
        .wrapping_mul(0x9e37_79b1)
        .to_be_bytes()[0]
}
