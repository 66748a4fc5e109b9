//! One axis, both sides: stretches of indices turned into copies along that axis.
//!
//! Each side maps an index to bytes by mixed-radix digits, so it is linear between two turns of its lowest digit. The axis is cut
//! at every such turn of either side; within a cut both sides are linear, and equal cuts at a constant step become loops again.

use crate::error::{Error, Result};
use crate::format::Digit;
use crate::units::{add, div, mul, rem, sub, wide};

use super::copy::{Copy, Loop, compress};
use super::work::Work;

/// The most cuts of one axis; a nest that needs more is refused rather than planned for minutes.
pub(crate) const MAX_CUTS: usize = 65_536;

/// `len` indices from `local` on one side and `remote` on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) len: u64,
}

/// The copies of `element` bytes that take every index of `spans` from one side's place to the other's. `local` and `remote` are
/// the axis's digits in increasing scale.
pub(crate) fn refine(
    local: &[Digit],
    remote: &[Digit],
    spans: &[Span],
    element: u64,
    work: &mut Work,
) -> Result<Vec<Copy>> {
    let mut cuts = Vec::with_capacity(spans.len());
    for span in spans {
        let mut done = 0;
        while done < span.len {
            let here = (add(span.local, done, "axis index")?, add(span.remote, done, "axis index")?);
            let rest = sub(span.len, done, "axis index")?;
            let len = rest.min(room(local, here.0)?).min(room(remote, here.1)?);
            let steps = if len > 1 {
                vec![Loop { extent: len, local: lowest(local), remote: lowest(remote) }]
            } else {
                Vec::new()
            };
            cuts.push(Copy {
                run: element,
                loops: steps,
                local: place(local, here.0)?,
                remote: place(remote, here.1)?,
            });
            if cuts.len() > MAX_CUTS {
                return Err(Error::limit("cuts of one axis", wide(cuts.len()), wide(MAX_CUTS)));
            }
            done = add(done, len, "axis index")?;
        }
    }
    work.look_at(wide(cuts.len()))?;
    if cuts.len() > 1 { compress(cuts) } else { Ok(cuts) }
}

/// Where `index` lies, in bytes.
pub(crate) fn place(digits: &[Digit], index: u64) -> Result<u64> {
    let term = "offset along an axis";
    digits.iter().try_fold(0, |sum, digit| {
        let value = rem(div(index, digit.scale, term)?, digit.extent, term)?;
        add(sum, mul(value, digit.stride, term)?, term)
    })
}

/// Bytes from one index to the next while the lowest digit does not turn.
fn lowest(digits: &[Digit]) -> u64 {
    digits.first().map_or(0, |digit| digit.stride)
}

/// How many indices from `index` on before the lowest digit turns and a higher one steps.
fn room(digits: &[Digit], index: u64) -> Result<u64> {
    match digits {
        [] | [_] => Ok(u64::MAX),
        [first, ..] => sub(first.extent, rem(index, first.extent, "axis digit")?, "axis digit"),
    }
}
