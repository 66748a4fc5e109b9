//! The reads of one landing: how many of its pages fit into a chunk, and which of them are one descriptor.

use crate::error::{Error, Result};
use crate::units::{add, mul, sub};

use super::landing::{LandedCount, Landing};
use super::lists::address;

/// The places of as many of `pages` as fit into `room` bytes.
pub(super) fn fitting(landing: &Landing, pages: &[i32], room: u64) -> Result<Vec<i32>> {
    let mut places = Vec::new();
    let Some(most) = room.checked_sub(landing.bytes) else { return Ok(places) };
    let most = most.checked_div(landing.step).unwrap_or(u64::MAX);
    let (mut before, mut place) = (None, 0_u64);
    for page in pages {
        let page = unsigned(*page)?;
        if let Some(before) = before {
            place = add(place, landing.places(sub(page, before, "pages of a chunk")?), "place in a chunk")?;
        }
        if place > most {
            break;
        }
        places.push(i32::try_from(place).map_err(|_| Error::overflow("place in a chunk"))?);
        before = Some(page);
    }
    Ok(places)
}

/// A read of one landing: offsets into the buffer's span, and from the landing's track.
pub(super) struct Read {
    pub(super) local: u64,
    pub(super) remote: u64,
    pub(super) length: u64,
}

/// The reads of a landing's pages, joined where they are as far apart in the buffer as on the peer, and near enough: what lies
/// between is read along. Only pages of one span lie in one region for certain.
pub(super) fn reads(landing: &Landing, pages: &[i32], places: &[i32]) -> Result<Vec<Read>> {
    let mut list: Vec<Read> = Vec::new();
    for (page, place) in pages.iter().zip(places) {
        let begin = mul(landing.step, unsigned(*place)?, "buffer address")?;
        for stretch in landing.stretches.iter() {
            let local = add(begin, stretch.buffer, "buffer address")?;
            let remote = address(stretch.start, *page, landing.track.stride)?;
            let like = |last: &&mut Read| {
                let apart = (remote.checked_sub(last.remote), local.checked_sub(last.local));
                let end = last.length.saturating_add(landing.hole);
                apart.0 == apart.1 && apart.0.is_some_and(|apart| apart <= end)
            };
            match list.last_mut().filter(like) {
                Some(last) => {
                    let apart = sub(remote, last.remote, "descriptor length")?;
                    last.length = last.length.max(add(apart, stretch.bytes, "descriptor length")?);
                }
                None => list.push(Read { local, remote, length: stretch.bytes }),
            }
        }
    }
    Ok(list)
}

/// Counts the reads of one landing's pages, begun `open` bytes into a chunk, and where in a chunk they end.
pub(super) fn counted(landing: &Landing, mut rest: &[i32], mut open: u64, chunk: u64) -> Result<(LandedCount, u64)> {
    let mut count = LandedCount::default();
    if landing.bytes > chunk && !rest.is_empty() {
        return Err(Error::limit("bytes of one page's span in a chunk", landing.bytes, chunk));
    }
    while !rest.is_empty() {
        let places = fitting(landing, rest, sub(chunk, open, "room of a chunk")?)?;
        let (pages, later) = rest.split_at_checked(places.len()).unwrap_or((rest, &[]));
        for read in reads(landing, pages, &places)? {
            count.posted = add(count.posted, 1, "posted descriptors")?;
            count.bytes = add(count.bytes, read.length, "landed bytes")?;
        }
        open = match places.last() {
            Some(last) => {
                let end =
                    add(mul(landing.step, unsigned(*last)?, "place in a chunk")?, landing.bytes, "bytes of a chunk")?;
                add(open, end, "bytes of a chunk")?
            }
            None => 0,
        };
        rest = later;
    }
    Ok((count, open))
}

pub(super) fn unsigned(id: i32) -> Result<u64> {
    u64::try_from(id).map_err(|_| Error::overflow("page of a chunk"))
}
