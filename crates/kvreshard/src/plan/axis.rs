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
            cuts.push(Copy {
                run: element,
                loops: vec![Loop { extent: len, local: lowest(local), remote: lowest(remote) }],
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
    compress(cuts)
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::name::Name;

    /// Digits of `(extent, stride)`, the lowest first.
    fn digits(of: &[(u64, u64)]) -> Vec<Digit> {
        let mut scale = 1;
        let digit = |&(extent, stride): &(u64, u64)| {
            let digit = Digit { axis: Name::new("n").unwrap(), scale, extent, stride };
            scale *= extent;
            digit
        };
        of.iter().map(digit).collect()
    }

    fn refined(local: &[(u64, u64)], remote: &[(u64, u64)], spans: &[Span]) -> Result<Vec<Copy>> {
        refine(&digits(local), &digits(remote), spans, 2, &mut Work::default())
    }

    fn turn(extent: u64, local: u64, remote: u64) -> Loop {
        Loop { extent, local, remote }
    }

    #[test]
    fn an_axis_is_cut_where_either_side_turns_and_equal_cuts_are_a_loop() {
        let whole = [Span { local: 0, remote: 0, len: 12 }];
        let (turning, straight) = ([(4, 2), (3, 100)], [(12, 6)]);
        let copy = |loops| vec![Copy { run: 2, loops, local: 0, remote: 0 }];
        let found = refined(&turning, &straight, &whole).unwrap();
        assert_eq!(found, copy(vec![turn(3, 100, 24), turn(4, 2, 6)]));
        let found = refined(&straight, &turning, &whole).unwrap();
        assert_eq!(found, copy(vec![turn(3, 24, 100), turn(4, 6, 2)]));
        // Three, four and two of nine from the middle on.
        let found = refined(&turning, &straight, &[Span { local: 1, remote: 2, len: 9 }]).unwrap();
        let part = |len, local, remote| Copy { run: 2, loops: vec![turn(len, 2, 6)], local, remote };
        assert_eq!(found, [part(2, 200, 54), part(3, 2, 12), part(4, 100, 30)]);
    }

    #[test]
    fn an_axis_has_so_many_cuts_and_no_more() {
        let pairs = |count: u64| {
            refined(&[(2, 2), (count, 64)], &[(2 * count, 2)], &[Span { local: 0, remote: 0, len: 2 * count }])
        };
        let most = wide(MAX_CUTS);
        let loops = vec![turn(most, 64, 4), turn(2, 2, 2)];
        assert_eq!(pairs(most), Ok(vec![Copy { run: 2, loops, local: 0, remote: 0 }]));
        assert_eq!(pairs(most + 1), Err(Error::limit("cuts of one axis", most + 1, most)));
        // However long, it is not cut where nothing turns.
        let long = refined(&[(most * 4, 2)], &[(most * 4, 8)], &[Span { local: 0, remote: 0, len: most * 4 }]);
        assert_eq!(long.unwrap().len(), 1);
    }
}
