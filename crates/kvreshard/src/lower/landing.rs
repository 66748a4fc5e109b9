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
//! Where a descriptor costs more than the bytes between two spans, those are read along and the two are one descriptor: pages
//! then lie in the buffer as far apart as they do on the peer.

use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::plan::Plan;
use crate::plan::lane::{Lane, Track};
use crate::units::{add, mul, sub, wide};

use super::descriptor::Descriptor;
use super::orders::Orders;
use super::pairing::Pairing;
use super::reads::{counted, fitting, reads, unsigned};
use super::rows::region;
use super::stretches::{Stretch, near, reach, stretches, tile};
use super::tiles::Tiles;

/// At most this many times the bytes of a span are read along between two spans.
const MAX_HOLE: u64 = 8;

/// A span of every page of one remote track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landing {
    /// Bytes of the span; of all its stretches, where a page has several.
    pub bytes: u64,
    pair: usize,
    pub(super) track: Track,
    pub(super) stretches: Arc<[Stretch]>,
    /// Bytes from one place in the buffer to the next.
    pub(super) step: u64,
    /// The longest hole that is read along.
    pub(super) hole: u64,
}

impl Landing {
    /// Whether the same pages of both come to the same reads.
    fn alike(&self, other: &Self) -> bool {
        (self.step, self.hole, self.track.stride, &self.stretches)
            == (other.step, other.hole, other.track.stride, &other.stretches)
    }

    /// Places from a page to the next one that is needed, `pages` further on: as many where the pages are read at once, else one.
    pub(super) fn places(&self, pages: u64) -> u64 {
        let apart = self.track.stride.checked_mul(pages);
        let bridged = self.step == self.track.stride
            && apart.and_then(|apart| apart.checked_sub(self.bytes)).is_some_and(|hole| hole <= self.hole);
        if bridged { pages } else { 1 }
    }
}

/// How a plan is landed: the spans to read, and the tiles that scatter them into local pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    tiles: Tiles,
    landings: Vec<Landing>,
    of_lane: Vec<usize>,
}

/// Pages of one landing in a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LandedSpan {
    /// Index of the landing.
    pub landing: usize,
    /// Where place 0 begins in the chunk, in bytes.
    pub offset: u64,
    /// The remote pages, ascending.
    pub pages: Vec<i32>,
    /// The place of each, in steps of the landing; ascending.
    pub places: Vec<i32>,
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

/// Descriptors and bytes that are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LandedCount {
    /// Descriptors posted.
    pub posted: u64,
    /// Bytes read, holes included.
    pub bytes: u64,
}

impl Landed {
    /// The tiles between the buffer and local pages.
    pub const fn tiles(&self) -> &Tiles {
        &self.tiles
    }

    /// Indexes of the lanes that are scattered out of a landing.
    fn lanes_of(&self, landing: usize) -> Vec<usize> {
        self.of_lane.iter().enumerate().filter(|(_, of)| **of == landing).map(|(lane, _)| lane).collect()
    }

    /// The spans.
    pub fn landings(&self) -> &[Landing] {
        &self.landings
    }
}

