//! How fast plans, ids and lists are made. Times are printed, never asserted; `make bench` puts them beside their bounds.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a benchmark says so by panicking"
)]

mod cpu;
mod workloads;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvreshard::Side;
use kvreshard::layout::RankLayout;
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::route::Route;

use cpu::CpuTime;
use workloads::{engine, rank, request, shuffled, single};

fn planning(c: &mut Criterion<CpuTime>) {
    for pages in [1_000, 1_000_000] {
        let (local, remote) = (rank((0, 2), pages), rank((0, 1), pages));
        c.bench_function(&format!("plan and rows, 80 layers, {pages} pages"), |b| {
            b.iter(|| {
                let plan = Plan::new(black_box(&local), black_box(&remote), Direction::Read).unwrap();
                let lists = plan.prepare().unwrap();
                (lists[0].table(Side::Local), lists[0].table(Side::Remote))
            });
        });
    }
}

fn ids(c: &mut Criterion<CpuTime>) {
    let (local, remote) = (rank((0, 1), 65_536), rank((0, 1), 65_536));
    let plan = Plan::new(&local, &remote, Direction::Read).unwrap();
    let lists = plan.prepare().unwrap();
    for blocks in [128, 2_048, 8_192, 65_536] {
        let request = request(blocks);
        let count = Pairing::new(&plan, &request).unwrap().id_count(&lists[0]).unwrap();
        let (mut here, mut there) = (vec![0; count], vec![0; count]);
        let mut group = c.benchmark_group(format!("ids, 80 regions x {blocks} blocks"));
        group.throughput(Throughput::Elements(u64::try_from(count).unwrap()));
        group.bench_function("pair and write", |b| {
            b.iter(|| {
                let pairing = Pairing::new(&plan, black_box(&request)).unwrap();
                pairing.write_ids(&lists[0], &mut here, &mut there).unwrap();
            });
        });
        group.bench_function("plain store of the same bytes", |b| {
            b.iter(|| {
                here.fill(black_box(7));
                there.fill(black_box(9));
            });
        });
        group.finish();
    }
}

fn lists(c: &mut Criterion<CpuTime>) {
    let large = rank((0, 1), 65_536);
    let one = Plan::new(&single(&large), &single(&large), Direction::Read).unwrap();
    let prepared = one.prepare().unwrap();
    let mut group = c.benchmark_group("coalesce scattered lists of 65536 pages, one layer");
    group.throughput(Throughput::Elements(65_536));
    for (order, request) in [("in order here", request(65_536)), ("shuffled on both sides", shuffled(65_536))] {
        group.bench_function(order, |b| {
            let (mut here, mut there) = (Vec::new(), Vec::new());
            b.iter(|| {
                let pairing = Pairing::new(&one, black_box(&request)).unwrap();
                pairing.write_lists(&prepared, 0, &mut here, &mut there).unwrap();
            });
        });
    }
    group.finish();

    let tall = rank((0, 1), 12_500);
    let prepared = Plan::new(&tall, &tall, Direction::Read).unwrap().prepare().unwrap();
    let mut table = vec![0_u64; 3_000_000];
    let mut group = c.benchmark_group("Nx3 of 1000000 descriptors");
    group.throughput(Throughput::Elements(1_000_000));
    group.bench_function("flat", |b| b.iter(|| prepared[0].write_flat(Side::Local, &mut table).unwrap()));
    group.bench_function("plain store of the same bytes", |b| b.iter(|| table.fill(black_box(7))));
    group.finish();
}

fn peers(c: &mut Criterion<CpuTime>) {
    let bytes = rank((0, 2), 1_000).to_bytes().unwrap();
    c.bench_function("decode and check a peer, 80 layers", |b| {
        b.iter_with_large_drop(|| RankLayout::from_bytes(black_box(&bytes)).unwrap());
    });
    let (prefill, decode) = (engine(64), engine(64));
    c.bench_function("route 64 ranks to 64 ranks, 80 layers", |b| {
        b.iter(|| Route::new(black_box(&decode), black_box(&prefill), Direction::Read).unwrap());
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = planning, ids, lists, peers
}
criterion_main!(benches);
