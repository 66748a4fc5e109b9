//! Fixed workloads whose instructions callgrind counts: `instructions NAME` runs one of them, without a name it lists them.
//!
//! Only what runs inside [`measured`] is counted; `make bench-guard` compares the counts with `benches/instructions.toml`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a benchmark says so by panicking"
)]

mod workloads;

use std::hint::black_box;

use kvreshard::Side;
use kvreshard::layout::RankLayout;
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::Request;
use kvreshard::route::Route;

use workloads::{engine, rank, request, shuffled, single};

/// The function that callgrind is told to count in.
#[inline(never)]
fn measured<T>(work: &mut impl FnMut() -> T) -> T {
    black_box(work())
}

/// Runs `work` twice, so that the allocator is warm, and has the second run counted.
fn measure<T>(mut work: impl FnMut() -> T) {
    drop(black_box(work()));
    drop(measured(&mut work));
}

fn plan_and_rows() {
    let (local, remote) = (rank((0, 2), 1_000), rank((0, 1), 1_000));
    measure(|| {
        let plan = Plan::new(black_box(&local), black_box(&remote), Direction::Read).unwrap();
        let lists = plan.prepare().unwrap();
        (lists[0].table(Side::Local), lists[0].table(Side::Remote))
    });
}

fn ids(blocks: i32) {
    let one = rank((0, 1), 65_536);
    let plan = Plan::new(&one, &one, Direction::Read).unwrap();
    let lists = plan.prepare().unwrap();
    let request = request(blocks);
    let count = Pairing::new(&plan, &request).unwrap().id_count(&lists[0]).unwrap();
    let (mut here, mut there) = (vec![0; count], vec![0; count]);
    measure(|| {
        let pairing = Pairing::new(&plan, black_box(&request)).unwrap();
        pairing.write_ids(&lists[0], &mut here, &mut there).unwrap();
    });
}

fn exact_lists(request: &Request) {
    let one = single(&rank((0, 1), 65_536));
    let plan = Plan::new(&one, &one, Direction::Read).unwrap();
    let prepared = plan.prepare().unwrap();
    let (mut here, mut there) = (Vec::new(), Vec::new());
    measure(|| {
        let pairing = Pairing::new(&plan, black_box(request)).unwrap();
        pairing.write_lists(&prepared, 0, &mut here, &mut there).unwrap();
    });
}

fn flat() {
    let one = rank((0, 1), 1_250);
    let prepared = Plan::new(&one, &one, Direction::Read).unwrap().prepare().unwrap();
    let mut table = vec![0_u64; prepared[0].flat_len(Side::Local).unwrap()];
    measure(|| prepared[0].write_flat(Side::Local, &mut table).unwrap());
}

fn decode() {
    let bytes = rank((0, 2), 1_000).to_bytes().unwrap();
    measure(|| RankLayout::from_bytes(black_box(&bytes)).unwrap());
}

fn routes() {
    let (prefill, decode) = (engine(16), engine(16));
    measure(|| Route::new(black_box(&decode), black_box(&prefill), Direction::Read).unwrap());
}

const WORKLOADS: [(&str, fn()); 8] = [
    ("plan-and-rows", plan_and_rows),
    ("ids-128-blocks", || ids(128)),
    ("ids-8192-blocks", || ids(8_192)),
    ("lists-65536-pages", || exact_lists(&request(65_536))),
    ("lists-65536-shuffled", || exact_lists(&shuffled(65_536))),
    ("flat-100000-descriptors", flat),
    ("decode-80-layers", decode),
    ("route-16-ranks", routes),
];

fn main() {
    let wanted = std::env::args().nth(1);
    for (name, work) in WORKLOADS {
        match &wanted {
            Some(wanted) if wanted == name => work(),
            Some(_) => {}
            None => println!("{name}"),
        }
    }
}
