//! What a request is refused for, with the value at fault; and which bytes of its pages nothing fills.

use super::common::{Rank, context, format};
use kvreshard::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::{Error, Interval, Side};

const PAGES: u64 = 8;
const BASE: u64 = 1 << 20;

fn group(kind: GroupKind, pages_per_block: u64, step: (u64, u64), window: Option<u64>) -> Group {
    Group::new(kind, pages_per_block, TokensPerState::new(step.0, step.1).unwrap(), window).unwrap()
}

fn tokens(pages_per_block: u64) -> Group {
    group(GroupKind::Tokens, pages_per_block, (1, 1), None)
}

/// A rank of one layer a group, in regions that follow one another: pages of 4 states of 2 bytes of k and 3 of v.
fn rank(groups: &[Group], base: u64) -> RankLayout {
    paged(4, groups, base)
}

/// The same with pages of `states` states.
fn paged(states: u64, groups: &[Group], base: u64) -> RankLayout {
    let (mut regions, mut layers) = (Vec::new(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        let notation = if group.kind() == GroupKind::State { "k[d] v[e]" } else { "k[n d] v[n e]" };
        let axes = [("n", states), ("d", 2), ("e", 3)];
        let used: Vec<(&str, u64)> = axes.into_iter().filter(|(axis, _)| notation.contains(axis)).collect();
        let page = format(notation, &used, "u8");
        let bytes = page.page_bytes();
        let start = base + u64::try_from(number).unwrap() * PAGES * 5 * states;
        regions.push(Region::new(start, bytes * PAGES, 0, MemoryKind::Dram).unwrap());
        let pages = Segment::new(number, page, 0, PAGES, bytes, Shares::default()).unwrap();
        layers.push(Layer::new(format!("layers.{number}"), vec![pages], number, []).unwrap());
    }
    let (engine, groups) = ("e".to_owned(), groups.to_vec());
    RankLayout::new(RankParts { engine, generation: 0, position: Position::ALONE, regions, groups, layers }).unwrap()
}

fn plan(local: &[Group], remote: &[Group], direction: Direction) -> Plan {
    Plan::new(&rank(local, BASE), &rank(remote, 1 << 24), direction).unwrap()
}

fn request(wanted: (u64, u64), local: (&[i32], u64), remote: (&[i32], u64)) -> Request {
    let blocks = |(ids, first): (&[i32], u64)| vec![Blocks::new(ids, first)];
    Request::new(Interval::new(wanted.0, wanted.1).unwrap(), blocks(local), blocks(remote))
}

/// Side, field, what was found and what was expected.
fn refusal(plan: &Plan, request: &Request) -> (Side, String, String, String) {
    match Pairing::new(plan, request) {
        Err(Error::Request { side, group: Some(0), field, found, expected }) => (side, field, found, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_id_outside_its_pages_is_refused_wherever_it_stands() {
    for direction in [Direction::Read, Direction::Write] {
        for (per_block, blocks) in [(1, 8), (2, 4)] {
            let plan = plan(&[tokens(per_block)], &[tokens(per_block)], direction);
            let of = |local: &[i32], remote: &[i32]| request((0, 4 * per_block * 4), (local, 0), (remote, 0));
            let all = [0, blocks - 1, 1, 2];
            assert!(Pairing::new(&plan, &of(&all, &all)).is_ok());
            for (at, wrong) in (0..4).flat_map(|at| [blocks, -1, i32::MIN, i32::MAX].map(|wrong| (at, wrong))) {
                let mut ids = all;
                *ids.get_mut(at).unwrap() = wrong;
                for (side, request) in [(Side::Local, of(&ids, &all)), (Side::Remote, of(&all, &ids))] {
                    let expected = format!("at least 0 and below {blocks}");
                    assert_eq!(
                        refusal(&plan, &request),
                        (side, "block id".to_owned(), wrong.to_string(), expected),
                        "{ids:?}"
                    );
                }
            }
            let two = [0, -1, -2, 2];
            for request in [of(&two, &all), of(&two, &two)] {
                assert_eq!(refusal(&plan, &request).2, "-1");
            }
        }
    }
}

#[test]
fn a_page_is_written_once_and_may_be_read_often() {
    for (direction, target) in [(Direction::Read, Side::Local), (Direction::Write, Side::Remote)] {
        let plan = plan(&[tokens(1)], &[tokens(1)], direction);
        for twice in [[3, 3], [7, 7]] {
            let of = |side| {
                let (local, remote): (&[i32], &[i32]) =
                    if side == Side::Local { (&twice, &[0, 1]) } else { (&[0, 1], &twice) };
                request((0, 8), (local, 0), (remote, 0))
            };
            let other = if target == Side::Local { Side::Remote } else { Side::Local };
            assert!(Pairing::new(&plan, &of(other)).is_ok());
            let expected = "each destination page once".to_owned();
            let found = twice.first().unwrap().to_string();
            assert_eq!(refusal(&plan, &of(target)), (target, "page".to_owned(), found, expected));
        }
    }
}

#[test]
fn lists_that_end_too_early_are_refused_by_the_side_and_what_it_is_for() {
    for (direction, roles) in [(Direction::Read, ["written", "read"]), (Direction::Write, ["read", "written"])] {
        let plan = plan(&[tokens(1)], &[tokens(2)], direction);
        assert!(Pairing::new(&plan, &request((0, 12), (&[0, 1, 2], 0), (&[0, 1], 0))).is_ok());
        let short = [
            (Side::Local, request((0, 12), (&[0, 1], 0), (&[0, 1], 0)), "2", "at least 3"),
            (Side::Remote, request((0, 12), (&[0, 1, 2], 0), (&[0], 0)), "1", "at least 2"),
        ];
        for ((side, request, found, expected), role) in short.into_iter().zip(roles) {
            let expected = format!("{expected}, for the tokens to be {role}");
            assert_eq!(refusal(&plan, &request), (side, "blocks".to_owned(), found.to_owned(), expected));
        }
        // A destination without any blocks wants nothing; tokens are none where they end as they begin.
        let (local, remote): (&[i32], &[i32]) = if direction == Direction::Read { (&[], &[0]) } else { (&[0], &[]) };
        for empty in [request((0, 12), (local, 0), (remote, 0)), request((4, 4), (&[], 0), (&[], 0))] {
            let pairing = Pairing::new(&plan, &empty).unwrap();
            assert_eq!(moved(&plan, &pairing), 0);
        }
    }
}

#[test]
fn a_list_begins_at_a_page() {
    let of = |step| [group(GroupKind::Tokens, 1, step, None)];
    for (step, page) in [((1, 1), 4), ((2, 1), 8)] {
        let plan = plan(&of(step), &of(step), Direction::Read);
        assert!(Pairing::new(&plan, &request((page, 2 * page), (&[0], page), (&[1], page))).is_ok());
        for first in [1, 2, page - 1] {
            let wrong = request((page, 2 * page), (&[0], page), (&[1, 2], first));
            let expected = "the first token of a page".to_owned();
            assert_eq!(refusal(&plan, &wrong), (Side::Remote, "first token".to_owned(), first.to_string(), expected));
        }
    }
}

/// A block of two pages is two pages, wherever it stands in its list, and however many blocks follow it.
#[test]
fn blocks_of_several_pages_are_paired_page_by_page() {
    let plan = plan(&[tokens(2)], &[tokens(2)], Direction::Read);
    let prepared = plan.prepare().unwrap();
    for (local, remote) in [([3, 0].as_slice(), [1, 2].as_slice()), (&[3, 0, 1, 2], &[1, 2, 0])] {
        // Three pages of 20 bytes: 6, 7 and 0 here, 2, 3 and 4 there.
        let wanted = request((0, 12), (local, 0), (remote, 0)).with_more(true);
        let lists = Pairing::new(&plan, &wanted).unwrap().lists(&prepared, 0).unwrap();
        let runs: Vec<(u64, u64, u64)> =
            lists.iter().map(|one| (one.local - BASE, one.remote - (1 << 24), one.length)).collect();
        assert_eq!(runs, [(0, 80, 20), (120, 40, 40)]);
    }
}

/// Bytes of the exact lists.
fn moved(plan: &Plan, pairing: &Pairing) -> u64 {
    let prepared = plan.prepare().unwrap();
    let lists = (0..prepared.len()).flat_map(|list| pairing.lists(&prepared, list).unwrap());
    lists.map(|one| one.length).sum()
}

#[test]
fn states_move_whole_and_are_as_many_on_both_sides() {
    let of = |per_block| [group(GroupKind::State, per_block, (1, 1), None)];
    let plan = plan(&of(2), &of(1), Direction::Read);
    let pairing = Pairing::new(&plan, &request((0, 1), (&[3], 0), (&[5, 2], 0))).unwrap();
    let prepared = plan.prepare().unwrap();
    // Pages 6 and 7 of the local side, 5 bytes each.
    let pairs: Vec<(u64, u64, u64)> = pairing
        .lists(&prepared, 0)
        .unwrap()
        .iter()
        .map(|one| (one.local - BASE, one.remote - (1 << 24), one.length))
        .collect();
    assert_eq!(pairs, [(30, 25, 5), (35, 10, 5)]);
    let expected = "1 pages, as many as on the remote side: states move whole".to_owned();
    let uneven = request((0, 1), (&[3], 0), (&[5], 0));
    assert_eq!(refusal(&plan, &uneven), (Side::Local, "state blocks".to_owned(), "2".to_owned(), expected));
    // The state is that of the last token.
    let part = request((0, 1), (&[3], 0), (&[5, 2], 0)).with_more(true);
    assert_eq!(moved(&plan, &Pairing::new(&plan, &part).unwrap()), 0);
}

/// Two ranks of a context that deal tokens to each other have none in common; a list of all tokens there are is not walked.
#[test]
fn ranks_that_share_no_token_pair_nothing_at_once() {
    let rank = |rank| {
        let rank =
            Rank { position: context((rank, 2), 2), ..Rank::new("e", (0, 1), "n k[d]", 1, &[("n", 4), ("d", 2)]) };
        Rank { heads: None, layers: 1, ..rank }.build()
    };
    let plan = Plan::new(&rank(0), &rank(1), Direction::Read).unwrap();
    let pairing = Pairing::new(&plan, &request((0, u64::MAX / 2), (&[0, 1], 0), (&[2], 0)).with_more(true)).unwrap();
    assert_eq!(moved(&plan, &pairing), 0);
    // What is cleared of the destination's pages are pages that it has: 16 bytes each.
    let cleared = |ids: &[i32]| Pairing::new(&plan, &request((0, 4), (ids, 0), (&[2], 0)));
    assert_eq!(bare(&cleared(&[0, 7]).unwrap(), BASE), [(8, 8), (7 * 16, 16)]);
    let expected = "at least 0 and below 8".to_owned();
    let beyond = refusal(&plan, &request((0, 4), (&[0, 8], 0), (&[2], 0)));
    assert_eq!(beyond, (Side::Local, "block id".to_owned(), "8".to_owned(), expected));
}

/// Address (from the first page on) and bytes of what is to be cleared.
fn bare(pairing: &Pairing, base: u64) -> Vec<(u64, u64)> {
    let rows = pairing.zero(MemoryKind::Dram).unwrap();
    assert!(rows.iter().all(|row| (row.count, row.stride) == (1, row.length)));
    assert!(pairing.zero(MemoryKind::Vram).unwrap().is_empty());
    rows.iter().map(|row| (row.address - base, row.length)).collect()
}

#[test]
fn what_follows_the_last_token_is_bare_in_both_components() {
    for (direction, base) in [(Direction::Read, BASE), (Direction::Write, 1 << 24)] {
        let plan = plan(&[tokens(1)], &[tokens(1)], direction);
        let of = |wanted, ids: &[i32], first| {
            let all = (0..8).collect::<Vec<i32>>();
            let (mine, theirs) = ((ids, first), (all.as_slice(), 0));
            let both = if direction == Direction::Read { (mine, theirs) } else { (theirs, mine) };
            Pairing::new(&plan, &request(wanted, both.0, both.1)).unwrap()
        };
        // Page 3 holds tokens 4 and 5: k of 2 bytes a token from 60 on, v of 3 from 68 on.
        assert_eq!(bare(&of((0, 6), &[5, 3], 0), base), [(64, 4), (74, 6)]);
        assert_eq!(bare(&of((0, 8), &[5, 3], 0), base), []);
        // A page beyond, which touches what is left of v in the page before it.
        assert_eq!(bare(&of((0, 6), &[5, 3, 4], 0), base), [(64, 4), (74, 6 + 20)]);
        assert_eq!(bare(&of((0, 4), &[5, 3, 1], 0), base), [(20, 20), (60, 20)]);
        // The destination begins after the last token that is wanted: all its pages are bare, from their beginning on.
        assert_eq!(bare(&of((0, 6), &[2, 0], 8), base), [(0, 20), (40, 20)]);
        assert_eq!(bare(&of((0, 6), &[5, 3, 4], 0), base).len(), 2);
    }
}

#[test]
fn only_the_layers_of_the_group_are_cleared() {
    let groups = [tokens(1), tokens(1)];
    let plan = plan(&groups, &groups, Direction::Read);
    let tokens = Interval::new(0, 4).unwrap();
    let blocks = |ids: &[i32]| Blocks::new(ids, 0);
    let request = Request::new(tokens, vec![blocks(&[0]), blocks(&[2, 7])], vec![blocks(&[0]), blocks(&[0])]);
    // The second layer's pages begin 160 bytes on.
    assert_eq!(bare(&Pairing::new(&plan, &request).unwrap(), BASE), [(160 + 140, 20)]);
    // The first layer's last page touches the second's first, in another region, which may be of another device.
    let request = Request::new(tokens, vec![blocks(&[0, 7]), blocks(&[2, 0])], vec![blocks(&[0]), blocks(&[0])]);
    assert_eq!(bare(&Pairing::new(&plan, &request).unwrap(), BASE), [(140, 20), (160, 20)]);
    let mut parts = plan.local().parts().clone();
    let second = parts.regions.last_mut().unwrap();
    *second = Region::new(second.base(), second.bytes(), 1, MemoryKind::Dram).unwrap();
    let apart = Plan::new(&RankLayout::new(parts).unwrap(), plan.remote(), Direction::Read).unwrap();
    let rows = Pairing::new(&apart, &request).unwrap().zero(MemoryKind::Dram).unwrap();
    let rows: Vec<(u64, u64, u64)> = rows.iter().map(|row| (row.device, row.address - BASE, row.length)).collect();
    assert_eq!(rows, [(0, 140, 20), (1, 160, 20)]);
}

/// K and V of the destination in planes, of the source in one page: what is bare is looked for in the destination's.
#[test]
fn planes_of_the_destination_are_cleared() {
    let source = rank(&[tokens(1)], 1 << 24);
    let mut parts = rank(&[tokens(1)], BASE).parts().clone();
    let plane = |notation, axis: (&'static str, u64), at| {
        let page = format(notation, &[("n", 4), axis], "u8");
        Segment::new(0, page.clone(), at, PAGES, page.page_bytes(), Shares::default()).unwrap()
    };
    let planes = vec![plane("v[n e]", ("e", 3), 64), plane("k[n d]", ("d", 2), 0)];
    parts.layers = vec![Layer::new("layers.0", planes, 0, []).unwrap()];
    let target = RankLayout::new(parts).unwrap();
    let read = Plan::new(&target, &source, Direction::Read).unwrap();
    let written = Plan::new(&source, &target, Direction::Write).unwrap();
    for (plan, request) in
        [(&read, request((0, 2), (&[1], 0), (&[0], 0))), (&written, request((0, 2), (&[0], 0), (&[1], 0)))]
    {
        // Tokens 2 and 3 of page 1: 4 of its 8 bytes of K, 6 of its 12 of V.
        assert_eq!(bare(&Pairing::new(plan, &request).unwrap(), BASE), [(8 + 4, 4), (64 + 12 + 6, 6)]);
    }
}

#[test]
fn pages_that_a_window_has_left_are_bare_and_no_fault() {
    let windowed = group(GroupKind::Tokens, 1, (1, 1), Some(8));
    let wanted = request((0, 16), (&[0, 1, 2, 3], 0), (&[6, 7], 8));
    for (local, remote) in [(&windowed, &tokens(1)), (&tokens(1), &windowed), (&windowed, &windowed)] {
        let plan = plan(std::slice::from_ref(local), std::slice::from_ref(remote), Direction::Read);
        let pairing = Pairing::new(&plan, &wanted).unwrap();
        assert_eq!((moved(&plan, &pairing), bare(&pairing, BASE)), (2 * 20, vec![(0, 40)]));
        // From the middle of a page on.
        let part = request((2, 16), (&[0, 1, 2, 3], 0), (&[6, 7], 8));
        let pairing = Pairing::new(&plan, &part).unwrap();
        assert_eq!((moved(&plan, &pairing), bare(&pairing, BASE)), (2 * 20, vec![(4, 4), (14, 6 + 20)]));
    }
    // Pages of another length on the source's side: what is bare is counted in the destination's.
    let (short, long) = (paged(4, &[tokens(1)], BASE), paged(8, std::slice::from_ref(&windowed), 1 << 24));
    let written = Plan::new(&long, &short, Direction::Write).unwrap();
    let read = Plan::new(&short, &long, Direction::Read).unwrap();
    let (ours, theirs): ((&[i32], u64), (&[i32], u64)) = ((&[0, 1, 2, 3], 0), (&[6], 8));
    for (plan, request) in [(&read, request((4, 16), ours, theirs)), (&written, request((4, 16), theirs, ours))] {
        assert_eq!(bare(&Pairing::new(plan, &request).unwrap(), BASE), [(20, 20)]);
    }
    let (long, short) = (paged(8, &[tokens(1)], BASE), paged(4, std::slice::from_ref(&windowed), 1 << 24));
    let read = Plan::new(&long, &short, Direction::Read).unwrap();
    let second_half = Pairing::new(&read, &request((4, 16), (&[2, 1], 0), (&[6, 7], 8))).unwrap();
    assert_eq!(bare(&second_half, BASE), [(80 + 8, 8), (80 + 16 + 12, 12)]);
    let plain = plan(&[tokens(1)], &[tokens(1)], Direction::Read);
    let expected = "at or before state 0".to_owned();
    assert_eq!(refusal(&plain, &wanted), (Side::Remote, "first block".to_owned(), "at state 8".to_owned(), expected));
}
