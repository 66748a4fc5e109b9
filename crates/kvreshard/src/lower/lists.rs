//! Ids for prepared rows, and exact coalesced lists.

use crate::error::{Error, Result};
use crate::plan::{Copy, Run};
use crate::units::{add, mul, sub, wide};

use super::descriptor::{Descriptor, Sink, Tables};
use super::ids::joins;
use super::joiner::{Joiner, Placed};
use super::pairing::{CellPages, Pairing};
use super::rows::{MAX_ROWS, Prepared, Row, Strand, region};
use crate::plan::build::copies_of;
use crate::plan::copy::bounded;
use crate::plan::lane::Track;
use crate::plan::matching::match_layers;
use crate::plan::work::Work;

impl Strand {
    /// The run of a pair of pages.
    #[inline]
    pub(super) fn run(&self, here: i32, there: i32) -> Run {
        // Cannot wrap: a page is not negative and below the row's count, and the row's last address was checked. The signed product
        // has the same bits, and takes a page without a test of its sign.
        let signed = |stride: u64| i64::from_ne_bytes(stride.to_ne_bytes());
        let at = |row: &Row, page| row.address.wrapping_add_signed(i64::from(page).wrapping_mul(signed(row.stride)));
        Run { local: at(&self.local, here), remote: at(&self.remote, there), len: self.local.length }
    }
}

impl Pairing {
    pub(super) fn cell(&self, strand: &Strand) -> Option<&CellPages> {
        self.pages.get(strand.pair).and_then(|cells| cells.get(strand.cell))
    }

    /// Refuses a request that begins inside a row, or ends inside one of which others fill the rest: rows and tiles move whole.
    pub(super) fn whole(&self) -> Result<()> {
        for partial in &self.partial {
            let Some(end) = partial.kept else { continue };
            let at = if end == "start" { partial.states.start() } else { partial.states.end() };
            return Err(Error::Request {
                side: self.plan.direction().destination(),
                group: None,
                field: format!("tokens {end}"),
                found: format!("inside a row, {at} states after its period"),
                expected: "a row boundary; exact lists serve any interval".to_owned(),
            });
        }
        Ok(())
    }

    /// Runs of all pages of the request, those that NIXL joins counted once, and their bytes; whole rows, though the tokens wanted
    /// may begin or end inside one.
    pub(crate) fn runs(&self) -> Result<(u64, u64)> {
        let (mut runs, mut bytes) = (0, 0);
        for lane in self.plan.lanes() {
            let Some(pages) = self.pages.get(lane.pair).and_then(|cells| cells.get(lane.cell)) else { continue };
            let count = wide(pages.local.len());
            let dense =
                |track: &Track| matches!(&*lane.copies, [one] if one.loops.is_empty() && one.run == track.stride);
            let joined = if dense(&lane.local) && dense(&lane.remote) { joins(pages) } else { 0 };
            runs = add(runs, sub(mul(lane.runs()?, count, "runs")?, joined, "joined runs")?, "runs of a request")?;
            for copy in lane.copies.iter() {
                bytes = add(bytes, mul(copy.bytes()?, count, "bytes of a request")?, "bytes of a request")?;
            }
        }
        Ok((runs, bytes))
    }

