//! Which bytes must move, by listing every element of every page of either side and looking for its like on the other.

use super::nest::{NAMELESS, STATE, walk};
use super::world::World;

/// An element: what it is, where it lies, its bytes, and its region.
struct Place {
    what: [u64; 9],
    address: u64,
    size: u64,
    region: usize,
}

/// A run of bytes: local address, remote address, length.
pub type Run = (u64, u64, u64);

/// The fewest runs that move what is wanted, in order of local addresses; none crosses a region of either side.
pub fn runs(world: &World, tokens: (u64, u64)) -> Vec<Run> {
    let mut found: Vec<(u64, u64, u64, (usize, usize))> = Vec::new();
    let [mut local, mut remote] = [0, 1].map(|side| elements(world, side, tokens));
    for side in [&mut local, &mut remote] {
        side.sort_unstable_by_key(|place| place.what);
        assert!(side.windows(2).all(|pair| pair[0].what < pair[1].what), "an element has two homes on one side");
    }
    let mut others = remote.iter().peekable();
    for here in &local {
        while others.next_if(|there| there.what < here.what).is_some() {}
        if let Some(there) = others.next_if(|there| there.what == here.what) {
            assert_eq!(here.size, there.size);
            found.push((here.address, there.address, here.size, (here.region, there.region)));
        }
    }
    found.sort_unstable();
    let mut runs: Vec<(Run, (usize, usize))> = Vec::new();
    for (here, there, size, regions) in found {
        match runs.last_mut() {
            Some((run, same)) if *same == regions && run.0 + run.2 == here && run.1 + run.2 == there => run.2 += size,
            _ => runs.push(((here, there, size), regions)),
        }
    }
    runs.into_iter().map(|(run, _)| run).collect()
}

fn elements(world: &World, side: usize, tokens: (u64, u64)) -> Vec<Place> {
    let rank = &world.ranks[side];
    let mut found = Vec::new();
    for piece in &rank.pieces {
        let family = &world.families[piece.family];
        let (ids, first) = &rank.lists[piece.family];
        let (per, states) = (rank.place.per_block[piece.family], rank.place.states[piece.family]);
        let (components, _) = walk(&piece.page);
        let (base, _, _) = rank.regions[piece.region];
        let pages = ids.iter().flat_map(|id| (0..per).map(move |page| u64::try_from(*id).unwrap() * per + page));
        for (number, page) in pages.enumerate() {
            let number = number as u64;
            assert!(page < piece.pages);
            let start = base + piece.offset + page * piece.stride;
            for component in &components {
                for element in &component.all {
                    let state = match family.step {
                        None => number,
                        Some((tokens_of, states_of)) => {
                            let state =
                                global(rank, number * states + element.index[STATE], first * states_of / tokens_of);
                            let wanted = tokens.0 * states_of / tokens_of..(tokens.1 * states_of).div_ceil(tokens_of);
                            if !wanted.contains(&state) {
                                continue;
                            }
                            state
                        }
                    };
                    let [_, h, g, d, w, _] = element.index;
                    let begin = |axis: usize| piece.holds.get(&axis).map_or(0, |(low, _)| *low);
                    // A replicated component of a plane has no head of its own; one of a plane's component has the plane's.
                    let contents = family.contents.iter().find(|content| content.name == component.name).unwrap();
                    let of = |axis, at| if contents.axes.contains(&axis) { at + begin(axis) } else { 0 };
                    let name = family.contents.iter().position(|content| content.name == component.name).unwrap();
                    let layer = (piece.family * 8 + piece.layer) as u64;
                    let what = [layer, name as u64, of(1, h), of(2, g), state, d, w, element.index[NAMELESS], 0];
                    found.push(Place {
                        what,
                        address: start + element.offset,
                        size: component.size,
                        region: piece.region,
                    });
                }
            }
        }
    }
    found
}

/// The global state at position `at` of the list: context parallelism deals it in turns.
fn global(rank: &super::world::Rank, at: u64, first: u64) -> u64 {
    let ((me, size), turn) = (rank.place.cp, rank.place.interleave);
    if size == 1 { first + at } else { first + (at / turn * size + me) * turn + at % turn }
}

/// Runs joined wherever they touch on both sides, in order of local addresses; a byte written twice is an error.
pub fn joined(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut found: Vec<Run> = Vec::new();
    for (here, there, size) in runs {
        match found.last_mut() {
            Some(run) if run.0 + run.2 == here && run.1 + run.2 == there => run.2 += size,
            Some(run) => {
                assert!(run.0 + run.2 <= here, "a byte is written twice");
                found.push((here, there, size));
            }
            None => found.push((here, there, size)),
        }
    }
    found
}

/// Whether every byte that `some` moves is moved by `all`, from the same place; both joined.
pub fn within(some: &[Run], all: &[Run]) -> bool {
    some.iter().all(|(here, there, size)| {
        let at = all.partition_point(|run| run.0 <= *here);
        at.checked_sub(1)
            .and_then(|at| all.get(at))
            .is_some_and(|run| here + size <= run.0 + run.2 && there.wrapping_sub(*here) == run.1.wrapping_sub(run.0))
    })
}
