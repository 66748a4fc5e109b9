//! Two random ranks that hold the same layers, and a request between them.

use std::collections::BTreeMap;

use kvreshard::Interval;
use kvreshard::format::{PageFormat, Types};
use kvreshard::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use kvreshard::name::Name;
use kvreshard::plan::Direction;
use kvreshard::request::{Blocks, Request};
use kvreshard::shard::{ContextParallel, Place};

use super::draw::Draw;
use super::nest::{AXES, Content, Extents, Page, SHARDED, STATE, TYPES, fitted, page, walk};

/// Layers that share a group on either side; `step` is tokens a state as a fraction, none for whole states.
#[derive(Debug)]
pub struct Family {
    pub layers: usize,
    pub contents: Vec<Content>,
    pub extents: Extents,
    pub step: Option<(u64, u64)>,
}

/// Where a rank stands, and its pages: states a page and pages a block of each family.
#[derive(Clone, Debug)]
pub struct Place1 {
    pub tp: (u64, u64),
    pub cp: (u64, u64),
    pub interleave: u64,
    pub states: Vec<u64>,
    pub per_block: Vec<u64>,
    /// Sharded axes of which every rank holds all.
    pub whole: [bool; 2],
}

/// A segment: of which layer, in which region, and where.
#[derive(Debug)]
pub struct Piece {
    pub family: usize,
    pub layer: usize,
    pub page: Page,
    pub holds: BTreeMap<usize, (u64, u64)>,
    pub region: usize,
    pub offset: u64,
    pub stride: u64,
    pub pages: u64,
}

/// One side: its place, regions (base, bytes, in VRAM), segments, and block lists by family.
#[derive(Debug)]
pub struct Rank {
    pub place: Place1,
    pub regions: Vec<(u64, u64, bool)>,
    pub pieces: Vec<Piece>,
    pub lists: Vec<(Vec<i32>, u64)>,
    order: Vec<usize>,
    layers: Vec<(usize, usize)>,
}

#[derive(Debug)]
pub struct World {
    pub families: Vec<Family>,
    pub ranks: [Rank; 2],
    pub tokens: (u64, u64),
    pub direction: Direction,
}

/// A random world; none where its two ranks have nothing to say to each other.
pub fn world(draw: &mut Draw) -> Option<World> {
    let dealt = draw.chance(25);
    let families = families(draw, dealt);
    let alike = draw.chance(40);
    let whole_states = draw.between(1, 2);
    let first = place(draw, &families, dealt, whole_states);
    let second = if alike && draw.chance(40) { first.clone() } else { place(draw, &families, dealt, whole_states) };
    let places = [first, second];
    let common = |axis: usize, family: &Family| {
        let [one, other] = places.each_ref().map(|place| held(place, axis, family.extents[axis]));
        one.0.max(other.0) < one.1.min(other.1)
    };
    let used = |family: &Family, axis| family.contents.iter().any(|content| content.axes.contains(&axis));
    if !families.iter().all(|family| SHARDED.iter().all(|axis| !used(family, *axis) || common(*axis, family))) {
        return None;
    }
    let unit = families.iter().filter_map(|family| family.step).fold(1, |unit, (tokens, _)| lcm(unit, tokens));
    let block = |place: &Place1, number: usize, family: &Family| {
        family
            .step
            .map(|(tokens, states)| place.states[number] * place.per_block[number] * place.cp.1 * tokens / states)
    };
    let longest = places
        .iter()
        .flat_map(|place| families.iter().enumerate().filter_map(|(number, family)| block(place, number, family)))
        .max()?;
    let end = unit * draw.between(1, ((2 * longest + 3).min(40) / unit).max(1));
    let start = unit * draw.below(end / unit);
    let direction = draw.of(&[Direction::Read, Direction::Write]);
    let target = usize::from(direction == Direction::Write);
    let hit = draw.chance(30);
    let mut lists = [Vec::new(), Vec::new()];
    for (number, family) in families.iter().enumerate() {
        // Of what the target has already nothing is wanted, and the source need not have it.
        let mut from = start;
        for side in [target, 1 - target] {
            lists[side].push(match block(&places[side], number, family) {
                None => (whole_states / places[side].per_block[number], 0),
                Some(block) => {
                    let latest = if side == target && hit { end - 1 } else { from };
                    let first = draw.between(0, latest / block) * block;
                    if side == target {
                        from = from.max(first);
                    }
                    ((end - first).div_ceil(block) + draw.of(&[0, 0, 1]), first)
                }
            });
        }
    }
    let mut ranks = Vec::new();
    for (side, (place, lists)) in places.into_iter().zip(lists).enumerate() {
        let base = [1 << 16, 0x7F00_0000_0000][side];
        let like = if alike { ranks.first() } else { None };
        let made = rank(draw, &families, place, &lists, base, like);
        ranks.push(made);
    }
    let meet = (start..end)
        .any(|token| ranks.iter().all(|rank| token / rank.place.interleave % rank.place.cp.1 == rank.place.cp.0));
    if !meet && families.iter().all(|family| family.step.is_some()) {
        return None;
    }
    let ranks = ranks.try_into().ok()?;
    Some(World { families, ranks, tokens: (start, end), direction })
}

