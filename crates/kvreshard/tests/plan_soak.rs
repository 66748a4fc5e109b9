//! Plans for random pairs of ranks against brute force: every byte from the right place, in the fewest descriptors.
//!
//! Formats come from the notation's whole grammar; shares, page lengths, interleaves, groups, segments, planes, shared pools,
//! padding and requests vary with them. `cargo test` looks at some pairs, always the same; `make soak-plan` at as many as it is
//! told. A failure is shrunk and kept in `soak/kept`, which is replayed here.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::unreachable,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    missing_docs,
    unreachable_pub,
    reason = "a test says so by panicking"
)]

mod soak;

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvreshard::Side;
use kvreshard::layout::RankLayout;
use kvreshard::lower::Pairing;
use kvreshard::plan::Plan;

use soak::draw::{Draw, shrink};
use soak::oracle::{Run, joined, runs, within};
use soak::world::{World, world};

/// Looks at one pair; false where the decisions make none. Panics where something is wrong.
fn one_pair(draw: &mut Draw) -> bool {
    let Some(world) = world(draw) else { return false };
    look(&world);
    true
}

fn look(world: &World) {
    let (local, remote) = (world.layout(0), world.layout(1));
    // What goes over the wire is what is planned with.
    let told = RankLayout::from_bytes(&remote.to_bytes().unwrap()).unwrap();
    assert_eq!(told, remote);
    let plan = Plan::new(&local, &told, world.direction).unwrap();
    let prepared = plan.prepare().unwrap();
    let pairing = Pairing::new(&plan, &world.request()).unwrap();

    let mut found: Vec<Run> = Vec::new();
    for list in 0..prepared.len() {
        found.extend(pairing.lists(&prepared, list).unwrap().iter().map(|one| (one.local, one.remote, one.length)));
    }
    found.sort_unstable();
    let wanted = runs(world, world.tokens);
    assert_eq!(found, wanted, "{world:?}");

    // Prepared rows move whole rows: all that is wanted, and beyond its end only what the same pages hold.
    if pairing.fits_rows() {
        let mut moved = Vec::new();
        for list in &prepared {
            let count = pairing.id_count(list).unwrap();
            let (mut here, mut there) = (vec![0; count], vec![0; count]);
            pairing.write_ids(list, &mut here, &mut there).unwrap();
            let flat = (list.flat(Side::Local).unwrap(), list.flat(Side::Remote).unwrap());
            for (one, other) in here.iter().zip(&there) {
                let row = |flat: &[u64], id: &i32| {
                    let at = usize::try_from(*id).unwrap() * 3;
                    (flat[at], flat[at + 1])
                };
                let ((to, bytes), (from, same)) = (row(&flat.0, one), row(&flat.1, other));
                assert_eq!(bytes, same);
                moved.push((to, from, bytes));
            }
        }
        let moved = joined(moved);
        assert!(within(&joined(wanted), &moved), "rows leave out what is wanted: {world:?}");
        let all = joined(runs(world, (world.tokens.0, 1 << 20)));
        assert!(within(&moved, &all), "rows move what no page of the request holds: {world:?}");
    }
}

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/soak/kept")
}

fn number(name: &str, otherwise: u64) -> u64 {
    env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn fails(choices: &[u16]) -> bool {
    catch_unwind(AssertUnwindSafe(|| one_pair(&mut Draw::replayed(choices.to_vec())))).is_err()
}

/// `SOAK_PAIRS` pairs from `SOAK_SEED` on; says how many there were. `SOAK_SHRINK=0` stops at a failure as it is.
#[test]
fn random_pairs() {
    let (seed, wanted) = (number("SOAK_SEED", 1), number("SOAK_PAIRS", 1500));
    println!("seed {seed}, {wanted} pairs");
    let start = Instant::now();
    let (mut pairs, mut said) = (0, Duration::ZERO);
    for case in 0.. {
        if pairs == wanted {
            break;
        }
        let mut draw = Draw::seeded(seed, case);
        match catch_unwind(AssertUnwindSafe(|| one_pair(&mut draw))) {
            Ok(made) => pairs += u64::from(made),
            // Whoever only asks whether anything fails need not wait for the least that does.
            Err(_) if number("SOAK_SHRINK", 1) == 0 => panic!("seed {seed}, case {case}"),
            Err(_) => {
                let hook = take_hook();
                set_hook(Box::new(|_| {}));
                let least = shrink(draw.made, fails);
                set_hook(hook);
                let text: Vec<String> = least.iter().map(ToString::to_string).collect();
                let path = kept().join(format!("seed-{seed}-case-{case}.txt"));
                fs::write(&path, text.join(" ") + "\n").unwrap();
                println!("seed {seed}, case {case}: shrunk to {} decisions, kept as {}", least.len(), path.display());
                one_pair(&mut Draw::replayed(least));
                panic!("a pair that failed passes when replayed");
            }
        }
        if start.elapsed() > said + Duration::from_secs(60) {
            said = start.elapsed();
            println!("{pairs} pairs after {} s", said.as_secs());
        }
    }
    println!("{pairs} pairs clean, seed {seed}, {} s", start.elapsed().as_secs());
}

#[test]
fn kept_failures() {
    for entry in fs::read_dir(kept()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            println!("{}", path.display());
            let text = fs::read_to_string(&path).unwrap();
            one_pair(&mut Draw::replayed(text.split_whitespace().map(|one| one.parse().unwrap()).collect()));
        }
    }
}
