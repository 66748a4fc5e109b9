//! Landing: whole spans of remote pages are read into a buffer of the receiver, and scattered from there.
//!
//! The peer need not know. Each remote page is read once, from the first to the last byte that any local page needs of it:
//!
//! ```text
//! remote page    |..KKKK..VVVV..|        needed by local pages A and B
//!                   <- span ->
//! buffer         |KKKK..VVVV|            scattered to A and to B
//! ```
//!
//! Where a page lies in planes, which other pages lie between, each plane has a stretch of its own:
//!
//! ```text
//! remote planes  |KKKK|KKKK|..|VVVV|VVVV|..|
//! buffer         |KKKK|VVVV|KKKK|VVVV|
//! ```

use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::plan::lane::{Lane, Track};
use crate::plan::{Copy, Loop, Plan};
use crate::units::{add, index, mul, sub, wide};

use super::lists::{Descriptor, address};
use super::pairing::Pairing;
use super::rows::region;
use super::tiles::{Tile, TileLoop, Tiles};

/// A loop over planes is unrolled while it stands for no more than this many copies; beyond it one span covers them all.
const MAX_PLANES: u64 = 4096;

/// A span of every page of one remote track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landing {
    /// Bytes of the span; of all its stretches, where a page has several.
    pub bytes: u64,
    pair: usize,
    track: Track,
    stretches: Arc<[Stretch]>,
}

/// Contiguous bytes of a remote page, and where they begin in the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    start: u64,
    bytes: u64,
    buffer: u64,
}

/// How a plan is landed: the spans to read, and the tiles that scatter them into local pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    tiles: Tiles,
    landings: Vec<Landing>,
    of_lane: Vec<usize>,
}

/// Pages of one landing, one after the other in the chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LandedSpan {
    /// Index of the landing.
    pub landing: usize,
    /// Where the first page's span begins in the chunk, in bytes.
    pub offset: u64,
    /// The remote pages, ascending.
    pub pages: Vec<i32>,
}

/// What one lane scatters out of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScatterPart {
    /// Index of the lane in the tiles.
    pub lane: usize,
    /// Where place 0 begins in the chunk, in bytes.
    pub offset: u64,
    /// The local pages.
    pub pages: Vec<i32>,
    /// For each local page the place of its bytes, in units of the lane.
    pub places: Vec<i32>,
}

/// What goes through the buffer at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LandedChunk {
    /// What is read.
    pub spans: Vec<LandedSpan>,
    /// What is scattered.
    pub parts: Vec<ScatterPart>,
    /// Bytes of buffer.
    pub bytes: u64,
}

impl Landed {
    /// The tiles between the buffer and local pages.
    pub const fn tiles(&self) -> &Tiles {
        &self.tiles
    }

    /// The spans.
    pub fn landings(&self) -> &[Landing] {
        &self.landings
    }
}

impl Plan {
    /// Spans and tiles of a landed transfer, which only the destination can make: the plan must be a read.
    ///
    /// # Errors
    /// [`Error::Layout`] for a plan that writes, [`Error::Overflow`] when a size does not fit.
    pub fn landed(&self) -> Result<Landed> {
        if self.direction().destination() != Side::Local {
            return Err(Error::layout(None, "direction", self.direction().name(), "read: the receiver lands pages"));
        }
        let mut tracks: Vec<(usize, Track, Vec<(u64, u64)>)> = Vec::new();
        let mut of_lane = Vec::with_capacity(self.lanes().len());
        for lane in self.lanes() {
            let known = tracks.iter().position(|(pair, track, _)| *pair == lane.pair && *track == lane.remote);
            let at = known.unwrap_or_else(|| {
                tracks.push((lane.pair, lane.remote, Vec::new()));
                tracks.len().saturating_sub(1)
            });
            of_lane.push(at);
            if let Some((_, _, reaches)) = tracks.get_mut(at) {
                reach(lane, reaches)?;
            }
        }
        let mut landings: Vec<Landing> = Vec::with_capacity(tracks.len());
        for (pair, track, reaches) in tracks {
            let (found, bytes) = stretches(reaches, track.stride)?;
            // Landings alike share their stretches, which lanes are then told apart by.
            let known = landings.iter().find(|known| *known.stretches == *found);
            let stretches = known.map_or_else(|| found.into(), |known| Arc::clone(&known.stretches));
            landings.push(Landing { bytes, pair, track, stretches });
        }
        let of = |lane: &Lane| {
            let found = landings.iter().find(|known| known.pair == lane.pair && known.track == lane.remote);
            found.ok_or_else(|| Error::overflow("landing index"))
        };
        let place = |lane: &Lane| {
            let landing = of(lane)?;
            let like = landings.iter().position(|known| Arc::ptr_eq(&known.stretches, &landing.stretches));
            Ok((like.map_or(0, wide), landing.bytes))
        };
        let tiles = self.tiles(Side::Local, place, |lane| {
            let landing = of(lane)?;
            let mut tiles = Vec::with_capacity(lane.nests.len());
            for copy in lane.nests.iter() {
                for near in near(copy, lane.remote.stride)? {
                    tiles.push(tile(&near, &landing.stretches)?);
                }
            }
            Ok((tiles, landing.bytes))
        })?;
        Ok(Landed { tiles, landings, of_lane })
    }
}

