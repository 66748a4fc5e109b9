//! Any request on any plan: ids and lists that fit the lists they number, and no byte outside a region.
#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use kvreshard::layout::MemoryKind;
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::{Interval, Side};
use kvreshard_fuzz::{AnyPair, Stage, pulse, turn};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    pair: AnyPair,
    write: bool,
    more: bool,
    tokens: (u8, u8),
    wide: Option<(u64, u64)>,
    blocks: [[AnyBlocks; 2]; 2],
    odd: u8,
}

#[derive(Arbitrary, Debug)]
struct AnyBlocks {
    count: u8,
    ids: [u8; 12],
    first: u8,
    odd: (i32, u64),
}

impl AnyBlocks {
    fn build(&self, odd: bool) -> Blocks {
        // Ids without and with repetition: the first `count` of a turn, or whatever the bytes say.
        let count = usize::from(self.count % 13);
        let ids = self.ids.iter().take(count).enumerate().map(|(index, id)| match self.count {
            0..=191 => (i32::from(self.ids[0]) + i32::try_from(index).unwrap()) % 9,
            _ => i32::from(*id) % 12,
        });
        let ids: Vec<i32> = ids.chain(odd.then_some(self.odd.0)).collect();
        Blocks::new(&ids[..], if odd { self.odd.1 } else { u64::from(self.first % 8) * 4 })
    }
}

fuzz_target!(|data: &[u8]| {
    pulse(Stage::Begun);
    // Bytes that are missing read as 0, so that short inputs are inputs too.
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let Ok((local, remote)) = input.pair.build(turn(data) % 32 == 31) else { return };
    let direction = if input.write { Direction::Write } else { Direction::Read };
    let Ok(plan) = Plan::new(&local, &remote, direction) else { return };
    pulse(Stage::Valid);
    let (start, length) = input.tokens;
    let usual = (u64::from(start % 64), u64::from(start % 64) + u64::from(length));
    let (start, end) = input.wide.filter(|_| input.odd % 16 == 15).unwrap_or(usual);
    let Some(tokens) = Interval::new(start, end) else { return };
    let [ours, theirs] = &input.blocks;
    let build = |side: &[AnyBlocks], odd| side.iter().map(|blocks| blocks.build(odd)).collect();
    let request = Request::new(tokens, build(ours, input.odd % 16 == 14), build(theirs, input.odd % 16 == 13));
    let request = request.with_more(input.more);
    let Ok(pairing) = Pairing::new(&plan, &request) else { return };
    pulse(Stage::Accepted);
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
                let regions = plan.side(direction.destination()).regions();
                assert!(inside(direction.destination(), row.address, row.length), "{row:?} in none of {regions:?}");
            }
        }
    }
});
