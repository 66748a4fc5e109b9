//! Random pairs of layouts against a byte map made element by element: every byte right, and as few descriptors as there can be.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says so by panicking"
)]

mod moved;

use std::collections::BTreeMap;

use kvreshard::cost::{Abilities, TRANSPORTS};
use kvreshard::format::{PageFormat, Types};
use kvreshard::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use kvreshard::lower::Pairing;
use kvreshard::name::Name;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::shard::{ContextParallel, Place};
use kvreshard::{Interval, Side, verify};
use moved::{through_landing, through_packed};
use proptest::prelude::*;

/// Decisions from a list of numbers, which shrinks well; 0 when it is used up.
struct Draw(std::vec::IntoIter<u16>);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.0.next().unwrap_or_default()) % limit
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// A component and the digits that still have to appear on its path.
#[derive(Clone)]
struct Open {
    name: &'static str,
    digits: Vec<(&'static str, u64, u64, u64)>,
}

/// The digits of an axis under a random mixed radix: (axis, scale, extent, whole).
fn radix(draw: &mut Draw, axis: &'static str, whole: u64) -> Vec<(&'static str, u64, u64, u64)> {
    let mut digits = Vec::new();
    let (mut scale, mut rest) = (1, whole);
    while rest > 1 {
        let parts: Vec<u64> = (2..=rest).filter(|part| rest % part == 0).collect();
        let extent = if draw.below(2) == 0 { rest } else { draw.of(&parts) };
        digits.push((axis, scale, extent, whole));
        scale *= extent;
        rest /= extent;
    }
    if digits.is_empty() {
        digits.push((axis, 1, 1, whole));
    }
    digits
}

fn write_loop((axis, scale, extent, whole): (&str, u64, u64, u64)) -> String {
    match (scale, extent) {
        (1, extent) if extent == whole => axis.to_owned(),
        (1, extent) => format!("{axis}%{extent}"),
        (scale, extent) if scale * extent == whole => format!("{axis}/{scale}"),
        (scale, extent) => format!("{axis}/{scale}%{extent}"),
    }
}

/// A random nest over the components: hoists shared digits, splits into groups, pads.
fn nest(draw: &mut Draw, mut open: Vec<Open>, depth: usize) -> String {
    let mut text = String::new();
    let shared: Vec<_> =
        open[0].digits.iter().copied().filter(|digit| open.iter().all(|o| o.digits.contains(digit))).collect();
    for digit in shared {
        if draw.below(3) > 0 {
            text += &format!("{} ", write_loop(digit));
            open.iter_mut().for_each(|one| one.digits.retain(|other| *other != digit));
        }
    }
    draw.shuffle(&mut open);
    while !open.is_empty() {
        if draw.below(6) == 0 {
            text += &format!("pad[{}] ", 1 + draw.below(5));
        }
        let size = if depth > 4 { 1 } else { 1 + draw.below(open.len()) };
        let group: Vec<Open> = open.drain(..size).collect();
        if let [one] = &group[..] {
            let mut digits = one.digits.clone();
            draw.shuffle(&mut digits);
            let loops: Vec<String> = digits.into_iter().map(write_loop).collect();
            text += &format!("{}[{}] ", one.name, loops.join(" "));
        } else {
            text += &format!("({}) ", nest(draw, group, depth + 1));
        }
    }
    text
}

/// The content axes of each component, which both sides share.
type Content = Vec<(&'static str, Vec<(&'static str, u64)>, &'static str)>;

struct Spec {
    tp: (u64, u64),
    cp: (u64, u64, u64),
    states: u64,
    pages_per_block: u64,
}

const PAGES: u64 = 48;

fn rank(draw: &mut Draw, content: &Content, heads: Option<u64>, spec: &Spec, packed: bool) -> RankLayout {
    let tp = Place::new(spec.tp.0, spec.tp.1).unwrap();
    let held = heads.map(|heads| tp.share(heads).unwrap().len());
    let radices: BTreeMap<&str, Vec<_>> = [("n", Some(spec.states)), ("h", held), ("d", Some(4)), ("e", Some(3))]
        .into_iter()
        .filter_map(|(axis, extent)| extent.map(|extent| (axis, radix(draw, axis, extent))))
        .collect();
    let open: Vec<Open> = content
        .iter()
        .map(|(name, axes, _)| {
            let all = ["n"].into_iter().chain(heads.map(|_| "h")).chain(axes.iter().map(|(axis, _)| *axis));
            Open { name, digits: all.flat_map(|axis| radices[axis].clone()).collect() }
        })
        .collect();
    let notation = nest(draw, open, 0);
    let mut extents: BTreeMap<String, u64> = BTreeMap::from([("n".to_owned(), spec.states)]);
    extents.extend(held.map(|held| ("h".to_owned(), held)));
    for (axis, extent) in content.iter().flat_map(|(_, axes, _)| axes) {
        extents.insert((*axis).to_owned(), *extent);
    }
    let types = Types::each(content.iter().map(|(name, _, dtype)| (*name, dtype.parse().unwrap())));
    let format = PageFormat::new(&notation, &extents, &types).unwrap_or_else(|error| panic!("{notation}: {error}"));
    let page = format.page_bytes();
    let layers = 2;
    // Packed: both layers in one row of one region; else each layer in its own stretch, with a gap behind every page.
    let (stride, regions, offsets) = if packed {
        let stride = page * layers + 8 * draw.below(2) as u64;
        (stride, vec![stride * PAGES], vec![(0, 0), (0, page)])
    } else {
        let stride = page + 16 * draw.below(2) as u64;
        (stride, vec![stride * PAGES, stride * PAGES + 64], vec![(0, 0), (1, 64)])
    };
    let mut base = 1 << 16;
    let mut made = Vec::new();
    for bytes in regions {
        made.push(Region::new(base, bytes, 0, MemoryKind::Dram).unwrap());
        base += bytes + if draw.below(2) == 0 { 0 } else { 512 };
    }
    let layers = offsets.into_iter().enumerate().map(|(index, (region, offset))| {
        let segment = Segment::new(region, format.clone(), offset, PAGES, stride, Shares::default()).unwrap();
        let totals = heads.map(|heads| (Name::new("h").unwrap(), heads));
        Layer::new(format!("layers.{index}"), vec![segment], 0, totals).unwrap()
    });
    let cp = ContextParallel::new(Place::new(spec.cp.0, spec.cp.1).unwrap(), spec.cp.2).unwrap();
    let group = Group::new(GroupKind::Tokens, spec.pages_per_block, TokensPerState::ONE, None).unwrap();
    RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: Position { tp, pp: Place::ALONE, cp },
        regions: made,
        groups: vec![group],
        layers: layers.collect(),
    })
    .unwrap()
}

