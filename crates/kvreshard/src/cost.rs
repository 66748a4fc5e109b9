//! What a request would cost by each strategy.
//!
//! `posted * post + bytes / rate`, plus a pass over the bytes wherever a kernel gathers or scatters, plus round trips. A descriptor
//! costs about the same whatever its size, so many short runs are slow and few long ones are not. A pass is `bytes / rate + pieces *
//! piece`: on a host the pieces of a conversion, which may be single elements, cost more than their bytes.

use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::lower::{LandedCount, Pairing, Prepared, Tile, Tiles};
use crate::plan::{Direction, Plan};
use crate::units::{add, div_ceil, mul, wide};

/// How bytes are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Exactly the bytes, one descriptor a run.
    Direct,
    /// Spans of whole pages into the receiver's buffer, scattered from there. The peer need not take part.
    Landed,
    /// Gathered at the sender, one run a chunk, scattered at the receiver. The peer takes part.
    Packed,
}

impl Strategy {
    /// `direct`, `landed` or `packed`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Landed => "landed",
            Self::Packed => "packed",
        }
    }
}

impl std::str::FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "direct" => Ok(Self::Direct),
            "landed" => Ok(Self::Landed),
            "packed" => Ok(Self::Packed),
            other => Err(Error::layout(None, "strategy", other, "direct, landed or packed")),
        }
    }
}

/// One direction of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// Nanoseconds for each posted descriptor.
    pub post_ns: u64,
    /// Bytes a microsecond once posted; the same number as megabytes a second.
    pub bytes_per_us: u64,
}

/// The constants of a transport between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transport {
    /// Its name.
    pub name: &'static str,
    /// Pulling.
    pub read: Link,
    /// Pushing.
    pub write: Link,
    /// Bytes a microsecond that a gather or a scatter gets through where its pieces are long.
    pub pass_bytes_per_us: u64,
    /// Picoseconds that each contiguous piece of a gather or a scatter adds to that.
    pub pass_piece_ps: u64,
    /// Nanoseconds that gathers or scatters take beside their bytes: until the first one runs and the host has seen the last one end.
    pub pass_ns: u64,
    /// Nanoseconds for a message and its answer.
    pub round_trip_ns: u64,
}

/// The transports that were measured. Constants belong to the machines named; [`Transport::name`] picks one, `calibrate` replaces it.
///
/// * `cma`: UCX between two processes of one host over process_vm_readv, 2-core virtual machine.
/// * `tcp`: UCX over TCP on the loopback of the same machine.
/// * `cuda_ipc`: UCX between processes on two H200s linked by NVLink, GET zero-copy enabled; `pass_ns` and `round_trip_ns` are what
///   landed and packed requests of one page took longer than direct ones. With both on one H200 a descriptor costs 10 us, and
///   bytes follow five times as fast.
pub const TRANSPORTS: [Transport; 3] = [
    Transport {
        name: "cma",
        read: Link { post_ns: 3_100, bytes_per_us: 7_400 },
        write: Link { post_ns: 3_000, bytes_per_us: 7_500 },
        pass_bytes_per_us: 2_000,
        pass_piece_ps: 1_300,
        pass_ns: 0,
        round_trip_ns: 200_000,
    },
    Transport {
        name: "tcp",
        read: Link { post_ns: 4_400, bytes_per_us: 470 },
        write: Link { post_ns: 10_600, bytes_per_us: 1_000 },
        pass_bytes_per_us: 2_000,
        pass_piece_ps: 1_300,
        pass_ns: 0,
        round_trip_ns: 200_000,
    },
    Transport {
        name: "cuda_ipc",
        read: Link { post_ns: 5_600, bytes_per_us: 390_000 },
        write: Link { post_ns: 5_300, bytes_per_us: 394_000 },
        pass_bytes_per_us: 1_900_000,
        pass_piece_ps: 0,
        pass_ns: 400_000,
        round_trip_ns: 80_000,
    },
];

/// What a request costs by one strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cost {
    /// The strategy.
    pub strategy: Strategy,
    /// Descriptors posted.
    pub posted: u64,
    /// Bytes over the transport.
    pub bytes: u64,
    /// Predicted nanoseconds.
    pub ns: u64,
}

