//! A strided copy: one contiguous run, repeated by a few loops that step on both sides.
//!
//! ```text
//! local    |run|..|run|..|run|          loop { extent: 3, local: 2 runs, remote: 4 runs }
//!            ^      ^      ^
//! remote   |run|......|run|......|run|
//! ```

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::units::{add, mul, wide};

use super::work::Work;

/// Over this many runs in one lane, runs are no longer merged one by one: descriptors that many a page are not worth sending,
/// and tiles are made from the loops.
pub(crate) const MAX_EXACT_RUNS: u64 = 1 << 18;

/// Over this many copies, pairs that touch are no longer looked for: every one would be held against every other.
const MAX_PAIRED: usize = 256;

/// A repetition, with its step in bytes on each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Loop {
    /// How often.
    pub extent: u64,
    /// Bytes from one repetition to the next on the local side.
    pub local: u64,
    /// Bytes from one repetition to the next on the remote side.
    pub remote: u64,
}

/// `run` bytes at each point of the loops, from `local` on one side and `remote` on the other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Copy {
    /// Bytes that are contiguous on both sides.
    pub run: u64,
    /// The loops, outermost (largest local step) first.
    pub loops: Vec<Loop>,
    /// Byte offset of the first run on the local side.
    pub local: u64,
    /// Byte offset of the first run on the remote side.
    pub remote: u64,
}

/// One contiguous run: the same bytes on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Byte offset or address on the local side.
    pub local: u64,
    /// Byte offset or address on the remote side.
    pub remote: u64,
    /// Bytes.
    pub len: u64,
}

impl Copy {
    /// How many runs it stands for.
    pub fn runs(&self) -> Result<u64> {
        self.loops.iter().try_fold(1, |runs, step| mul(runs, step.extent, "runs of a copy"))
    }

    /// Bytes moved.
    pub fn bytes(&self) -> Result<u64> {
        mul(self.runs()?, self.run, "bytes of a copy")
    }

    /// One past the last byte on the local side.
    pub(crate) fn local_end(&self) -> Result<u64> {
        self.end(self.local, |step| step.local)
    }

    /// One past the last byte on the remote side.
    pub(crate) fn remote_end(&self) -> Result<u64> {
        self.end(self.remote, |step| step.remote)
    }

    fn end(&self, start: u64, stride: impl Fn(&Loop) -> u64) -> Result<u64> {
        let term = "end of a copy";
        let mut end = add(start, self.run, term)?;
        for step in &self.loops {
            end = add(end, mul(step.extent.saturating_sub(1), stride(step), term)?, term)?;
        }
        Ok(end)
    }

    /// The same copy further on.
    pub(crate) fn moved(&self, shift: (u64, u64), term: &str) -> Result<Self> {
        let (local, remote) = (add(self.local, shift.0, term)?, add(self.remote, shift.1, term)?);
        Ok(Self { local, remote, ..self.clone() })
    }

    /// The product of two independent copies of the same run: every point of one at every point of the other.
    pub(crate) fn times(&self, other: &Self) -> Result<Self> {
        let mut loops = self.loops.clone();
        loops.extend_from_slice(&other.loops);
        let term = "offset of a copy";
        Ok(Self {
            run: self.run,
            loops,
            local: add(self.local, other.local, term)?,
            remote: add(self.remote, other.remote, term)?,
        })
    }

    /// Makes the run as long as the loops allow, and joins loops that continue one another.
    pub(crate) fn fold(&mut self) -> Result<()> {
        self.loops.retain(|step| step.extent > 1);
        while let Some(index) = self.loops.iter().position(|step| step.local == self.run && step.remote == self.run) {
            let step = self.loops.swap_remove(index);
            self.run = mul(self.run, step.extent, "run length")?;
        }
        self.loops.sort_unstable_by_key(|step| std::cmp::Reverse((step.local, step.remote, step.extent)));
        let mut folded: Vec<Loop> = Vec::with_capacity(self.loops.len());
        for step in self.loops.drain(..).rev() {
            match folded.last_mut() {
                Some(inner)
                    if inner.local.checked_mul(inner.extent) == Some(step.local)
                        && inner.remote.checked_mul(inner.extent) == Some(step.remote) =>
                {
                    inner.extent = mul(inner.extent, step.extent, "loop extent")?;
                }
                _ => folded.push(step),
            }
        }
        folded.reverse();
        self.loops = folded;
        Ok(())
    }

    /// Appends every run, the outermost loop slowest.
    pub(crate) fn expand(&self, out: &mut Vec<Run>) -> Result<()> {
        let first = out.len();
        out.push(Run { local: self.local, remote: self.remote, len: self.run });
        let term = "offset of a run";
        for step in self.loops.iter().rev() {
            let inner = out.get(first..).unwrap_or_default().to_vec();
            for turn in 1..step.extent {
                let (local, remote) = (mul(turn, step.local, term)?, mul(turn, step.remote, term)?);
                for run in &inner {
                    out.push(Run {
                        local: add(run.local, local, term)?,
                        remote: add(run.remote, remote, term)?,
                        len: run.len,
                    });
                }
            }
        }
        Ok(())
    }
}