fn families(draw: &mut Draw, dealt: bool) -> Vec<Family> {
    let count = draw.of(&[1, 1, 2, 3]);
    (0..count)
        .map(|number| {
            let whole = number > 0 && draw.chance(40);
            let steps: &[_] = if dealt { &[(1, 1)] } else { &[(1, 1), (1, 1), (2, 1), (1, 2)] };
            let step = draw.of(steps);
            let heads = draw.between(1, 6);
            let extents = [1, heads, heads * draw.between(1, 2), draw.of(&[1, 2, 3, 4, 6, 8]), draw.between(1, 4)];
            let mut names = ["k", "v", "ks"];
            draw.shuffle(&mut names);
            let names = &names[..1 + draw.index(3)];
            let contents = names
                .iter()
                .map(|name| {
                    let mut axes: Vec<usize> = draw.of(&[vec![1], vec![1], vec![1], vec![2], vec![]]);
                    axes.extend((!whole).then_some(STATE));
                    let inner: Vec<usize> = draw.of(&[vec![3], vec![3], vec![3, 4], vec![4], vec![]]);
                    let nameless = draw.of(&[1, 1, 1, 2, 4, 6]);
                    let nameless = if inner.len() < 2 { nameless } else { 1 };
                    axes.extend(inner);
                    Content { name, dtype: draw.of(&TYPES), axes, nameless }
                })
                .collect();
            Family { layers: 1 + draw.index(2), contents, extents, step: (!whole).then_some(step) }
        })
        .collect()
}

fn place(draw: &mut Draw, families: &[Family], dealt: bool, whole_states: u64) -> Place1 {
    let tp = draw.of(&[1, 1, 2, 3, 4, 8]);
    let cp = if dealt { draw.of(&[1, 2, 3]) } else { 1 };
    let interleave = if cp > 1 { draw.of(&[1, 2, 3, 4]) } else { 1 };
    let (mut states, mut per_block) = (Vec::new(), Vec::new());
    for family in families {
        let mut n = draw.of(&[1, 2, 3, 4, 6, 8]);
        let mut per = draw.of(&[1, 1, 1, 2, 3]);
        match family.step {
            None => (n, per) = (1, gcd(per, whole_states)),
            Some((_, states)) => {
                n = lcm(n, states);
                // A rank's share of a virtual block is whole stretches, in one page or in several.
                per *= interleave / gcd(n * per, interleave);
            }
        }
        states.push(n);
        per_block.push(per);
    }
    let whole = [draw.chance(8), draw.chance(8)];
    Place1 { tp: (draw.below(tp), tp), cp: (draw.below(cp), cp), interleave, states, per_block, whole }
}

/// The members of a sharded axis that a rank holds: a stretch, or one that its neighbours hold too.
fn held(place: &Place1, axis: usize, total: u64) -> (u64, u64) {
    let (rank, size) = place.tp;
    let start = rank * total / size;
    match (place.whole[axis - 1], size > total) {
        (true, _) => (0, total),
        (false, true) => (start, start + 1),
        (false, false) => (start, (rank + 1) * total / size),
    }
}

type Row = Vec<(usize, Page, BTreeMap<usize, (u64, u64)>)>;