/// Where each needed byte of the destination comes from, worked out one element at a time.
fn byte_map(local: &RankLayout, remote: &RankLayout, request: &Request) -> BTreeMap<u64, (u64, (usize, usize))> {
    let mut map = BTreeMap::new();
    let start = request.tokens().start().max(request.blocks(Side::Local, 0).unwrap().first_token());
    for (here, there) in local.layers().iter().zip(remote.layers()) {
        let (ls, rs) = (&here.segments()[0], &there.segments()[0]);
        for component in ls.format().components() {
            let other = rs.format().component(component.name().as_ref()).unwrap();
            let heads = component.extent("h");
            let h = Name::new("h").unwrap();
            let (lh, rh) = (ls.shares().get(&h), rs.shares().get(&h));
            for head in 0..here.total(&h).filter(|_| heads.is_some()).unwrap_or(1) {
                let within = |share: Option<Interval>| {
                    share.map_or(Some(0), |s| head.checked_sub(s.start()).filter(|x| *x < s.len()))
                };
                let (Some(lhead), Some(rhead)) = (within(lh), within(rh)) else { continue };
                for token in start..request.tokens().end() {
                    let spot = |layout: &RankLayout, side| {
                        let cp = layout.position().cp;
                        let (w, i) = (cp.place().size(), cp.interleave());
                        if token / i % w != cp.place().rank() {
                            return None;
                        }
                        let position = token / (w * i) * i + token % i;
                        let states = layout.states_per_page(0);
                        let ratio = layout.groups()[0].pages_per_block();
                        let blocks = request.blocks(side, 0).unwrap();
                        // The pages before the first block hold the tokens of this rank that come before it.
                        let before =
                            (0..blocks.first_token()).filter(|t| t / i % w == cp.place().rank()).count() as u64;
                        let page = position / states - before / states;
                        let id = blocks.ids()[usize::try_from(page / ratio).unwrap()];
                        Some((u64::try_from(id).unwrap() * ratio + page % ratio, position % states))
                    };
                    let (Some(lp), Some(rp)) = (spot(local, Side::Local), spot(remote, Side::Remote)) else { continue };
                    let d = component.extent("d").unwrap_or(1);
                    let e = component.extent("e").unwrap_or(1);
                    for content in 0..d * e {
                        let index = |of: &kvreshard::format::Component, head, n| {
                            let all = [("n", n), ("h", head), ("d", content / e), ("e", content % e)];
                            let index: Vec<_> = all.into_iter().filter(|(axis, _)| of.extent(axis).is_some()).collect();
                            of.offset(&index).unwrap()
                        };
                        let place = |layout: &RankLayout, segment: &Segment, page: u64, offset: u64| {
                            layout.regions()[segment.region()].base()
                                + segment.offset()
                                + page * segment.page_stride()
                                + offset
                        };
                        let to = place(local, ls, lp.0, index(component, lhead, lp.1));
                        let from = place(remote, rs, rp.0, index(other, rhead, rp.1));
                        for byte in 0..component.dtype().bytes() {
                            let before = map.insert(to + byte, (from + byte, (ls.region(), rs.region())));
                            assert!(before.is_none(), "two homes for one byte");
                        }
                    }
                }
            }
        }
    }
    map
}

