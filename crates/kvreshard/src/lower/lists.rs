//! Ids for prepared rows, and exact coalesced lists.

use crate::error::{Error, Result};
use crate::layout::RankLayout;
use crate::plan::{Copy, Run};
use crate::units::{add, mul, sub, wide};

use super::pairing::{CellPages, Pairing, Partial};
use super::rows::{Prepared, Strand, region};
use crate::plan::build::copies_of;
use crate::plan::lane::Track;
use crate::plan::matching::match_layers;

/// One descriptor pair: `length` bytes at each address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Address on the local side.
    pub local: u64,
    /// Address on the remote side.
    pub remote: u64,
    /// Bytes.
    pub length: u64,
    /// NIXL's device id on the local side.
    pub local_device: u32,
    /// NIXL's device id on the remote side.
    pub remote_device: u32,
}

/// A run with the regions that it must not leave when it is joined with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Placed {
    local_region: usize,
    run: Run,
    remote_region: usize,
}

impl Placed {
    /// Whether `next` begins where this ends, on both sides and in the same regions.
    fn touches(&self, next: &Self) -> bool {
        (self.local_region, self.remote_region) == (next.local_region, next.remote_region)
            && self.run.local.checked_add(self.run.len) == Some(next.run.local)
            && self.run.remote.checked_add(self.run.len) == Some(next.run.remote)
    }
}

impl Pairing {
    fn cell(&self, strand: &Strand) -> Option<&CellPages> {
        self.pages.get(strand.pair).and_then(|cells| cells.get(strand.cell))
    }