impl Plan {
    /// Spans and tiles of a landed transfer, which only the destination can make: the plan must be a read.
    ///
    /// `hole` is how many bytes between two spans are worth reading along to save a descriptor
    /// ([`Transport::hole`](crate::cost::Transport::hole)); 0 reads nothing along.
    ///
    /// # Errors
    /// [`Error::Layout`] for a plan that writes, [`Error::Overflow`] when a size does not fit.
    pub fn landed(&self, hole: u64) -> Result<Landed> {
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
            // Pages that overlap are read one by one, and so are pages in planes, which others lie between.
            let hole = if stretches.len() == 1 { hole.min(bytes.saturating_mul(MAX_HOLE)) } else { 0 };
            let between = track.stride.checked_sub(bytes).filter(|_| stretches.len() == 1);
            let step = if between.is_some_and(|between| between <= hole) { track.stride } else { bytes };
            landings.push(Landing { bytes, pair, track, stretches, step, hole });
        }
        let of = |lane: &Lane| {
            let found = landings.iter().find(|known| known.pair == lane.pair && known.track == lane.remote);
            found.ok_or_else(|| Error::overflow("landing index"))
        };
        let place = |lane: &Lane| {
            let landing = of(lane)?;
            let like = landings.iter().position(|known| Arc::ptr_eq(&known.stretches, &landing.stretches));
            Ok((like.map_or(0, wide), landing.step))
        };
        let tiles = self.tiles(Side::Local, place, |lane| {
            let landing = of(lane)?;
            let mut tiles = Vec::with_capacity(lane.nests.len());
            for copy in lane.nests.iter() {
                for near in near(copy, lane.remote.stride)? {
                    tiles.push(tile(&near, &landing.stretches)?);
                }
            }
            Ok((tiles, landing.step))
        })?;
        Ok(Landed { tiles, landings, of_lane })
    }
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
        let mut orders = Orders::default();
        for (at, landing) in landed.landings.iter().enumerate() {
            let lanes = landed.lanes_of(at);
            let needed = self.needed(landed, &lanes, &mut orders)?;
            if landing.bytes > chunk && !needed.is_empty() {
                return Err(Error::limit("bytes of one page's span in a chunk", landing.bytes, chunk));
            }
            let mut rest = needed.as_slice();
            while !rest.is_empty() {
                let places = fitting(landing, rest, sub(chunk, open.bytes, "room of a chunk")?)?;
                let Some(last) = places.last() else {
                    chunks.push(std::mem::take(&mut open));
                    continue;
                };
                let end =
                    add(mul(landing.step, unsigned(*last)?, "place in a chunk")?, landing.bytes, "bytes of a chunk")?;
                let (pages, later) = rest.split_at_checked(places.len()).unwrap_or((rest, &[]));
                let span = LandedSpan { landing: at, offset: open.bytes, pages: pages.to_vec(), places };
                self.part(landed, &lanes, &span, &mut orders, &mut open)?;
                open.spans.push(span);
                open.bytes = add(open.bytes, end, "bytes of a chunk")?;
                rest = later;
            }
        }
        if !open.spans.is_empty() {
            chunks.push(open);
        }
        Ok(chunks)
    }

    /// The remote pages that `lanes` need, ascending.
    fn needed(&self, landed: &Landed, lanes: &[usize], orders: &mut Orders) -> Result<Vec<i32>> {
        let mut needed: Vec<i32> = Vec::new();
        for lane in lanes {
            if let Some(lane) = landed.tiles.lanes().get(*lane) {
                needed.extend(orders.of(self, lane)?.iter().map(|(remote, _)| *remote));
            }
        }
        needed.sort_unstable();
        needed.dedup();
        Ok(needed)
    }

    /// What [`landed_chunks`](Self::landed_chunks) and their reads come to, without making them: layers with the same pages, begun at
    /// the same place of a chunk, come to the same.
    ///
    /// # Errors
    /// As [`landed_chunks`](Self::landed_chunks).
    pub fn landed_count(&self, landed: &Landed, chunk: u64) -> Result<LandedCount> {
        let mut sum = LandedCount::default();
        let mut known: Vec<(Landing, Vec<(usize, usize)>, u64, (LandedCount, u64))> = Vec::new();
        let mut orders = Orders::default();
        let mut open = 0;
        for (at, landing) in landed.landings.iter().enumerate() {
            let lanes = landed.lanes_of(at);
            let of_lane = |lane: &usize| landed.tiles.lanes().get(*lane).map(|lane| (lane.pair, lane.cell));
            let cells: Vec<(usize, usize)> = lanes.iter().filter_map(of_lane).collect();
            let like = |one: &&(Landing, Vec<(usize, usize)>, u64, (LandedCount, u64))| {
                one.0.alike(landing) && one.1 == cells && one.2 == open
            };
            let (count, end) = match known.iter().find(like) {
                Some((_, _, _, found)) => *found,
                None => {
                    let needed = self.needed(landed, &lanes, &mut orders)?;
                    let found = counted(landing, &needed, open, chunk)?;
                    known.push((landing.clone(), cells, open, found));
                    found
                }
            };
            open = end;
            sum.posted = add(sum.posted, count.posted, "posted descriptors")?;
            sum.bytes = add(sum.bytes, count.bytes, "landed bytes")?;
        }
        Ok(sum)
    }

    /// What `lanes` scatter out of a span.
    fn part(
        &self,
        landed: &Landed,
        lanes: &[usize],
        span: &LandedSpan,
        orders: &mut Orders,
        chunk: &mut LandedChunk,
    ) -> Result<()> {
        for lane in lanes {
            let Some(about) = landed.tiles.lanes().get(*lane) else { continue };
            let mut part = ScatterPart { lane: *lane, offset: span.offset, pages: Vec::new(), places: Vec::new() };
            let mut read = span.pages.iter().zip(&span.places).peekable();
            let pairs = orders.of(self, about)?;
            let begun = span.pages.first().map_or(0, |first| pairs.partition_point(|(remote, _)| remote < first));
            for (remote, local) in pairs.iter().skip(begun) {
                while read.next_if(|(page, _)| *page < remote).is_some() {}
                // The span has every page that one of its lanes needs, up to where the chunk is full.
                let Some((_, place)) = read.peek() else { break };
                part.pages.push(*local);
                part.places.push(**place);
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
            let local = add(buffer, span.offset, "buffer address")?;
            for read in reads(landing, &span.pages, &span.places)? {
                list.push(Descriptor {
                    local: add(local, read.local, "buffer address")?,
                    remote: add(landing.track.address, read.remote, "landed address")?,
                    length: read.length,
                    local_device: device,
                    remote_device,
                });
            }
        }
        Ok(list)
    }
}