/// The same bytes as nests: runs as long as the loops make them, and copies with equal loops that touch on both sides joined as
/// they are (K with V). Kernels want these: regular, and as well aligned as the formats.
pub(crate) fn nests(mut copies: Vec<Copy>) -> Result<Vec<Copy>> {
    for copy in &mut copies {
        copy.fold()?;
    }
    while copies.len() <= MAX_PAIRED {
        let Some((first, second)) = touching(&copies)? else { break };
        let tail = copies.swap_remove(second);
        if let Some(head) = copies.get_mut(first) {
            head.run = add(head.run, tail.run, "run length")?;
            head.fold()?;
        }
    }
    Ok(copies)
}

/// The same bytes in the fewest runs there are: every run of the nests is written out and joined with the one it touches, up to
/// [`MAX_EXACT_RUNS`]. Descriptors want these. Where elements of a transposition touch by chance, one nest becomes several.
pub(crate) fn merge(copies: Vec<Copy>, work: &mut Work) -> Result<Vec<Copy>> {
    let runs = copies.iter().try_fold(0, |sum, copy| add(sum, copy.runs()?, "runs of a lane"))?;
    if runs <= 1 || runs > MAX_EXACT_RUNS || !work.affords(runs) {
        return Ok(copies);
    }
    let mut expanded = Vec::new();
    for copy in &copies {
        copy.expand(&mut expanded)?;
    }
    let joined = join(expanded)?;
    if wide(joined.len()) == runs && copies.len() == 1 {
        return Ok(copies);
    }
    compress(joined.into_iter().map(|run| Copy {
        run: run.len,
        loops: Vec::new(),
        local: run.local,
        remote: run.remote,
    }))
}

/// The nests where they are fewer than the copies; otherwise the copies, whose runs are longer.
pub(crate) fn fewer(copies: &Arc<[Copy]>, nests: Vec<Copy>) -> Arc<[Copy]> {
    if nests.len() < copies.len() { nests.into() } else { Arc::clone(copies) }
}

/// Two copies of which the second begins where the first ends, on both sides and at every turn of the same loops. The pair is
/// given so that removing the second by `swap_remove` leaves the first in place or moves it to `second`'s slot.
fn touching(copies: &[Copy]) -> Result<Option<(usize, usize)>> {
    for (first, head) in copies.iter().enumerate() {
        let ends = (add(head.local, head.run, "run end")?, add(head.remote, head.run, "run end")?);
        for (second, tail) in copies.iter().enumerate() {
            if first != second && head.loops == tail.loops && (tail.local, tail.remote) == ends {
                // `swap_remove(second)` moves the last element into its slot: follow the head there.
                let moved = if first.checked_add(1) == Some(copies.len()) { second } else { first };
                return Ok(Some((moved, second)));
            }
        }
    }
    Ok(None)
}

/// Sorts runs by local offset and joins those that touch on both sides.
pub(crate) fn join(mut runs: Vec<Run>) -> Result<Vec<Run>> {
    runs.sort_unstable();
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last)
                if last.local.checked_add(last.len) == Some(run.local)
                    && last.remote.checked_add(last.len) == Some(run.remote) =>
            {
                last.len = add(last.len, run.len, "run length")?;
            }
            _ => joined.push(run),
        }
    }
    Ok(joined)
}

/// Finds loops in a list of copies: neighbours of one shape at a constant step become one copy, until nothing changes.
pub(crate) fn compress(copies: impl IntoIterator<Item = Copy>) -> Result<Vec<Copy>> {
    let mut copies: Vec<Copy> = copies.into_iter().collect();
    loop {
        let before = copies.len();
        // Orders by shape first, so that alternating shapes (data, scales, data, scales) do not hide the step.
        copies.sort_unstable();
        let mut next: Vec<Copy> = Vec::new();
        let mut rest = copies.into_iter().peekable();
        while let Some(mut copy) = rest.next() {
            let step = rest.peek().and_then(|other| step_between(&copy, other));
            if let Some((local, remote)) = step {
                let mut last = (copy.local, copy.remote);
                let mut extent: u64 = 1;
                while let Some(other) = rest.peek() {
                    let expected = (last.0.checked_add(local), last.1.checked_add(remote));
                    let same_shape = other.run == copy.run && other.loops == copy.loops;
                    if !same_shape || expected != (Some(other.local), Some(other.remote)) {
                        break;
                    }
                    last = (other.local, other.remote);
                    extent = add(extent, 1, "loop extent")?;
                    rest.next();
                }
                copy.loops.insert(0, Loop { extent, local, remote });
            }
            next.push(copy);
        }
        copies = next;
        if copies.len() == before {
            return Ok(copies);
        }
    }
}

/// The step from one copy to the next, if they have the same shape and neither side goes backwards.
fn step_between(one: &Copy, other: &Copy) -> Option<(u64, u64)> {
    if one.run != other.run || one.loops != other.loops {
        return None;
    }
    Some((other.local.checked_sub(one.local)?, other.remote.checked_sub(one.remote)?))
}

/// Refuses to write out more runs than anyone can use.
pub(crate) fn bounded(what: &str, found: u64, limit: u64) -> Result<()> {
    if found > limit { Err(Error::limit(what, found, limit)) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
