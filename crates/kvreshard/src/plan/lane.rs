//! A lane: what one pair of pages exchanges, between one stretch of pages on each side.
//!
//! ```text
//! local pages    |..AAAA....BB|..AAAA....BB|        copies say which bytes of a page,
//! remote pages   |AAAA..|BB....|AAAA..|BB....|      ids of a request say which pages
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::layout::{RankLayout, Segment};
use crate::units::{add, mul, sub};

use super::copy::{Copy, MAX_EXACT_RUNS, compress, fewer, join, nests};
use super::work::Work;

/// Equidistant pages on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Track {
    pub(crate) region: usize,
    pub(crate) stride: u64,
    pub(crate) pages: u64,
    /// Where the copies of page 0 count from.
    pub(crate) address: u64,
}

impl Track {
    pub(crate) fn new(layout: &RankLayout, segment: &Segment) -> Result<Self> {
        let region = layout.regions().get(segment.region()).ok_or_else(|| Error::overflow("region index"))?;
        Ok(Self {
            region: segment.region(),
            stride: segment.page_stride(),
            pages: segment.pages(),
            address: add(region.base(), segment.offset(), "region base + offset")?,
        })
    }

    /// One bad address kills the connection to a peer for all requests: proves that `end` bytes of the last page are inside.
    fn prove(&self, layout: &RankLayout, end: u64) -> Result<()> {
        let region = layout.regions().get(self.region).ok_or_else(|| Error::overflow("region index"))?;
        let term = "address of the last page";
        let last = add(self.address, mul(sub(self.pages, 1, term)?, self.stride, term)?, term)?;
        if add(last, end, term)? > add(region.base(), region.bytes(), term)? {
            return Err(Error::overflow("a planned run outside its region"));
        }
        Ok(())
    }
}

/// Copies between the pages of two tracks, for one cell of one pair of groups.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) pair: usize,
    pub(crate) cell: usize,
    pub(crate) local: Track,
    pub(crate) remote: Track,
    /// In the fewest runs, for descriptors.
    pub(crate) copies: Arc<[Copy]>,
    /// The same bytes in fewer, more regular copies where there are such, for kernels.
    pub(crate) nests: Arc<[Copy]>,
}

impl Lane {
    pub(crate) fn prove(&self, local: &RankLayout, remote: &RankLayout) -> Result<()> {
        let (mut here, mut there) = (0, 0);
        for copy in self.copies.iter() {
            here = here.max(copy.local_end()?);
            there = there.max(copy.remote_end()?);
        }
        self.local.prove(local, here)?;
        self.remote.prove(remote, there)
    }

    pub(crate) fn runs(&self) -> Result<u64> {
        self.copies.iter().try_fold(0, |sum, copy| add(sum, copy.runs()?, "runs of a lane"))
    }

    /// The addresses on the local side that page 0 spans.
    fn reach(&self) -> Result<(u64, u64)> {
        let (mut start, mut end) = (u64::MAX, 0);
        for copy in self.copies.iter() {
            start = start.min(add(self.local.address, copy.local, "run address")?);
            end = end.max(add(self.local.address, copy.local_end()?, "run address")?);
        }
        Ok((start, end))
    }
}

/// Joins runs of lanes whose pages step together on both sides: K with V in two segments, layer with layer in packed rows.
pub(crate) fn join_lanes(lanes: Vec<Lane>, work: &mut Work) -> Result<Vec<Lane>> {
    type Key = (usize, usize, (usize, u64, u64), (usize, u64, u64));
    let key = |lane: &Lane| -> Key {
        let track = |track: &Track| (track.region, track.stride, track.pages);
        (lane.pair, lane.cell, track(&lane.local), track(&lane.remote))
    };
    let mut families: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (index, lane) in lanes.iter().enumerate() {
        families.entry(key(lane)).or_default().push(index);
    }
    if families.len() == lanes.len() {
        return Ok(lanes);
    }
    // In the order of each family's first lane, so that layers stay in the order given.
    let mut families: Vec<Vec<usize>> = families.into_values().collect();
    families.sort_unstable_by_key(|members| members.first().copied());
    let mut joined = Vec::with_capacity(lanes.len());
    for members in families {
        let members: Vec<&Lane> = members.iter().filter_map(|index| lanes.get(*index)).collect();
        match join_family(&members, work)? {
            Some(lane) => joined.push(lane),
            None => joined.extend(members.into_iter().cloned()),
        }
    }
    Ok(joined)
}