/// The pages of one layer: all in one, K and V apart, or a plane a head.
fn pages_of(draw: &mut Draw, family: &Family, place: &Place1, number: usize, like: Option<&Rank>) -> Row {
    let used: Vec<usize> =
        SHARDED.into_iter().filter(|axis| family.contents.iter().any(|content| content.axes.contains(axis))).collect();
    let mut extents = family.extents;
    extents[STATE] = place.states[number];
    let mut holds = BTreeMap::new();
    for axis in used {
        let (low, high) = held(place, axis, family.extents[axis]);
        extents[axis] = high - low;
        holds.insert(axis, (low, high));
    }
    if let Some(row) = like.and_then(|other| same(draw, family, number, other, &extents, &holds)) {
        return row;
    }
    let mut groups = vec![family.contents.clone()];
    if family.contents.len() > 1 && draw.chance(25) {
        let rest = groups[0].split_off(1);
        groups.push(rest);
    }
    let mut found = Vec::new();
    for mut contents in groups {
        if contents.iter().all(|content| content.axes.contains(&1)) && draw.chance(20) {
            if draw.chance(50) {
                contents.iter_mut().for_each(|content| content.axes.retain(|axis| *axis != 1));
            }
            let mut one = extents;
            one[1] = 1;
            let page = page(draw, &contents, &one);
            let (low, high) = holds[&1];
            found.extend((low..high).map(|head| (0, page.clone(), BTreeMap::from([(1, (head, head + 1))]))));
        } else {
            let page = page(draw, &contents, &extents);
            let mine = holds.iter().filter(|(axis, _)| page.extents.contains_key(AXES[**axis]));
            found.push((0, page.clone(), mine.map(|(axis, held)| (*axis, *held)).collect()));
        }
    }
    found
}

/// The other side's nests, where they are one page a layer and fit.
fn same(
    draw: &mut Draw,
    family: &Family,
    number: usize,
    other: &Rank,
    extents: &Extents,
    holds: &BTreeMap<usize, (u64, u64)>,
) -> Option<Row> {
    let theirs: Vec<&Piece> = other.pieces.iter().filter(|one| one.family == number && one.layer == 0).collect();
    let [piece] = theirs[..] else { return None };
    if piece.page.types.len() != family.contents.len() || piece.holds.len() != holds.len() {
        return None;
    }
    let mut before = family.extents;
    before[STATE] = other.place.states[number];
    for (axis, (low, high)) in &piece.holds {
        before[*axis] = high - low;
    }
    let planes = holds.keys().any(|axis| !piece.page.extents.contains_key(AXES[*axis]));
    let page = (!planes).then(|| fitted(draw, &piece.page, &family.contents, &before, extents))??;
    Some(vec![(0, page, holds.clone())])
}

fn rank(
    draw: &mut Draw,
    families: &[Family],
    place: Place1,
    counts: &[(u64, u64)],
    mut base: u64,
    like: Option<&Rank>,
) -> Rank {
    let mut ends = vec![0_u64; draw.of(&[1, 1, 2])];
    let (mut pieces, mut lists): (Vec<Piece>, Vec<(Vec<i32>, u64)>) = (Vec::new(), Vec::new());
    // Where the last family's row lies, and one past its last block: a group that shares its pool uses others.
    let mut pool: Option<(usize, u64, u64, u64)> = None;
    for (number, family) in families.iter().enumerate() {
        let (count, first) = counts[number];
        let per = place.per_block[number];
        let common = pages_of(draw, family, &place, number, like);
        let mut row: Row = Vec::new();
        for layer in 0..family.layers {
            let own = if draw.chance(25) { pages_of(draw, family, &place, number, like) } else { common.clone() };
            row.extend(own.into_iter().map(|(_, page, holds)| (layer, page, holds)));
        }
        let sizes: Vec<u64> = row.iter().map(|(_, page, _)| walk(page).1).collect();
        let whole: u64 = sizes.iter().sum();
        let shared = pool.filter(|(_, _, stride, _)| whole <= *stride && draw.chance(50));
        let spare = shared.map_or(0, |(_, _, _, pages)| pages.div_ceil(per)) + draw.below(3);
        let mut ids: Vec<i32> = (0..count + spare).map(|id| i32::try_from(id).unwrap()).collect();
        let scattered = draw.chance(60);
        if shared.is_none() && scattered {
            draw.shuffle(&mut ids);
            ids.truncate(usize::try_from(count).unwrap());
        } else {
            ids.drain(..usize::try_from(spare).unwrap());
            if scattered {
                draw.shuffle(&mut ids);
            }
        }
        let pages = per * ids.iter().max().map_or(1, |last| u64::try_from(*last).unwrap() + 1);
        lists.push((ids, first));
        if let Some((region, offset, stride, _)) = shared {
            let mut at = offset;
            for ((layer, page, holds), size) in row.into_iter().zip(&sizes) {
                pieces.push(Piece { family: number, layer, page, holds, region, offset: at, stride, pages });
                ends[region] = ends[region].max(at + (pages - 1) * stride + size);
                at += size;
            }
            pool = Some((region, offset, stride, pages));
            continue;
        }
        // Side by side, page i of all of them and then page i + 1; or one after the other.
        let together = draw.chance(35);
        let stretches: Vec<Vec<_>> = if together {
            vec![row.into_iter().zip(sizes).collect()]
        } else {
            row.into_iter().zip(sizes).map(|one| vec![one]).collect()
        };
        pool = None;
        for stretch in stretches {
            let region = draw.index(ends.len());
            let bytes: u64 = stretch.iter().map(|(_, size)| size).sum();
            let stride = bytes + if draw.chance(20) { draw.between(1, 9) } else { 0 };
            let start = ends[region] + if draw.chance(20) { draw.between(1, 9) } else { 0 };
            let mut at = start;
            for ((layer, page, holds), size) in stretch {
                pieces.push(Piece { family: number, layer, page, holds, region, offset: at, stride, pages });
                at += size;
            }
            ends[region] = start + pages * stride;
            if together {
                pool = Some((region, start, stride, pages));
            }
        }
    }
    let mut regions = Vec::new();
    for end in ends {
        let vram = draw.chance(20);
        regions.push((base, end.max(1), vram));
        // Registrations may touch; that does not make them one.
        base += end.max(1) + draw.of(&[0, 64]);
    }
    let mut order: Vec<usize> = (0..families.len()).collect();
    draw.shuffle(&mut order);
    let mut layers: Vec<(usize, usize)> =
        order.iter().flat_map(|number| (0..families[*number].layers).map(|layer| (*number, layer))).collect();
    if draw.chance(25) {
        draw.shuffle(&mut layers);
    }
    Rank { place, regions, pieces, lists, order, layers }
}

