//! What a request would cost by each strategy.
//!
//! `posted * post + bytes / rate`, plus a pass over the bytes wherever a kernel gathers or scatters, plus round trips. A descriptor
//! costs about the same whatever its size, so many short runs are slow and few long ones are not.

use crate::error::{Error, Result};
use crate::lower::{Pairing, Prepared};
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
    /// Bytes a microsecond that a gather or a scatter gets through.
    pub pass_bytes_per_us: u64,
    /// Nanoseconds for a message and its answer.
    pub round_trip_ns: u64,
}

/// The transports that were measured. Constants belong to the machines named; [`Transport::name`] picks one, `calibrate` replaces it.
///
/// * `cma`: UCX between two processes of one host over process_vm_readv, 2-core virtual machine.
/// * `tcp`: UCX over TCP on the loopback of the same machine.
/// * `cuda_ipc`: UCX between two processes on one H200, GET zero-copy enabled.
pub const TRANSPORTS: [Transport; 3] = [
    Transport {
        name: "cma",
        read: Link { post_ns: 3_100, bytes_per_us: 7_400 },
        write: Link { post_ns: 3_000, bytes_per_us: 7_500 },
        pass_bytes_per_us: 2_000,
        round_trip_ns: 200_000,
    },
    Transport {
        name: "tcp",
        read: Link { post_ns: 4_400, bytes_per_us: 470 },
        write: Link { post_ns: 10_600, bytes_per_us: 1_000 },
        pass_bytes_per_us: 2_000,
        round_trip_ns: 200_000,
    },
    Transport {
        name: "cuda_ipc",
        read: Link { post_ns: 10_500, bytes_per_us: 1_376_000 },
        write: Link { post_ns: 10_500, bytes_per_us: 1_330_000 },
        pass_bytes_per_us: 1_800_000,
        round_trip_ns: 100_000,
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

    fn pass_ns(&self, bytes: u64) -> Result<u64> {
        time(bytes, self.pass_bytes_per_us)
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
        let mut costs = vec![self.direct_cost(plan, rows, transport)?];
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
        let landed = plan.landed()?;
        if landed.landings().iter().any(|landing| landing.bytes > chunk) {
            return Ok(None);
        }
        let (mut posted, mut bytes, mut scattered) = (0, 0, 0);
        for one in self.landed_chunks(&landed, chunk)? {
            posted = add(posted, wide(self.landed_reads(&landed, &one, 0, 0)?.len()), "posted descriptors")?;
            bytes = add(bytes, one.bytes, "landed bytes")?;
            for part in &one.parts {
                let unit = landed.tiles().lanes().get(part.lane).map_or(0, |lane| lane.unit);
                scattered = add(scattered, mul(unit, wide(part.pages.len()), "landed bytes")?, "landed bytes")?;
            }
        }
        let ns = add(
            transport.transfer_ns(plan.direction(), posted, bytes)?,
            transport.pass_ns(scattered.min(bytes))?,
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
        let passes = mul(transport.pass_ns(bytes)?, 2, "predicted time")?;
        let ns = add(transport.transfer_ns(plan.direction(), posted, bytes)?, passes, "predicted time")?;
        // Want and grant before the first chunk; later chunks overlap with it.
        let ns = add(ns, mul(transport.round_trip_ns, 2, "predicted time")?, "predicted time")?;
        Ok(Some(Cost { strategy: Strategy::Packed, posted, bytes, ns }))
    }
}

/// The cheapest; direct where two are equal.
pub fn cheapest(costs: &[Cost]) -> Option<Cost> {
    costs.iter().copied().min_by_key(|cost| (cost.ns, cost.strategy != Strategy::Direct))
}