/// The copy, its loops over planes unrolled: steps as long as from one page to the next leave the page.
fn near(copy: &Copy, stride: u64) -> Result<Vec<Copy>> {
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
fn reach(lane: &Lane, reaches: &mut Vec<(u64, u64)>) -> Result<()> {
    for copy in lane.nests.iter() {
        for near in near(copy, lane.remote.stride)? {
            reaches.push((near.remote, near.remote_end()?));
        }
    }
    Ok(())
}

/// The stretches that cover `reaches`, and their bytes. What lies nearer than a page belongs to one; beyond that, other pages lie
/// between.
fn stretches(mut reaches: Vec<(u64, u64)>, stride: u64) -> Result<(Vec<Stretch>, u64)> {
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

fn tile(copy: &Copy, stretches: &[Stretch]) -> Result<Tile> {
    let loops = copy.loops.iter().map(|one| TileLoop { extent: one.extent, page: one.local, buffer: one.remote });
    let before = stretches.partition_point(|stretch| stretch.start <= copy.remote);
    let stretch = before.checked_sub(1).and_then(|at| stretches.get(at));
    let stretch = stretch.ok_or_else(|| Error::overflow("landed offset"))?;
    let within = sub(copy.remote, stretch.start, "landed offset")?;
    let buffer = add(stretch.buffer, within, "landed offset")?;
    Ok(Tile { run: copy.run, page: copy.local, buffer, loops: loops.collect() })
}

impl Pairing {
    /// Cuts the request into chunks of at most `chunk` bytes of buffer.
    ///
    /// # Errors
    /// [`Error::Limit`] when the span of one page alone is larger than a chunk; [`Error::Request`] when the wanted tokens begin
    /// inside a row, which tiles move whole.
    pub fn landed_chunks(&self, landed: &Landed, chunk: u64) -> Result<Vec<LandedChunk>> {
        let mut chunks = Vec::new();
        let mut open = LandedChunk::default();
        for (at, landing) in landed.landings.iter().enumerate() {
            let lanes: Vec<usize> =
                landed.of_lane.iter().enumerate().filter(|(_, of)| **of == at).map(|(lane, _)| lane).collect();
            let mut needed: Vec<i32> = Vec::new();
            for lane in &lanes {
                if let Some(lane) = landed.tiles.lanes().get(*lane) {
                    needed.extend_from_slice(self.lane_pages(lane)?.1);
                }
            }
            needed.sort_unstable();
            needed.dedup();
            if landing.bytes > chunk && !needed.is_empty() {
                return Err(Error::limit("bytes of one page's span in a chunk", landing.bytes, chunk));
            }
            let mut rest = needed.as_slice();
            while !rest.is_empty() {
                let room = sub(chunk, open.bytes, "room of a chunk")?;
                let fit = room.checked_div(landing.bytes).unwrap_or(u64::MAX).min(wide(rest.len()));
                if fit == 0 {
                    chunks.push(std::mem::take(&mut open));
                    continue;
                }
                let (pages, later) = rest.split_at_checked(index(fit, "pages of a chunk")?).unwrap_or((rest, &[]));
                self.part(landed, &lanes, pages, &mut open)?;
                open.spans.push(LandedSpan { landing: at, offset: open.bytes, pages: pages.to_vec() });
                open.bytes = add(open.bytes, mul(landing.bytes, fit, "bytes of a chunk")?, "bytes of a chunk")?;
                rest = later;
            }
        }
        if !open.spans.is_empty() {
            chunks.push(open);
        }
        Ok(chunks)
    }

    /// What `lanes` scatter out of `pages`, which lie from the end of `chunk` on.
    fn part(&self, landed: &Landed, lanes: &[usize], pages: &[i32], chunk: &mut LandedChunk) -> Result<()> {
        for lane in lanes {
            let Some(about) = landed.tiles.lanes().get(*lane) else { continue };
            let (local, remote) = self.lane_pages(about)?;
            let mut part = ScatterPart { lane: *lane, offset: chunk.bytes, pages: Vec::new(), places: Vec::new() };
            for (here, there) in local.iter().zip(remote) {
                if let Ok(place) = pages.binary_search(there) {
                    part.pages.push(*here);
                    part.places.push(i32::try_from(place).map_err(|_| Error::overflow("place in a chunk"))?);
                }
            }
            if !part.pages.is_empty() {
                chunk.parts.push(part);
            }
        }
        Ok(())
    }

    /// The reads that fill a chunk whose buffer begins at `buffer` on device `device`: neighbouring pages whose spans touch are one
    /// descriptor.
    ///
    /// # Errors
    /// [`Error::Overflow`] when an address does not fit.
    pub fn landed_reads(
        &self,
        landed: &Landed,
        chunk: &LandedChunk,
        buffer: u64,
        device: u32,
    ) -> Result<Vec<Descriptor>> {
        let mut list: Vec<Descriptor> = Vec::new();
        for span in &chunk.spans {
            let Some(landing) = landed.landings.get(span.landing) else { continue };
            let remote_device = region(self.plan.remote(), landing.track.region)?.device();
            let mut local = add(buffer, span.offset, "buffer address")?;
            let mut joins = false;
            for page in &span.pages {
                for stretch in landing.stretches.iter() {
                    let first = add(landing.track.address, stretch.start, "landed address")?;
                    let remote = address(first, *page, landing.track.stride)?;
                    match list.last_mut().filter(|last| joins && last.remote.checked_add(last.length) == Some(remote)) {
                        Some(last) => last.length = add(last.length, stretch.bytes, "descriptor length")?,
                        None => list.push(Descriptor {
                            local,
                            remote,
                            length: stretch.bytes,
                            local_device: device,
                            remote_device,
                        }),
                    }
                    // Only pages of one span lie in one region for certain.
                    joins = true;
                    local = add(local, stretch.bytes, "buffer address")?;
                }
            }
        }
        Ok(list)
    }
}