/// The fewest runs of a byte map: a new one wherever either side jumps or another region begins.
fn fewest(map: &BTreeMap<u64, (u64, (usize, usize))>) -> usize {
    let mut runs = 0;
    let mut last: Option<(u64, u64, (usize, usize))> = None;
    for (to, (from, regions)) in map {
        if last != Some((to.wrapping_sub(1), from.wrapping_sub(1), *regions)) {
            runs += 1;
        }
        last = Some((*to, *from, *regions));
    }
    runs
}

fn one_pair(choices: Vec<u16>) {
    let draw = &mut Draw(choices.into_iter());
    let heads = draw.of(&[None, Some(1), Some(2), Some(4), Some(6)]);
    let mut content: Content =
        vec![("k", vec![("d", 4)], draw.of(&["u8", "bf16"])), ("v", vec![("d", 4), ("e", 3)], "u8")];
    if draw.below(2) == 0 {
        content.push(("s", Vec::new(), "f32"));
    }
    let tp = |draw: &mut Draw| {
        let size = draw.of(&[1_u64, 2, 3, 4]);
        (draw.below(size as usize) as u64, size)
    };
    let cp = |draw: &mut Draw, states: u64| {
        let size = draw.of(&[1_u64, 1, 1, 2, 4]);
        (draw.below(size as usize) as u64, size, draw.of(&[1, 2, states]))
    };
    let side = |draw: &mut Draw| {
        let states = draw.of(&[1, 2, 4, 6, 8]);
        Spec { tp: tp(draw), cp: cp(draw, states), states, pages_per_block: draw.of(&[1, 1, 2]) }
    };
    let (here, there) = (side(draw), side(draw));
    let packed = (draw.below(2) == 0, draw.below(2) == 0);
    let local = rank(draw, &content, heads, &here, packed.0);
    let remote = rank(draw, &content, heads, &there, packed.1);

    // Tokens up to a length that both pools hold; the destination may have a prefix of whole blocks already.
    let end = 1 + draw.below(40) as u64;
    let block = |spec: &Spec| spec.states * spec.pages_per_block * spec.cp.1;
    let hit = block(&here) * draw.below(usize::try_from(end / block(&here)).unwrap() + 1) as u64;
    let hit = hit.min((end - 1) / block(&here) * block(&here));
    // A block must begin at a page boundary: with turns longer than a page it does so only every second time.
    let hit = if here.states % here.cp.2 == 0 { hit } else { 0 };
    let mut ids = |spec: &Spec, first: u64| {
        let mine = (first..end).filter(|t| t / spec.cp.2 % spec.cp.1 == spec.cp.0).count() as u64;
        let count = mine.div_ceil(spec.states * spec.pages_per_block) + draw.below(2) as u64;
        let mut all: Vec<i32> = (0..i32::try_from(PAGES / spec.pages_per_block).unwrap()).collect();
        if draw.below(3) > 0 {
            draw.shuffle(&mut all);
        }
        all.truncate(usize::try_from(count).unwrap());
        Blocks::new(all, first)
    };
    let (theirs, ours) = (ids(&there, 0), ids(&here, hit));
    let start = draw.below(usize::try_from(end).unwrap()) as u64;
    let tokens = Interval::new(if draw.below(2) == 0 { 0 } else { start }, end).unwrap();
    let request = Request::new(tokens, vec![ours], vec![theirs]);

    let plan = Plan::new(&local, &remote, Direction::Read).unwrap();
    verify::plan(&plan).unwrap();
    let expected = byte_map(&local, &remote, &request);
    let prepared = plan.prepare().unwrap();
    let pairing = Pairing::new(&plan, &request).unwrap();
    let mut got = BTreeMap::new();
    let mut posted = 0;
    for list in 0..prepared.len() {
        for one in pairing.lists(&prepared, list).unwrap() {
            posted += 1;
            for byte in 0..one.length {
                assert!(got.insert(one.local + byte, one.remote + byte).is_none(), "byte written twice");
            }
        }
    }
    let wanted: BTreeMap<u64, u64> = expected.iter().map(|(to, (from, _))| (*to, *from)).collect();
    assert_eq!(got, wanted);
    assert_eq!(posted, fewest(&expected), "more descriptors than needed");

    // Prepared rows move whole rows: all of the wanted bytes, and beyond the wanted end only what the same pages hold.
    if pairing.fits_rows() {
        let mut all_rows = BTreeMap::new();
        for list in &prepared {
            let count = pairing.id_count(list).unwrap();
            let (mut l, mut r) = (vec![0; count], vec![0; count]);
            pairing.write_ids(list, &mut l, &mut r).unwrap();
            let flat = (list.flat(Side::Local).unwrap(), list.flat(Side::Remote).unwrap());
            let mut rows = BTreeMap::new();
            for (l, r) in l.iter().zip(&r) {
                let (l, r) = (&flat.0[*l as usize * 3..][..2], &flat.1[*r as usize * 3..][..2]);
                assert_eq!(l[1], r[1]);
                for byte in 0..l[1] {
                    assert!(rows.insert(l[0] + byte, r[0] + byte).is_none(), "byte written twice");
                }
            }
            all_rows.extend(rows);
        }
        for (to, from) in &wanted {
            assert_eq!(all_rows.get(to), Some(from));
        }
        least_of_whole_rows(&plan, &request, &all_rows);
        let able = Abilities { direct: true, lands: true, packs: true, chunk: 1 << 20 };
        let costs = pairing.costs(|| Ok(&prepared), &TRANSPORTS[0], able).unwrap();
        let ids: u64 = prepared.iter().map(|list| pairing.posted_by_ids(list).unwrap()).sum();
        assert!(costs[0].posted <= ids.min(posted as u64));
        assert!([wanted.len() as u64, all_rows.len() as u64].contains(&costs[0].bytes));
        assert_eq!(through_packed(&plan, &pairing, 512), all_rows);
        for hole in [0, 24, u64::MAX] {
            assert_eq!(through_landing(&plan, &pairing, 4096, hole), all_rows);
        }
    } else {
        assert!(prepared.iter().all(|list| pairing.id_count(list).is_err()));
    }
}

