//! What a direct transfer is said to cost where its runs are too many to be listed.

use super::common::Rank;
use kvreshard::Interval;
use kvreshard::cost::{Abilities, TRANSPORTS};
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};

/// 40,000 pages of 4 tokens of a byte, which go on from one another in pairs on both sides.
#[test]
fn runs_are_counted_once_where_pages_are_dense_on_both_sides_and_go_on_from_one_another() {
    const PAGES: i32 = 40_000;
    let (pages, tokens) = (u64::try_from(PAGES).unwrap(), 4 * u64::try_from(PAGES).unwrap());
    let rank = |gap| {
        let rank = Rank::new("e", (0, 1), "n k[]", 1, &[("n", 4)]);
        Rank { heads: None, dtype: "u8", layers: 1, pages, gap, ..rank }.build()
    };
    let local: Vec<i32> = (0..PAGES).collect();
    let remote: Vec<i32> = local.iter().map(|page| PAGES - 2 - page / 2 * 2 + page % 2).collect();
    // Rows move whole, though the first token is not wanted.
    let wanted = Interval::new(1, tokens).unwrap();
    let request = Request::new(wanted, vec![Blocks::new(local, 0)], vec![Blocks::new(remote, 0)]);
    for (here, there, posted) in [(0, 0, pages / 2), (0, 8, pages), (8, 0, pages), (8, 8, pages)] {
        let plan = Plan::new(&rank(here), &rank(there), Direction::Read).unwrap();
        let prepared = plan.prepare().unwrap();
        let able = Abilities { direct: true, lands: true, packs: true, chunk: 1 << 20 };
        let costs = Pairing::new(&plan, &request).unwrap().costs(|| Ok(&prepared), &TRANSPORTS[0], able).unwrap();
        assert_eq!(costs.iter().map(|cost| (cost.posted, cost.bytes)).collect::<Vec<_>>(), [(posted, tokens)]);
    }
}
