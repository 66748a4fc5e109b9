//! Pages paired by token: whose fault it is where they do not meet, and what is cut at an end.

use super::common::Rank;
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::{Error, Interval, Side};

fn plan(direction: Direction) -> Plan {
    let rank = |engine, notation| Rank::new(engine, (0, 1), notation, 2, &[("n", 4), ("d", 4)]).build();
    Plan::new(&rank("d", "h n k[d] v[d]"), &rank("p", "n h k[d] v[d]"), direction).unwrap()
}

/// Tokens of 4 pages a side, whose lists begin at these tokens.
fn request(tokens: (u64, u64), local: u64, remote: u64) -> Request {
    let blocks = |first| vec![Blocks::new([5, 1, 2, 0], first)];
    Request::new(Interval::new(tokens.0, tokens.1).unwrap(), blocks(local), blocks(remote))
}

#[test]
fn a_source_that_lacks_wanted_tokens_is_named_with_where_it_begins() {
    for (direction, source) in [(Direction::Read, Side::Remote), (Direction::Write, Side::Local)] {
        let plan = plan(direction);
        let (local, remote) = if source == Side::Remote { (0, 8) } else { (8, 0) };
        let Error::Request { side, group, field, found, expected } =
            Pairing::new(&plan, &request((0, 16), local, remote)).unwrap_err()
        else {
            panic!("another error")
        };
        assert_eq!((side, group, field.as_str()), (source, Some(0), "first block"));
        assert!(found.contains('8'), "{found}");
        assert_eq!(expected, "at or before state 0");
        // The other way round the destination has them already.
        let pairing = Pairing::new(&plan, &request((0, 16), remote, local)).unwrap();
        let prepared = plan.prepare().unwrap();
        let moved: u64 = pairing.lists(&prepared, 0).unwrap().iter().map(|one| one.length).sum();
        let whole = Pairing::new(&plan, &request((0, 16), 0, 0)).unwrap();
        let all: u64 = whole.lists(&prepared, 0).unwrap().iter().map(|one| one.length).sum();
        assert_eq!(moved * 2, all);
    }
}

#[test]
fn rows_are_cut_where_tokens_end_or_begin_inside_them() {
    let plan = plan(Direction::Read);
    // Tokens; whether a row is wanted in part; whether rows can serve it, and with more to come.
    for (tokens, cuts, fits, fits_with_more) in [
        ((0, 16), false, true, true),
        ((4, 12), false, true, true),
        ((0, 15), true, true, false),
        ((4, 5), true, true, false),
        ((1, 16), true, false, false),
        ((2, 3), true, false, false),
    ] {
        let of = |request: &Request| {
            let pairing = Pairing::new(&plan, request).unwrap();
            (pairing.cuts_rows(), pairing.fits_rows())
        };
        let request = request(tokens, 0, 0);
        assert_eq!(of(&request), (cuts, fits), "{tokens:?}");
        assert_eq!(of(&request.with_more(true)), (cuts, fits_with_more), "{tokens:?} with more to come");
    }
}