/// One lane for all, if any two of them touch or interleave on the local side.
fn join_family(members: &[&Lane], work: &mut Work) -> Result<Option<Lane>> {
    let mut reaches = Vec::with_capacity(members.len());
    let mut runs = 0;
    for lane in members {
        reaches.push(lane.reach()?);
        runs = add(runs, lane.runs()?, "runs of lanes")?;
    }
    reaches.sort_unstable();
    let apart = reaches.iter().zip(reaches.iter().skip(1)).all(|(one, next)| one.1 < next.0);
    let first = members.first().copied();
    let (Some(first), false, true) = (first, apart, runs <= MAX_EXACT_RUNS) else { return Ok(None) };
    if !work.affords(runs) {
        return Ok(None);
    }
    let term = "run address";
    let base = members
        .iter()
        .fold((u64::MAX, u64::MAX), |base, lane| (base.0.min(lane.local.address), base.1.min(lane.remote.address)));
    let (mut expanded, mut regular) = (Vec::new(), Vec::new());
    for lane in members {
        let shift = (sub(lane.local.address, base.0, term)?, sub(lane.remote.address, base.1, term)?);
        for copy in lane.copies.iter() {
            copy.moved(shift, term)?.expand(&mut expanded)?;
        }
        for copy in lane.nests.iter() {
            regular.push(copy.moved(shift, term)?);
        }
    }
    let single = |run: super::copy::Run| Copy { run: run.len, loops: Vec::new(), local: run.local, remote: run.remote };
    let copies: Arc<[Copy]> = compress(join(expanded)?.into_iter().map(single))?.into();
    let regular = compress(nests(regular)?)?;
    Ok(Some(Lane {
        pair: first.pair,
        cell: first.cell,
        local: Track { address: base.0, ..first.local },
        remote: Track { address: base.1, ..first.remote },
        nests: fewer(&copies, regular),
        copies,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::format::{PageFormat, Types};
    use crate::layout::{Group, Layer, MemoryKind, Position, RankParts, Region, Shares};

    const BASE: u64 = 1 << 20;

    /// A rank with one region of four pages of 100 bytes.
    fn rank() -> RankLayout {
        let regions = vec![Region::new(BASE, 400, 0, MemoryKind::Dram).unwrap()];
        let extents = BTreeMap::from([("n".to_owned(), 10), ("d".to_owned(), 10)]);
        let format = PageFormat::new("n d k[]", &extents, &Types::all("u8".parse().unwrap())).unwrap();
        let pages = Segment::new(0, format, 0, 4, 100, Shares::default()).unwrap();
        let (groups, layers) = (vec![Group::PLAIN], vec![Layer::new("l", vec![pages], 0, None).unwrap()]);
        let (engine, position) = ("e".to_owned(), Position::ALONE);
        RankLayout::new(RankParts { engine, generation: 0, position, regions, groups, layers }).unwrap()
    }

    /// A lane that copies 10 bytes from `local` of each local page to `remote` of each remote one.
    fn lane(local: u64, remote: u64, pages: u64) -> Lane {
        let track = Track { region: 0, stride: 100, pages, address: BASE };
        let copies: Arc<[Copy]> = Arc::new([Copy { run: 10, loops: Vec::new(), local, remote }]);
        Lane { pair: 0, cell: 0, local: track, remote: track, copies: copies.clone(), nests: copies }
    }

    #[test]
    fn a_lane_that_leaves_its_region_on_either_side_is_refused() {
        let rank = rank();
        let proven = |lane: Lane| lane.prove(&rank, &rank);
        let outside = Err(Error::Overflow { term: "a planned run outside its region".to_owned() });
        // The last page's last byte is the region's.
        assert_eq!(proven(lane(90, 90, 4)), Ok(()));
        assert_eq!(proven(lane(91, 0, 4)), outside);
        assert_eq!(proven(lane(0, 91, 4)), outside);
        assert_eq!(proven(lane(0, 0, 5)), outside);
        let mut elsewhere = lane(0, 0, 1);
        elsewhere.remote.region = 1;
        assert_eq!(proven(elsewhere), Err(Error::Overflow { term: "region index".to_owned() }));
        let mut wrapped = lane(0, 0, 4);
        wrapped.local.address = u64::MAX;
        assert_eq!(proven(wrapped), Err(Error::Overflow { term: "address of the last page".to_owned() }));
    }

    /// The same lane `at` bytes further on both sides.
    fn further(at: u64) -> Lane {
        let lane = lane(0, 0, 4);
        let track = Track { address: BASE + at, ..lane.local };
        Lane { local: track, remote: track, ..lane }
    }

    fn joined(lanes: &[Lane]) -> Vec<(u64, u64, Vec<Copy>)> {
        let joined = join_lanes(lanes.to_vec(), &mut Work::default()).unwrap();
        joined.iter().map(|lane| (lane.local.address, lane.remote.address, lane.copies.to_vec())).collect()
    }

    #[test]
    fn lanes_whose_runs_touch_are_one_from_the_lowest_address_on() {
        let run = |run| vec![Copy { run, loops: Vec::new(), local: 0, remote: 0 }];
        assert_eq!(joined(&[further(10), further(0)]), [(BASE, BASE, run(20))]);
        let apart = [(BASE + 11, BASE + 11, run(10)), (BASE, BASE, run(10))];
        assert_eq!(joined(&[further(11), further(0)]), apart);
        // Of three that step together two touch: all are one lane, with a gap.
        let copies = vec![
            Copy { run: 20, loops: Vec::new(), local: 0, remote: 0 },
            Copy { run: 10, loops: Vec::new(), local: 30, remote: 30 },
        ];
        let mut three = joined(&[further(30), further(10), further(0)]);
        three.iter_mut().for_each(|(_, _, copies)| copies.sort_unstable_by_key(|copy| copy.local));
        assert_eq!(three, [(BASE, BASE, copies)]);
    }

    #[test]
    fn lanes_that_do_not_step_together_stay_apart() {
        let (one, mut other) = (further(0), further(10));
        other.remote.pages = 3;
        assert_eq!(joined(&[one.clone(), other]).len(), 2);
        let elsewhere = Lane { cell: 1, ..further(10) };
        assert_eq!(joined(&[one, elsewhere]).len(), 2);
    }

    #[test]
    fn lanes_of_too_many_runs_stay_apart() {
        let of = |address: u64, runs: u64| {
            let loops = vec![super::super::copy::Loop { extent: runs, local: 2, remote: 2 }];
            let copies: Arc<[Copy]> = Arc::new([Copy { run: 1, loops, local: 0, remote: 0 }]);
            Lane { copies: copies.clone(), nests: copies, ..further(address) }
        };
        let half = MAX_EXACT_RUNS / 2;
        assert_eq!(joined(&[of(0, half), of(1, half + 1)]).len(), 2);
        let mut spent = Work::default();
        assert!(spent.affords(crate::plan::MAX_PLAN_RUNS - 7));
        assert_eq!(join_lanes(vec![of(0, 4), of(1, 4)], &mut spent).unwrap().len(), 2);
        assert_eq!(join_lanes(vec![of(0, 3), of(1, 3)], &mut spent).unwrap().len(), 1);
    }
}