/// What the two sides are able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Whether direct descriptors are of interest.
    pub direct: bool,
    /// Whether the receiver has a buffer and kernels: landed.
    pub lands: bool,
    /// Whether both sides speak the packed protocol.
    pub packs: bool,
    /// Bytes of one chunk of the buffer.
    pub chunk: u64,
}

impl Transport {
    /// The measured transport called `name`.
    ///
    /// # Errors
    /// [`Error::Layout`] when there is none.
    pub fn named(name: &str) -> Result<Self> {
        let known = || TRANSPORTS.map(|transport| transport.name).join(", ");
        let found = TRANSPORTS.into_iter().find(|transport| transport.name == name);
        found.ok_or_else(|| Error::layout(None, "transport", name, known()))
    }

    /// Nanoseconds to move `bytes` in `posted` descriptors.
    ///
    /// # Errors
    /// [`Error::Overflow`] when the time does not fit.
    pub fn transfer_ns(&self, direction: Direction, posted: u64, bytes: u64) -> Result<u64> {
        let link = match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
        };
        add(mul(posted, link.post_ns, "predicted time")?, time(bytes, link.bytes_per_us)?, "predicted time")
    }

    /// Bytes that a read moves in the time that one more descriptor takes: a shorter hole between two spans is better read along.
    pub fn hole(&self) -> u64 {
        self.read.post_ns.saturating_mul(self.read.bytes_per_us).checked_div(1_000).unwrap_or(0)
    }

    /// Nanoseconds for kernels to move `bytes` in `pieces`.
    fn passing_ns(&self, bytes: u64, pieces: u64) -> Result<u64> {
        let pieces = div_ceil(mul(pieces, self.pass_piece_ps, "predicted time")?, 1_000, "predicted time")?;
        add(add(time(bytes, self.pass_bytes_per_us)?, pieces, "predicted time")?, self.pass_ns, "predicted time")
    }
}

/// Nanoseconds for `bytes` at `rate` bytes a microsecond.
fn time(bytes: u64, rate: u64) -> Result<u64> {
    div_ceil(mul(bytes, 1_000, "predicted time")?, rate.max(1), "predicted time")
}

/// Up to this many runs, direct descriptors are counted from the lists that would be posted, since runs of neighbouring pages may
/// be one. Beyond it the lists take longer to make than what they tell is worth: a conversion may have a hundred million runs.
const MAX_LISTED: u64 = 1 << 14;

