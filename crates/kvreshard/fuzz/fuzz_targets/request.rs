//! Any request on any plan: ids and lists that fit the lists they number, and no byte outside a region.
#![no_main]

use arbitrary::Arbitrary;
use kvreshard::layout::MemoryKind;
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::{Interval, Side};
use kvreshard_fuzz::AnyRank;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    local: AnyRank,
    remote: Option<AnyRank>,
    write: bool,
    tokens: (u16, u16),
    wide: Option<(u64, u64)>,
    blocks: [Vec<AnyBlocks>; 2],
}

#[derive(Arbitrary, Debug)]
struct AnyBlocks {
    ids: Vec<i16>,
    odd: Option<i32>,
    first: u8,
    wide: Option<u64>,
}

impl AnyBlocks {
    fn build(&self) -> Blocks {
        let ids: Vec<i32> = self.ids.iter().take(64).map(|id| i32::from(*id)).chain(self.odd).collect();
        Blocks::new(&ids[..], self.wide.unwrap_or(u64::from(self.first)))
    }
}

fuzz_target!(|input: Input| {
    let Ok(local) = input.local.build() else { return };
    let remote = match &input.remote {
        Some(remote) => remote.build(),
        None => Ok(local.clone()),
    };
    let Ok(remote) = remote else { return };
    let direction = if input.write { Direction::Write } else { Direction::Read };
    let Ok(plan) = Plan::new(&local, &remote, direction) else { return };
    let (start, end) = input.wide.unwrap_or((u64::from(input.tokens.0), u64::from(input.tokens.1)));
    let Some(tokens) = Interval::new(start, end) else { return };
    let [ours, theirs] = &input.blocks;
    let build = |side: &Vec<AnyBlocks>| side.iter().take(5).map(AnyBlocks::build).collect();
    let request = Request::new(tokens, build(ours), build(theirs));
    let Ok(pairing) = Pairing::new(&plan, &request) else { return };
    let Ok(lists) = plan.prepare() else { return };
    let inside = |side: Side, address: u64, bytes: u64| {
        plan.side(side).regions().iter().any(|region| {
            region.base() <= address
                && u128::from(address) + u128::from(bytes) <= u128::from(region.base()) + u128::from(region.bytes())
        })
    };
    for (index, list) in lists.iter().enumerate() {
        if let Ok(count) = pairing.id_count(list) {
            if count <= 1 << 16 {
                let (mut here, mut there) = (vec![0; count], vec![0; count]);
                if pairing.write_ids(list, &mut here, &mut there).is_ok() {
                    let most: u64 = list.table(Side::Local).chunks_exact(5).map(|row| row[4]).sum();
                    assert!(here.iter().all(|id| u64::try_from(*id).is_ok_and(|id| id < most)));
                    let most: u64 = list.table(Side::Remote).chunks_exact(5).map(|row| row[4]).sum();
                    assert!(there.iter().all(|id| u64::try_from(*id).is_ok_and(|id| id < most)));
                }
            }
        }
        if let Ok(exact) = pairing.lists(&lists, index) {
            for one in exact {
                assert!(inside(Side::Local, one.local, one.length));
                assert!(inside(Side::Remote, one.remote, one.length));
            }
        }
    }
    for memory in [MemoryKind::Dram, MemoryKind::Vram] {
        if let Ok(rows) = pairing.zero(memory) {
            for row in rows {
                assert!(inside(direction.destination(), row.address, row.length));
            }
        }
    }
});
