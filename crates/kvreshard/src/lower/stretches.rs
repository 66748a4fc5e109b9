//! Stretches: the contiguous parts of a remote page that landing reads.
//!
//! Where a page lies in planes, which other pages lie between, each plane has a stretch of its own:
//!
//! ```text
//! remote planes  |KKKK|KKKK|..|VVVV|VVVV|..|
//! buffer         |KKKK|VVVV|KKKK|VVVV|
//! ```

use crate::error::{Error, Result};
use crate::plan::lane::Lane;
use crate::plan::{Copy, Loop};
use crate::units::{add, mul, sub};

use super::tiles::{Tile, TileLoop};

/// A loop over planes is unrolled while it stands for no more than this many copies; beyond it one span covers them all.
const MAX_PLANES: u64 = 4096;

/// Contiguous bytes of a remote page, and where they begin in the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) buffer: u64,
}

/// The copy, its loops over planes unrolled: steps as long as from one page to the next leave the page.
pub(super) fn near(copy: &Copy, stride: u64) -> Result<Vec<Copy>> {
    let (far, loops): (Vec<Loop>, Vec<Loop>) = copy.loops.iter().partition(|step| step.remote >= stride);
    let planes = far.iter().try_fold(1, |planes, step| mul(planes, step.extent, "planes of a copy"))?;
    if planes > MAX_PLANES {
        return Ok(vec![copy.clone()]);
    }
    let mut copies = vec![Copy { loops, ..copy.clone() }];
    for step in far {
        let mut all = Vec::with_capacity(copies.len());
        for one in &copies {
            for turn in 0..step.extent {
                let term = "plane of a copy";
                all.push(one.moved((mul(turn, step.local, term)?, mul(turn, step.remote, term)?), term)?);
            }
        }
        copies = all;
    }
    Ok(copies)
}

/// Appends the bytes of a remote page that each copy of a lane spans.
pub(super) fn reach(lane: &Lane, reaches: &mut Vec<(u64, u64)>) -> Result<()> {
    for copy in lane.nests.iter() {
        for near in near(copy, lane.remote.stride)? {
            reaches.push((near.remote, near.remote_end()?));
        }
    }
    Ok(())
}

/// The stretches that cover `reaches`, and their bytes. What lies nearer than a page belongs to one; beyond that, other pages lie
/// between.
pub(super) fn stretches(mut reaches: Vec<(u64, u64)>, stride: u64) -> Result<(Vec<Stretch>, u64)> {
    let mut found: Vec<Stretch> = Vec::new();
    reaches.sort_unstable();
    for (start, end) in reaches {
        let last_end = match found.last() {
            Some(last) => add(last.start, last.bytes, "landed span")?,
            None => 0,
        };
        match found.last_mut().filter(|_| start.saturating_sub(last_end) < stride) {
            Some(last) => last.bytes = sub(end.max(last_end), last.start, "landed span")?,
            None => found.push(Stretch { start, bytes: sub(end, start, "landed span")?, buffer: 0 }),
        }
    }
    let mut bytes = 0;
    for stretch in &mut found {
        stretch.buffer = bytes;
        bytes = add(bytes, stretch.bytes, "landed span")?;
    }
    Ok((found, bytes))
}

pub(super) fn tile(copy: &Copy, stretches: &[Stretch]) -> Result<Tile> {
    let loops = copy.loops.iter().map(|one| TileLoop { extent: one.extent, page: one.local, buffer: one.remote });
    let before = stretches.partition_point(|stretch| stretch.start <= copy.remote);
    let stretch = before.checked_sub(1).and_then(|at| stretches.get(at));
    let stretch = stretch.ok_or_else(|| Error::overflow("landed offset"))?;
    let within = sub(copy.remote, stretch.start, "landed offset")?;
    let buffer = add(stretch.buffer, within, "landed offset")?;
    Ok(Tile { run: copy.run, page: copy.local, buffer, loops: loops.collect() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn copy(loops: &[Loop]) -> Copy {
        Copy { run: 4, loops: loops.to_vec(), local: 3, remote: 5 }
    }

    fn step(extent: u64, local: u64, remote: u64) -> Loop {
        Loop { extent, local, remote }
    }

    #[test]
    fn loops_that_leave_the_page_are_written_out() {
        let (inside, outside) = (step(3, 8, 99), step(2, 1000, 100));
        let found = near(&copy(&[outside, inside]), 100).unwrap();
        assert_eq!(found, [copy(&[inside]), copy(&[inside]).moved((1000, 100), "test").unwrap()]);
        assert_eq!(near(&copy(&[inside]), 100).unwrap(), [copy(&[inside])]);
    }

    #[test]
    fn planes_are_written_out_up_to_a_count() {
        let of = |planes| near(&copy(&[step(planes, 4, 100)]), 100).unwrap();
        assert_eq!(of(MAX_PLANES).len(), 4096);
        assert_eq!(of(MAX_PLANES + 1), [copy(&[step(MAX_PLANES + 1, 4, 100)])]);
    }

    #[test]
    fn what_is_nearer_than_a_page_is_one_stretch() {
        let of = |reaches: &[(u64, u64)]| {
            let (found, bytes) = stretches(reaches.to_vec(), 100).unwrap();
            (found.iter().map(|one| (one.start, one.bytes, one.buffer)).collect::<Vec<_>>(), bytes)
        };
        assert_eq!(of(&[(129, 140), (10, 30)]), (vec![(10, 130, 0)], 130));
        assert_eq!(of(&[(130, 140), (10, 30)]), (vec![(10, 20, 0), (130, 10, 20)], 30));
        // One inside another, and one that begins where another does.
        assert_eq!(of(&[(10, 90), (20, 30), (10, 15), (190, 200)]), (vec![(10, 80, 0), (190, 10, 80)], 90));
        // The first bytes of a page may be others'.
        assert_eq!(of(&[(150, 160)]), (vec![(150, 10, 0)], 10));
        let two = [Stretch { start: 10, bytes: 20, buffer: 0 }, Stretch { start: 130, bytes: 10, buffer: 20 }];
        let at = |remote| tile(&Copy { remote, ..copy(&[]) }, &two).map(|tile| tile.buffer);
        assert_eq!((at(10), at(29), at(130), at(133)), (Ok(0), Ok(19), Ok(20), Ok(23)));
        assert!(at(9).is_err());
    }
}