impl Pairing {
    /// What the request costs by each strategy that the two sides are able to use.
    ///
    /// `rows` gives the plan's prepared rows. It is asked only where the runs are few.
    ///
    /// # Errors
    /// As the lowering of each strategy.
    pub fn costs<'a>(
        &self,
        rows: impl FnOnce() -> Result<&'a [Prepared]>,
        transport: &Transport,
        able: Abilities,
    ) -> Result<Vec<Cost>> {
        let plan = self.plan();
        let mut costs = Vec::new();
        if able.direct {
            costs.push(self.direct_cost(plan, rows, transport)?);
        }
        if !self.fits_rows() {
            return Ok(costs);
        }
        if able.lands && plan.direction() == Direction::Read {
            if let Some(cost) = self.landed_cost(plan, transport, able.chunk)? {
                costs.push(cost);
            }
        }
        if able.packs {
            if let Some(cost) = self.packed_cost(plan, transport, able.chunk)? {
                costs.push(cost);
            }
        }
        Ok(costs)
    }

    fn direct_cost<'a>(
        &self,
        plan: &Plan,
        rows: impl FnOnce() -> Result<&'a [Prepared]>,
        transport: &Transport,
    ) -> Result<Cost> {
        let (mut posted, mut bytes) = self.runs()?;
        if posted <= MAX_LISTED {
            (posted, bytes) = self.listed(rows()?)?;
        }
        let ns = transport.transfer_ns(plan.direction(), posted, bytes)?;
        Ok(Cost { strategy: Strategy::Direct, posted, bytes, ns })
    }

    /// Descriptors and bytes of the lists that would be posted.
    fn listed(&self, prepared: &[Prepared]) -> Result<(u64, u64)> {
        let (mut posted, mut bytes) = (0, 0);
        // Ids never post fewer than lists rounded up to whole rows, which move the same bytes.
        let rounded = (self.cuts_rows() && self.fits_rows()).then(|| self.clone().rounded());
        for (index, list) in prepared.iter().enumerate() {
            let exact = self.lists(prepared, index)?;
            let whole = rounded.as_ref().map(|rounded| rounded.lists(prepared, index)).transpose()?;
            let chosen = match whole {
                Some(whole) if whole.len() < exact.len() => whole,
                // Of equals, ids go first: their rows are checked already.
                Some(whole) if whole.len() == exact.len() && self.posted_by_ids(list)? == wide(whole.len()) => whole,
                _ => exact,
            };
            bytes = chosen.iter().try_fold(bytes, |sum, one| add(sum, one.length, "bytes of a request"))?;
            posted = add(posted, wide(chosen.len()), "posted descriptors")?;
        }
        Ok((posted, bytes))
    }

    /// `None` when a page does not fit a chunk.
    fn landed_cost(&self, plan: &Plan, transport: &Transport, chunk: u64) -> Result<Option<Cost>> {
        let landed = plan.landed(transport.hole())?;
        if landed.landings().iter().any(|landing| landing.bytes > chunk) {
            return Ok(None);
        }
        let LandedCount { posted, bytes } = self.landed_count(&landed, chunk)?;
        // Every byte wanted is scattered once; what is read along is not.
        let wanted = self.runs()?.1;
        let of_lane = landed.tiles().lanes().iter().zip(pieces(landed.tiles())?);
        let pieces = of_lane.map(|(lane, each)| mul(each, wide(self.lane_pages(lane)?.0.len()), "pieces of a pass"));
        let pieces = pieces.into_iter().try_fold(0, |sum, more| add(sum, more?, "pieces of a pass"))?;
        let ns = add(
            transport.transfer_ns(plan.direction(), posted, bytes)?,
            transport.passing_ns(wanted.min(bytes), pieces)?,
            "predicted time",
        )?;
        Ok(Some(Cost { strategy: Strategy::Landed, posted, bytes, ns }))
    }

    /// `None` when a pair of pages does not fit a chunk.
    fn packed_cost(&self, plan: &Plan, transport: &Transport, chunk: u64) -> Result<Option<Cost>> {
        let tiles = plan.packed_tiles(plan.direction().destination())?;
        if tiles.lanes().iter().any(|lane| lane.unit > chunk) {
            return Ok(None);
        }
        let chunks = self.chunks(&tiles, chunk)?;
        let bytes = chunks.iter().try_fold(0, |sum, one| add(sum, one.bytes, "packed bytes"))?;
        let posted = wide(chunks.len());
        let mut ns = transport.transfer_ns(plan.direction(), posted, bytes)?;
        for side in [Side::Local, Side::Remote] {
            let pieces_of = pieces(&plan.packed_tiles(side)?)?;
            let mut parts = chunks.iter().flat_map(|chunk| &chunk.parts);
            let pieces = parts.try_fold(0, |sum, part| {
                let each = pieces_of.get(part.lane).copied().unwrap_or_default();
                add(sum, mul(each, wide(part.pairs), "pieces of a pass")?, "pieces of a pass")
            })?;
            ns = add(ns, transport.passing_ns(bytes, pieces)?, "predicted time")?;
        }
        // Want and grant before the first chunk; later chunks overlap with it.
        let ns = add(ns, mul(transport.round_trip_ns, 2, "predicted time")?, "predicted time")?;
        Ok(Some(Cost { strategy: Strategy::Packed, posted, bytes, ns }))
    }
}

/// The contiguous pieces that a pass moves for one page of each lane.
fn pieces(tiles: &Tiles) -> Result<Vec<u64>> {
    let of_shape = |tiles: &Arc<[Tile]>| {
        tiles.iter().try_fold(0, |sum, tile| {
            let runs = tile.loops.iter().try_fold(1, |runs, one| mul(runs, one.extent, "pieces of a pass"))?;
            add(sum, runs, "pieces of a pass")
        })
    };
    let of_shape: Vec<u64> = tiles.shapes().iter().map(of_shape).collect::<Result<_>>()?;
    Ok(tiles.lanes().iter().map(|lane| of_shape.get(lane.shape).copied().unwrap_or_default()).collect())
}

/// The cheapest; direct where two are equal.
pub fn cheapest(costs: &[Cost]) -> Option<Cost> {
    costs.iter().copied().min_by_key(|cost| (cost.ns, cost.strategy != Strategy::Direct))
}