/// Lists rounded up to whole rows move what ids move, with the fewest descriptors that do, and so never more than ids post.
fn least_of_whole_rows(plan: &Plan, request: &Request, rows: &BTreeMap<u64, u64>) {
    let prepared = plan.prepare().unwrap();
    let by_ids = Pairing::new(plan, request).unwrap();
    let rounded = Pairing::new(plan, request).unwrap().rounded();
    let (mut moved, mut posted, mut posted_by_ids) = (BTreeMap::new(), 0, 0);
    for (index, list) in prepared.iter().enumerate() {
        posted_by_ids += by_ids.posted_by_ids(list).unwrap();
        for one in rounded.lists(&prepared, index).unwrap() {
            posted += 1;
            moved.extend((0..one.length).map(|byte| (one.local + byte, one.remote + byte)));
        }
    }
    assert_eq!(&moved, rows);
    let region = |layout: &RankLayout, at: u64| {
        layout.regions().iter().position(|r| r.base() <= at && at - r.base() < r.bytes()).unwrap()
    };
    let placed = rows.iter().map(|(to, from)| {
        let regions = (region(plan.local(), *to), region(plan.remote(), *from));
        (*to, (*from, regions))
    });
    assert_eq!(posted, fewest(&placed.collect()), "more descriptors than needed");
    assert!(u64::try_from(posted).unwrap() <= posted_by_ids);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn plans_move_every_byte_with_the_fewest_descriptors(choices in prop::collection::vec(any::<u16>(), 0..160)) {
        one_pair(choices);
    }
}