    /// How many ids the request has in `prepared`.
    ///
    /// # Errors
    /// [`Error::Request`] when prepared rows cannot serve the request ([`fits_rows`](Self::fits_rows)).
    pub fn id_count(&self, prepared: &Prepared) -> Result<usize> {
        self.whole()?;
        let mut count: usize = 0;
        for strand in &prepared.strands {
            let pages = self.cell(strand).map_or(0, |pages| pages.local.len());
            count = count.checked_add(pages).ok_or_else(|| Error::overflow("ids of a request"))?;
        }
        Ok(count)
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

    /// Writes the ids of both sides; `local[i]` and `remote[i]` are one descriptor pair. Both slices must have
    /// [`id_count`](Self::id_count) elements.
    ///
    /// # Errors
    /// [`Error::Limit`] when a slice has another length.
    pub fn write_ids(&self, prepared: &Prepared, local: &mut [i32], remote: &mut [i32]) -> Result<()> {
        let count = self.id_count(prepared)?;
        for given in [local.len(), remote.len()] {
            if given != count {
                return Err(Error::limit("elements of an id buffer", wide(given), wide(count)));
            }
        }
        let (mut local, mut remote) = (local, remote);
        for strand in &prepared.strands {
            let Some(pages) = self.cell(strand) else { continue };
            local = number(local, &pages.local, strand.local_start)?;
            remote = number(remote, &pages.remote, strand.remote_start)?;
        }
        Ok(())
    }

    /// How many descriptors NIXL posts for the request's ids in `prepared`: it joins consecutive ids, inside a row whose
    /// descriptors are dense on both sides.
    ///
    /// # Errors
    /// As [`id_count`](Self::id_count).
    pub fn posted_by_ids(&self, prepared: &Prepared) -> Result<u64> {
        self.id_count(prepared)?;
        let mut posted = 0;
        // Most strands share their cell, so the joins of each are counted once.
        let mut known: Vec<(usize, usize, u64)> = Vec::new();
        for strand in &prepared.strands {
            let Some(pages) = self.cell(strand) else { continue };
            let count = wide(pages.local.len());
            let joins = if !strand.dense() {
                0
            } else if let Some(found) = known.iter().find(|known| (known.0, known.1) == (strand.pair, strand.cell)) {
                found.2
            } else {
                let joins = joins(pages);
                known.push((strand.pair, strand.cell, joins));
                joins
            };
            posted = add(posted, sub(count, joins, "joined ids")?, "posted descriptors")?;
        }
        Ok(posted)
    }

    /// Exactly the wanted bytes, coalesced: runs that touch on both sides, inside one region on each, are one descriptor.
    ///
    /// `list` picks one of `prepared`, the plan's prepared lists, and so a pair of memory kinds; all of them together are the request.
    ///
    /// # Errors
    /// [`Error::Overflow`] when an address does not fit.
    pub fn lists(&self, prepared: &[Prepared], list: usize) -> Result<Vec<Descriptor>> {
        let Some(of) = prepared.get(list) else { return Ok(Vec::new()) };
        let mut runs = Vec::new();
        self.joined(prepared, list, of, |run| runs.push(run))?;
        let mut list = Vec::with_capacity(runs.len());
        for one in runs {
            list.push(Descriptor {
                local: one.run.local,
                remote: one.run.remote,
                length: one.run.len,
                local_device: region(self.plan.local(), one.local_region)?.device(),
                remote_device: region(self.plan.remote(), one.remote_region)?.device(),
            });
        }
        Ok(list)
    }

    /// The same as NIXL's Nx3 tables (address, length, device) of both sides, into buffers that are cleared and can be reused.
    ///
    /// # Errors
    /// As [`lists`](Self::lists).
    pub fn write_lists(
        &self,
        prepared: &[Prepared],
        list: usize,
        local: &mut Vec<u64>,
        remote: &mut Vec<u64>,
    ) -> Result<()> {
        local.clear();
        remote.clear();
        let Some(of) = prepared.get(list) else { return Ok(()) };
        let devices = |layout: &RankLayout| -> Vec<u64> {
            layout.regions().iter().map(|region| u64::from(region.device())).collect()
        };
        let (here, there) = (devices(self.plan.local()), devices(self.plan.remote()));
        let device = |devices: &[u64], region: usize| devices.get(region).copied().unwrap_or_default();
        self.joined(prepared, list, of, |one| {
            local.extend_from_slice(&[one.run.local, one.run.len, device(&here, one.local_region)]);
            remote.extend_from_slice(&[one.run.remote, one.run.len, device(&there, one.remote_region)]);
        })
    }

    /// Hands over every joined run.
    fn joined(&self, prepared: &[Prepared], list: usize, of: &Prepared, mut out: impl FnMut(Placed)) -> Result<()> {
        if self.ascends(of) {
            self.in_order(of, out);
        } else {
            self.sorted(prepared, list, of)?.into_iter().for_each(&mut out);
        }
        Ok(())
    }

    /// Whether the order lane, page, run is the order of local addresses in every region, so that nothing need be sorted.
    fn ascends(&self, of: &Prepared) -> bool {
        let mut ends: Vec<u64> = vec![0; self.plan.local().regions().len()];
        let mut lane_ascends = |strands: &[Strand]| {
            let (first, last) = (strands.first()?, strands.last()?);
            let pages = &self.cell(first)?.local;
            let (Some(lowest), Some(highest)) = (pages.first(), pages.last()) else { return Some(()) };
            let reach = last.local.address.checked_add(last.local.length)?.checked_sub(first.local.address)?;
            let end = ends.get_mut(first.local_region)?;
            let start = address(first.local.address, *lowest, first.local.stride).ok()?;
            let fits = (pages.len() == 1 || reach <= first.local.stride) && start >= *end;
            *end = address(last.local.address, *highest, last.local.stride).ok()?.checked_add(last.local.length)?;
            fits.then_some(())
        };
        self.partial.is_empty() && of.strands.chunk_by(|a, b| a.lane == b.lane).all(|lane| lane_ascends(lane).is_some())
    }

    /// Joins runs in the order lane, page, run.
    fn in_order(&self, of: &Prepared, mut out: impl FnMut(Placed)) {
        let mut open: Option<Placed> = None;
        for strands in of.strands.chunk_by(|a, b| a.lane == b.lane) {
            let Some(pages) = strands.first().and_then(|first| self.cell(first)) else { continue };
            for (here, there) in pages.local.iter().zip(&pages.remote) {
                let (here, there) = (u64::from(here.unsigned_abs()), u64::from(there.unsigned_abs()));
                for strand in strands {
                    // Cannot wrap: the page is below the row's count, and the row's last address was checked.
                    let next = Placed {
                        local_region: strand.local_region,
                        remote_region: strand.remote_region,
                        run: Run {
                            local: strand.local.address.wrapping_add(here.wrapping_mul(strand.local.stride)),
                            remote: strand.remote.address.wrapping_add(there.wrapping_mul(strand.remote.stride)),
                            len: strand.local.length,
                        },
                    };
                    match &mut open {
                        Some(last) if last.touches(&next) => last.run.len = last.run.len.wrapping_add(next.run.len),
                        _ => {
                            if let Some(done) = open.replace(next) {
                                out(done);
                            }
                        }
                    }
                }
            }
        }
        if let Some(done) = open {
            out(done);
        }
    }

    /// All runs, sorted by local address and joined.
    fn sorted(&self, prepared: &[Prepared], list: usize, of: &Prepared) -> Result<Vec<Placed>> {
        let mut placed = Vec::new();
        for strand in &of.strands {
            let Some(pages) = self.cell(strand) else { continue };
            let partial: Vec<&Partial> =
                self.partial.iter().filter(|p| (p.pair, p.cell) == (strand.pair, strand.cell)).collect();
            for (here, there) in pages.local.iter().zip(&pages.remote) {
                if partial.iter().any(|p| p.local_page == *here && p.remote_page == *there) {
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
        // Partial cells belong to the first list of their memory kinds, should ids have split it.
        let first = prepared.iter().position(|other| other.memory() == of.memory()) == Some(list);
        if first && !self.partial.is_empty() {
            self.place_partial(of, &mut placed)?;
        }
        placed.sort_unstable();
        let mut joined: Vec<Placed> = Vec::with_capacity(placed.len());
        for next in placed {
            match joined.last_mut().filter(|last| last.touches(&next)) {
                Some(last) => last.run.len = add(last.run.len, next.run.len, "descriptor length")?,
                None => joined.push(next),
            }
        }
        Ok(joined)
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
                                copies.push((first.segments(), copies_of(these, groups.kind, &spans)?));
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

type SegmentCopies = ((usize, usize), Vec<Copy>);

fn place(copies: &[Copy], base: Run, regions: (usize, usize), placed: &mut Vec<Placed>) -> Result<()> {
    let mut runs = Vec::new();
    for copy in copies {
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

/// Fills the front of `out` with `start + page` and returns what is left of it.
fn number<'a>(out: &'a mut [i32], pages: &[i32], start: u64) -> Result<&'a mut [i32]> {
    let overflow = || Error::overflow("descriptor id");
    let start = i32::try_from(start).map_err(|_| overflow())?;
    let (front, rest) = out.split_at_mut_checked(pages.len()).ok_or_else(overflow)?;
    for (id, page) in front.iter_mut().zip(pages) {
        // Cannot wrap: a page is below its row's count, and all counts of a list add up to at most 2^31.
        *id = start.wrapping_add(*page);
    }
    Ok(rest)
}

/// How many neighbours advance by one on both sides.
fn joins(pages: &CellPages) -> u64 {
    let local = pages.local.iter().zip(pages.local.iter().skip(1));
    let remote = pages.remote.iter().zip(pages.remote.iter().skip(1));
    let next = |(one, other): (&i32, &i32)| one.checked_add(1) == Some(*other);
    wide(local.zip(remote).filter(|(here, there)| next(*here) && next(*there)).count())
}