impl World {
    /// One side as kvreshard has it.
    pub fn layout(&self, side: usize) -> RankLayout {
        let rank = &self.ranks[side];
        let place = &rank.place;
        let regions = rank.regions.iter().map(|(base, bytes, vram)| {
            let memory = if *vram { MemoryKind::Vram } else { MemoryKind::Dram };
            Region::new(*base, *bytes, 0, memory).unwrap()
        });
        let groups = rank.order.iter().map(|number| {
            let step = self.families[*number].step;
            let kind = if step.is_some() { GroupKind::Tokens } else { GroupKind::State };
            let (tokens, states) = step.unwrap_or((1, 1));
            Group::new(kind, place.per_block[*number], TokensPerState::new(tokens, states).unwrap(), None).unwrap()
        });
        let layers = rank.layers.iter().map(|(number, layer)| {
            let family = &self.families[*number];
            let mine = rank.pieces.iter().filter(|piece| (piece.family, piece.layer) == (*number, *layer));
            let segments = mine.map(|piece| {
                let types = Types::each(piece.page.types.iter().map(|(name, dtype)| (*name, dtype.parse().unwrap())));
                let format = PageFormat::new(&piece.page.text, &piece.page.extents, &types)
                    .unwrap_or_else(|error| panic!("`{}`: {error}", piece.page.text));
                assert_eq!(format.page_bytes(), walk(&piece.page).1, "`{}`", piece.page.text);
                let shares = piece
                    .holds
                    .iter()
                    .map(|(axis, (low, high))| (Name::new(AXES[*axis]).unwrap(), Interval::new(*low, *high).unwrap()));
                Segment::new(piece.region, format, piece.offset, piece.pages, piece.stride, Shares::new(shares))
                    .unwrap()
            });
            let totals = SHARDED
                .into_iter()
                .filter(|axis| family.contents.iter().any(|content| content.axes.contains(axis)))
                .map(|axis| (Name::new(AXES[axis]).unwrap(), family.extents[axis]));
            let group = rank.order.iter().position(|other| other == number).unwrap();
            Layer::new(format!("layers.{number}.{layer}"), segments.collect(), group, totals).unwrap()
        });
        let of = |(rank, size): (u64, u64)| Place::new(rank, size).unwrap();
        let cp = ContextParallel::new(of(place.cp), place.interleave).unwrap();
        RankLayout::new(RankParts {
            engine: format!("engine {side}"),
            generation: 7,
            position: Position { tp: of(place.tp), pp: Place::ALONE, cp },
            regions: regions.collect(),
            groups: groups.collect(),
            layers: layers.collect(),
        })
        .unwrap()
    }

    /// The request as kvreshard has it.
    pub fn request(&self) -> Request {
        let [local, remote] = self.ranks.each_ref().map(|rank| {
            let lists = rank.order.iter().map(|number| &rank.lists[*number]);
            lists.map(|(ids, first)| Blocks::new(ids.clone(), *first)).collect()
        });
        Request::new(Interval::new(self.tokens.0, self.tokens.1).unwrap(), local, remote)
    }
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

fn lcm(one: u64, other: u64) -> u64 {
    one / gcd(one, other) * other
}
