//! Pages paired by token: whose fault it is where they do not meet, and what is cut at an end.

use super::common::{Rank, context};
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

/// Rows move whole: a request that cuts one is told at which end, and at which state counted from where the row's period begins.
#[test]
fn ids_are_refused_with_the_end_that_cuts_a_row() {
    let plan = plan(Direction::Read);
    let prepared = plan.prepare().unwrap();
    for (tokens, more, end, at) in
        [((1, 16), false, "start", 1), ((6, 7), false, "start", 2), ((4, 7), true, "end", 3), ((4, 9), true, "end", 1)]
    {
        let pairing = Pairing::new(&plan, &request(tokens, 0, 0).with_more(more)).unwrap();
        let refused = pairing.id_count(&prepared[0]).unwrap_err();
        let expected = Error::Request {
            side: Side::Local,
            group: None,
            field: format!("tokens {end}"),
            found: format!("inside a row, {at} states after its period"),
            expected: "a row boundary; exact lists serve any interval".to_owned(),
        };
        assert_eq!(refused, expected, "{tokens:?}");
    }
}

/// Of the tokens of its first row, 0, 1, 4 and 5, a rank of a context of two has none between 1 and 4.
#[test]
fn a_row_is_not_cut_by_tokens_that_other_ranks_of_the_context_have() {
    let rank = Rank { position: context((0, 2), 2), ..Rank::new("e", (0, 1), "n k[d]", 1, &[("n", 4), ("d", 2)]) };
    let rank = Rank { heads: None, layers: 1, ..rank }.build();
    let plan = Plan::new(&rank, &rank, Direction::Read).unwrap();
    let prepared = plan.prepare().unwrap();
    // Tokens; whether a row is wanted in part; bytes.
    for (tokens, cuts, bytes) in [((2, 4), false, 0), ((2, 5), true, 4), ((1, 4), true, 4), ((0, 6), false, 16)] {
        for more in [false, true] {
            let pairing = Pairing::new(&plan, &request(tokens, 0, 0).with_more(more)).unwrap();
            let moved: u64 = pairing.lists(&prepared, 0).unwrap().iter().map(|one| one.length).sum();
            assert_eq!((pairing.cuts_rows(), moved), (cuts, bytes), "{tokens:?}");
        }
    }
}