    /// Exactly the wanted bytes, coalesced: runs that touch on both sides, inside one region on each, are one descriptor.
    ///
    /// `list` picks one of `prepared`, the plan's prepared lists, and so a pair of memory kinds; all of them together are the request.
    ///
    /// # Errors
    /// [`Error::Overflow`] when an address does not fit.
    pub fn lists(&self, prepared: &[Prepared], list: usize) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        self.joined(prepared, list, &mut found)?;
        Ok(found)
    }

    /// The same as NIXL's Nx3 tables of both sides, a row `[address, length, device]`, into buffers that are cleared and can be
    /// reused.
    ///
    /// # Errors
    /// As [`lists`](Self::lists).
    pub fn write_lists(
        &self,
        prepared: &[Prepared],
        list: usize,
        local: &mut Vec<[u64; 3]>,
        remote: &mut Vec<[u64; 3]>,
    ) -> Result<()> {
        local.clear();
        remote.clear();
        self.joined(prepared, list, &mut Tables { local, remote })
    }

    /// Hands over every joined run, by ascending local region and address.
    fn joined(&self, prepared: &[Prepared], list: usize, out: &mut impl Sink) -> Result<()> {
        let Some(of) = prepared.get(list) else { return Ok(()) };
        let mut partial = Vec::new();
        // Partial cells belong to the first list of their memory kinds, should ids have split it.
        if prepared.iter().position(|other| other.memory() == of.memory()) == Some(list) {
            self.place_partial(of, &mut partial)?;
            partial.sort_unstable();
        }
        let mut joiner = Joiner::new(&self.plan, out);
        match self.lanes_in_order(of) {
            Some(lanes) => self.join_lanes(&lanes, &partial, &mut joiner),
            None => self.sorted(of, partial)?.iter().for_each(|one| joiner.place(one)),
        }
        joiner.flush();
        Ok(())
    }

    /// The lanes by ascending local region and address, if lane, page, run then is the order of all local addresses.
    fn lanes_in_order<'a>(&self, of: &'a Prepared) -> Option<Vec<&'a [Strand]>> {
        let lane = |one: &Strand, other: &Strand| one.lane == other.lane;
        let mut lanes: Vec<&[Strand]> = of.strands.chunk_by(lane).collect();
        lanes.sort_by_key(|strands| strands.first().map(|first| (first.local_region, first.local.address)));
        let mut end = (0, 0);
        for strands in &lanes {
            let (first, last) = (strands.first()?, strands.last()?);
            let pages = &self.cell(first)?.local;
            let (Some(lowest), Some(highest)) = (pages.first(), pages.last()) else { continue };
            let reach = last.local.address.checked_add(last.local.length)?.checked_sub(first.local.address)?;
            let start = (first.local_region, address(first.local.address, *lowest, first.local.stride).ok()?);
            if start < end || (pages.len() > 1 && reach > first.local.stride) {
                return None;
            }
            let highest = address(last.local.address, *highest, last.local.stride).ok()?;
            end = (first.local_region, highest.checked_add(last.local.length)?);
        }
        Some(lanes)
    }

    /// Joins the runs of whole cells, in the order lane, page, run, with those of partial cells in between.
    fn join_lanes(&self, lanes: &[&[Strand]], partial: &[Placed], joiner: &mut Joiner<'_, impl Sink>) {
        let mut partial = partial.iter().peekable();
        for strands in lanes {
            let Some(first) = strands.first() else { continue };
            let Some(pages) = self.cell(first) else { continue };
            let regions = (first.local_region, first.remote_region);
            for (here, there) in uncut(pages, &self.cut_pages(first)) {
                // Partial runs lie at the pages between two stretches, or between two lanes: never inside either.
                let (Some(local), Some(remote)) = (here.first(), there.first()) else { continue };
                let start = first.run(*local, *remote).local;
                while let Some(one) = partial.next_if(|one| (one.local_region, one.run.local) < (regions.0, start)) {
                    joiner.place(one);
                }
                // Not before: a run of the lane before this one may have had its partial run still to come.
                joiner.enter(regions);
                match strands {
                    [strand] => joiner.pages(strand, here, there),
                    _ => here.iter().zip(there).for_each(|(here, there)| {
                        strands.iter().for_each(|strand| joiner.push(strand.run(*here, *there)));
                    }),
                }
            }
        }
        partial.for_each(|one| joiner.place(one));
    }

    /// Pages of the strand's cell that are wanted in part.
    fn cut_pages(&self, strand: &Strand) -> Vec<(i32, i32)> {
        let partial = self.partial.iter().filter(|partial| (partial.pair, partial.cell) == (strand.pair, strand.cell));
        partial.map(|partial| (partial.local_page, partial.remote_page)).collect()
    }

    /// All runs, sorted by local region and address, with those of partial cells added.
    fn sorted(&self, of: &Prepared, partial: Vec<Placed>) -> Result<Vec<Placed>> {
        let mut placed = partial;
        for strand in &of.strands {
            let Some(pages) = self.cell(strand) else { continue };
            let cut = self.cut_pages(strand);
            for (here, there) in pages.local.iter().zip(&pages.remote) {
                if !cut.is_empty() && cut.contains(&(*here, *there)) {
                    continue;
                }
                placed.push(Placed {
                    local_region: strand.local_region,
                    remote_region: strand.remote_region,
                    run: Run {
                        local: address(strand.local.address, *here, strand.local.stride)?,
                        remote: address(strand.remote.address, *there, strand.remote.stride)?,
                        len: strand.local.length,
                    },
                });
            }
        }
        placed.sort_unstable();
        Ok(placed)
    }

    /// The runs of cells that are wanted in part, worked out once for each kind of layer.
    fn place_partial(&self, of: &Prepared, placed: &mut Vec<Placed>) -> Result<()> {
        for partial in &self.partial {
            let Some(groups) = self.plan.pairs().get(partial.pair) else { continue };
            let Some(cell) = groups.period.cells.get(partial.cell) else { continue };
            let spans = cell.spans(Some(partial.states))?;
            let mut known: Vec<(usize, Vec<SegmentCopies>)> = Vec::new();
            for layers in self.plan.layer_pairs().iter().filter(|layers| layers.pair == partial.pair) {
                let here = self.plan.local().layers().get(layers.local);
                let there = self.plan.remote().layers().get(layers.remote);
                let (Some(here), Some(there)) = (here, there) else { continue };
                let at = match known.iter().position(|(kind, _)| *kind == layers.kind) {
                    Some(at) => at,
                    None => {
                        let matches = match_layers(here, there, layers.take.as_deref())?;
                        let mut copies = Vec::new();
                        for these in matches.chunk_by(|a, b| a.segments() == b.segments()) {
                            if let Some(first) = these.first() {
                                copies.push((
                                    first.segments(),
                                    copies_of(these, groups.kind, &spans, &mut Work::default())?,
                                ));
                            }
                        }
                        known.push((layers.kind, copies));
                        known.len().saturating_sub(1)
                    }
                };
                for ((local, remote), copies) in known.get(at).map(|(_, copies)| copies).into_iter().flatten() {
                    let (Some(local), Some(remote)) = (here.segments().get(*local), there.segments().get(*remote))
                    else {
                        continue;
                    };
                    let memory = (
                        region(self.plan.local(), local.region())?.memory(),
                        region(self.plan.remote(), remote.region())?.memory(),
                    );
                    if memory != of.memory() {
                        continue;
                    }
                    let tracks = (Track::new(self.plan.local(), local)?, Track::new(self.plan.remote(), remote)?);
                    let base = Run {
                        local: address(tracks.0.address, partial.local_page, tracks.0.stride)?,
                        remote: address(tracks.1.address, partial.remote_page, tracks.1.stride)?,
                        len: 0,
                    };
                    place(copies, base, (tracks.0.region, tracks.1.region), placed)?;
                }
            }
        }
        Ok(())
    }
}

