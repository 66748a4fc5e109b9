//! Layouts from structured random input, and what must hold of any plan.

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use kvreshard::format::{ElementType, PageFormat, Types};
use kvreshard::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use kvreshard::name::Name;
use kvreshard::plan::Plan;
use kvreshard::shard::{ContextParallel, Place};
use kvreshard::{Interval, Result, Side};

/// Notations that meet one another often, and odd ones.
const NOTATIONS: &[&str] = &[
    "h n k[d] v[d]",
    "n h k[d] v[d]",
    "k[h n d] v[h n d]",
    "k[n h d] v[n h d]",
    "k[h d/2 n d%2] v[h n/2 d n%2]",
    "k[h d/2 n d%2] v[h d n]",
    "k[n/4 h d/2 n%4 d%2] v[n/4 h n%4/2 d n%2]",
    "h k[n/4 d/2 n%4 d%2] pad[3] v[d/2 n/2 d%2 n%2]",
    "n/2 (h n%2 k[d] pad[5] v[d])",
    "h (n k[d]) v[n/2 d n%2]",
    "n k[d] v[d]",
    "k[n d]",
    "v[d n] pad[7] k[n d]",
    "2 k[h n d] 3 v[h n d]",
    "n h d k[] v[]",
    "d n h (k[] (v[]))",
    "k[h n d 2]",
    "k[n]",
];

/// The formats of one rank: segments are often alike, and making a format is most of what an execution takes.
type Formats = BTreeMap<(String, BTreeMap<String, u64>), PageFormat>;

/// A rank, as the fuzzer writes it.
#[derive(Arbitrary, Debug)]
pub struct AnyRank {
    extents: (u8, u8, u8),
    dtype: u8,
    tp: (u8, u8),
    cp: (u8, u8, u8),
    pp: u8,
    groups: Vec<(bool, u8, u8, u8, Option<u16>)>,
    layers: Vec<AnyLayer>,
    regions: Vec<(u32, u32, bool)>,
    wide: Option<(u64, u64)>,
}

#[derive(Arbitrary, Debug)]
struct AnyLayer {
    name: u8,
    group: u8,
    total: Option<u8>,
    segments: Vec<AnySegment>,
}

#[derive(Arbitrary, Debug)]
struct AnySegment {
    notation: u8,
    written: Option<String>,
    region: u8,
    offset: u16,
    pages: u8,
    gap: u8,
    share: Option<(u8, u8)>,
}

impl AnyRank {
    /// The layout, if there is such a thing.
    pub fn build(&self) -> Result<RankLayout> {
        let place = |(rank, size): (u8, u8)| Place::new(u64::from(rank % size.max(1)), u64::from(size.max(1)));
        let mut regions = Vec::new();
        for (base, bytes, device) in self.regions.iter().take(6) {
            let memory = if *device { MemoryKind::Vram } else { MemoryKind::Dram };
            // Half of them large enough for anything.
            let bytes = if bytes % 2 == 0 { 1 << 32 } else { u64::from(*bytes) };
            regions.push(Region::new(u64::from(*base), bytes, 0, memory)?);
        }
        if let Some((base, bytes)) = self.wide {
            regions.push(Region::new(base, bytes, 1, MemoryKind::Vram)?);
        }
        if regions.is_empty() {
            regions.push(Region::new(4096, 1 << 30, 0, MemoryKind::Dram)?);
        }
        let mut groups = vec![Group::PLAIN];
        for (state, pages, tokens, states, window) in self.groups.iter().take(3) {
            let kind = if *state { GroupKind::State } else { GroupKind::Tokens };
            let ratio = TokensPerState::new(small(*tokens, 4), small(*states, 4))?;
            groups.push(Group::new(kind, small(*pages, 4), ratio, window.map(|window| u64::from(window).max(1)))?);
        }
        let mut formats = Formats::default();
        let mut layers = Vec::new();
        for layer in self.layers.iter().take(5) {
            let mut segments = Vec::new();
            for segment in layer.segments.iter().take(6) {
                segments.push(self.segment(segment, layer.total, regions.len(), &mut formats)?);
            }
            let totals = layer.total.map(|total| (axis("h"), small(total, 12)));
            let group = usize::from(layer.group) % groups.len();
            layers.push(Layer::new(format!("layers.{}", layer.name % 4), segments, group, totals)?);
        }
        let cp = ContextParallel::new(place((self.cp.0, self.cp.1 % 5))?, small(self.cp.2, 20))?;
        RankLayout::new(RankParts {
            engine: "fuzz".to_owned(),
            generation: 0,
            position: Position { tp: place((self.tp.0, self.tp.1 % 7))?, pp: place((0, self.pp % 2 + 1))?, cp },
            regions,
            groups,
            layers,
        })
    }

    fn segment(
        &self,
        segment: &AnySegment,
        total: Option<u8>,
        regions: usize,
        formats: &mut Formats,
    ) -> Result<Segment> {
        let known = NOTATIONS[usize::from(segment.notation) % NOTATIONS.len()];
        let notation = segment.written.as_deref().filter(|_| segment.notation > 200).unwrap_or(known);
        let (h, n, d) = self.extents;
        // Most layouts should be ones that can be: heads as the rank's share has them, unless the input insists.
        let size = u64::from(self.tp.1 % 7).max(1);
        let place = Place::new(u64::from(self.tp.0) % size, size)?;
        let held = match (total, segment.share) {
            (Some(total), None) if h < 200 => place.share(small(total, 12))?.len(),
            (_, Some((start, end))) if end > start && h < 200 => u64::from(end - start),
            _ => small(h, 8),
        };
        let even = |extent: u8| if extent < 200 { 2 * small(extent, 16) } else { u64::from(extent) };
        let extents: BTreeMap<String, u64> = [("h", held), ("n", even(n)), ("d", even(d))]
            .into_iter()
            .filter(|(name, _)| notation.contains(name))
            .map(|(name, extent)| (name.to_owned(), extent))
            .collect();
        let dtype = ElementType::ALL[usize::from(self.dtype) % ElementType::ALL.len()];
        let key = (notation.to_owned(), extents);
        if !formats.contains_key(&key) {
            let format = PageFormat::new(notation, &key.1, &Types::all(dtype))?;
            formats.insert(key.clone(), format);
        }
        let format = formats[&key].clone();
        let share = segment.share.and_then(|(start, end)| Interval::new(u64::from(start), u64::from(end)));
        let stride = format.page_bytes().saturating_add(u64::from(segment.gap));
        let shares = Shares::new(share.map(|share| (axis("h"), share)));
        let region = usize::from(segment.region) % regions;
        Segment::new(region, format, u64::from(segment.offset), small(segment.pages, 9), stride, shares)
    }
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