/// Stretches of pages between those that are cut.
fn uncut<'a>(pages: &'a CellPages, cut: &[(i32, i32)]) -> Vec<(&'a [i32], &'a [i32])> {
    if cut.is_empty() {
        return vec![(&pages.local, &pages.remote)];
    }
    let pairs = pages.local.iter().zip(&pages.remote).enumerate();
    let mut ends: Vec<usize> =
        pairs.filter(|(_, (here, there))| cut.contains(&(**here, **there))).map(|(at, _)| at).collect();
    ends.push(pages.local.len());
    let mut start = 0;
    let mut stretches = Vec::with_capacity(ends.len());
    for end in ends {
        if let (Some(here), Some(there)) = (pages.local.get(start..end), pages.remote.get(start..end)) {
            stretches.push((here, there));
        }
        start = end.saturating_add(1);
    }
    stretches
}

type SegmentCopies = ((usize, usize), Vec<Copy>);

fn place(copies: &[Copy], base: Run, regions: (usize, usize), placed: &mut Vec<Placed>) -> Result<()> {
    let mut runs = Vec::new();
    let mut count = wide(placed.len());
    for copy in copies {
        count = add(count, copy.runs()?, "runs of a request")?;
        bounded("runs of a request's partly wanted pages", count, MAX_ROWS)?;
        copy.expand(&mut runs)?;
    }
    for run in runs {
        let run = Run {
            local: add(base.local, run.local, "run address")?,
            remote: add(base.remote, run.remote, "run address")?,
            len: run.len,
        };
        placed.push(Placed { local_region: regions.0, remote_region: regions.1, run });
    }
    Ok(())
}

/// The address of page `page`; ids were checked to be in range when the pages were paired.
pub(crate) fn address(first: u64, page: i32, stride: u64) -> Result<u64> {
    let page = u64::try_from(page).map_err(|_| Error::overflow("page id"))?;
    add(first, mul(page, stride, "page address")?, "page address")
}

#[cfg(test)]
mod tests;
