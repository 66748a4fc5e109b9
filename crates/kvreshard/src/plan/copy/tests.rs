//! Copies folded, joined and found to be loops: how many there are left, and which.
#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test says so by panicking")]

use super::*;

fn step(extent: u64, local: u64, remote: u64) -> Loop {
    Loop { extent, local, remote }
}

fn copy(run: u64, loops: &[Loop], local: u64, remote: u64) -> Copy {
    Copy { run, loops: loops.to_vec(), local, remote }
}

fn one(len: u64, local: u64, remote: u64) -> Run {
    Run { local, remote, len }
}

fn folded(run: u64, loops: &[Loop]) -> (u64, Vec<Loop>) {
    let mut copy = copy(run, loops, 7, 9);
    copy.fold().unwrap();
    assert_eq!((copy.local, copy.remote), (7, 9));
    (copy.run, copy.loops)
}

#[test]
fn a_loop_that_is_dense_on_both_sides_lengthens_the_run() {
    assert_eq!(folded(2, &[step(3, 2, 2)]), (6, vec![]));
    assert_eq!(folded(2, &[step(5, 6, 6), step(3, 2, 2)]), (30, vec![]));
    // Dense on one side only.
    for apart in [step(3, 2, 8), step(3, 8, 2)] {
        assert_eq!(folded(2, &[apart]), (2, vec![apart]));
    }
}

#[test]
fn loops_that_go_on_from_one_another_are_one() {
    assert_eq!(folded(4, &[step(2, 30, 60), step(3, 10, 20)]), (4, vec![step(6, 10, 20)]));
    assert_eq!(folded(4, &[step(3, 10, 20), step(2, 60, 120), step(2, 30, 60)]), (4, vec![step(12, 10, 20)]));
    // On one side only: the outermost is the one with the largest local step.
    for outer in [step(2, 30, 61), step(2, 31, 60)] {
        assert_eq!(folded(4, &[step(3, 10, 20), outer]), (4, vec![outer, step(3, 10, 20)]));
    }
}

#[test]
fn a_loop_of_one_turn_is_none() {
    assert_eq!(folded(4, &[step(1, 9, 9)]), (4, vec![]));
    assert_eq!(folded(4, &[step(1, 30, 5), step(3, 10, 20)]), (4, vec![step(3, 10, 20)]));
}

#[test]
fn runs_are_written_out_with_the_outermost_loop_slowest() {
    let mut runs = vec![one(1, 0, 0)];
    copy(4, &[step(2, 100, 10), step(2, 10, 100)], 1, 2).expand(&mut runs).unwrap();
    let starts: Vec<(u64, u64)> = runs.iter().skip(1).map(|run| (run.local, run.remote)).collect();
    assert_eq!(starts, [(1, 2), (11, 102), (101, 12), (111, 112)]);
    assert!(runs.iter().skip(1).all(|run| run.len == 4));
}

/// K and V of 4 bytes beside each other, and a component of 8 behind them.
#[test]
fn nests_with_equal_loops_that_touch_are_one_whatever_their_order() {
    let loops = [step(3, 16, 32)];
    let (k, v, w) = (copy(4, &loops, 0, 100), copy(4, &loops, 4, 104), copy(8, &loops, 8, 108));
    let all = [&k, &v, &w];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let copies: Vec<Copy> = order.iter().filter_map(|at| all.get(*at)).map(|copy| (*copy).clone()).collect();
        assert_eq!(nests(copies).unwrap(), [copy(16, &loops, 0, 100)], "{order:?}");
    }
    assert_eq!(nests(vec![v.clone(), k.clone()]).unwrap(), [copy(8, &loops, 0, 100)]);
    // Touching on one side only, and touching with other loops.
    for other in [copy(4, &loops, 4, 105), copy(4, &loops, 5, 104), copy(4, &[step(3, 16, 33)], 4, 104)] {
        assert_eq!(nests(vec![k.clone(), other.clone()]).unwrap(), [k.clone(), other]);
    }
}

#[test]
fn nests_are_compared_with_each_other_up_to_a_count() {
    // Each touches the next.
    let row = |count: usize| (0..wide(count)).map(|at| copy(2, &[step(2, 10_000, 20_000)], 2 * at, 2 * at)).collect();
    assert_eq!(nests(row(MAX_PAIRED)).unwrap(), [copy(512, &[step(2, 10_000, 20_000)], 0, 0)]);
    let beyond: Vec<Copy> = row(MAX_PAIRED + 1);
    assert_eq!(nests(beyond.clone()).unwrap(), beyond);
}

fn merged(copies: &[Copy]) -> Vec<Copy> {
    merge(copies.to_vec(), &mut Work::default()).unwrap()
}

#[test]
fn runs_that_touch_across_copies_are_one() {
    // Even and odd bytes.
    let (even, odd) = (copy(1, &[step(4, 2, 2)], 0, 50), copy(1, &[step(4, 2, 2)], 1, 51));
    assert_eq!(merged(&[even.clone(), odd]), [copy(8, &[], 0, 50)]);
    // A single copy whose runs touch, and one whose runs do not.
    assert_eq!(merged(&[copy(1, &[step(4, 1, 1)], 3, 5)]), [copy(4, &[], 3, 5)]);
    assert_eq!(merged(std::slice::from_ref(&even)), [even]);
    let alone = copy(9, &[], 3, 5);
    assert_eq!(merged(std::slice::from_ref(&alone)), [alone]);
    // Runs that do not touch, but form a loop.
    assert_eq!(merged(&[copy(4, &[], 10, 30), copy(4, &[], 0, 10)]), [copy(4, &[step(2, 10, 20)], 0, 10)]);
}

#[test]
fn as_many_runs_as_may_be_are_written_out_and_no_more() {
    let halves = |runs: u64| {
        let loops = [step(runs / 2, 2, 2)];
        vec![copy(1, &loops, 0, 0), copy(1, &loops, 1, 1)]
    };
    assert_eq!(merged(&halves(MAX_EXACT_RUNS)), [copy(MAX_EXACT_RUNS, &[], 0, 0)]);
    assert_eq!(merged(&halves(MAX_EXACT_RUNS + 2)), halves(MAX_EXACT_RUNS + 2));
    let mut spent = Work::default();
    assert!(spent.affords(crate::plan::MAX_PLAN_RUNS - 7));
    assert_eq!(merge(halves(8), &mut spent).unwrap(), halves(8));
    assert_eq!(merge(halves(6), &mut spent).unwrap(), [copy(6, &[], 0, 0)]);
    assert_eq!(merge(halves(2), &mut spent).unwrap(), halves(2));
}

#[test]
fn nests_are_kept_where_they_are_fewer() {
    let of = |count: u64| -> Vec<Copy> { (0..count).map(|at| copy(1, &[], at * 3, at * 5)).collect() };
    let copies: Arc<[Copy]> = of(2).into();
    assert_eq!(*fewer(&copies, of(1)), *of(1));
    for as_many in [2, 3] {
        assert!(Arc::ptr_eq(&fewer(&copies, of(as_many)), &copies));
    }
}

#[test]
fn runs_join_only_where_they_touch_on_both_sides() {
    assert_eq!(join(vec![one(2, 12, 22), one(2, 10, 20), one(3, 14, 24)]).unwrap(), [one(7, 10, 20)]);
    for apart in [one(2, 12, 23), one(2, 13, 22)] {
        assert_eq!(join(vec![one(2, 10, 20), apart]).unwrap(), [one(2, 10, 20), apart]);
    }
}

fn compressed(copies: &[Copy]) -> Vec<Copy> {
    compress(copies.to_vec()).unwrap()
}

#[test]
fn copies_at_a_constant_step_are_a_loop() {
    let row = |places: &[(u64, u64)]| -> Vec<Copy> {
        places.iter().map(|(local, remote)| copy(4, &[], *local, *remote)).collect()
    };
    let three = row(&[(20, 45), (0, 5), (10, 25)]);
    assert_eq!(compressed(&three), [copy(4, &[step(3, 10, 20)], 0, 5)]);
    // The step changes on either side: what is left begins anew.
    for last in [(31, 65), (30, 66)] {
        let mut more = three.clone();
        more.extend(row(&[last]));
        assert_eq!(compressed(&more), [copy(4, &[], last.0, last.1), copy(4, &[step(3, 10, 20)], 0, 5)]);
    }
    // Backwards on the remote side there is no step.
    assert_eq!(compressed(&row(&[(0, 20), (10, 0)])).len(), 2);
    let grid = row(&[(0, 0), (10, 30), (20, 60), (100, 1), (110, 31), (120, 61)]);
    assert_eq!(compressed(&grid), [copy(4, &[step(2, 100, 1), step(3, 10, 30)], 0, 0)]);
}

#[test]
fn copies_of_other_shapes_are_no_part_of_a_loop() {
    let inner = [step(2, 1000, 1000)];
    for other in [copy(5, &[], 20, 20), copy(4, &inner, 20, 20)] {
        let mixed = [copy(4, &[], 0, 0), copy(4, &[], 10, 10), other.clone()];
        assert_eq!(compressed(&mixed).len(), 2);
        assert!(compressed(&mixed).contains(&other));
        let pair = [copy(4, &[], 0, 0), other];
        assert_eq!(compressed(&pair), pair);
    }
    // Shapes that alternate do not hide their steps.
    let alternate: Vec<Copy> = (0..6).map(|at| copy(if at % 2 == 0 { 4 } else { 2 }, &[], at * 10, at * 20)).collect();
    assert_eq!(compressed(&alternate), [copy(2, &[step(3, 20, 40)], 10, 20), copy(4, &[step(3, 20, 40)], 0, 0)]);
}

#[test]
fn a_copy_counts_its_runs_and_bytes_and_knows_its_ends() {
    let copy = copy(4, &[step(2, 100, 10), step(3, 10, 100)], 1, 2);
    assert_eq!((copy.runs(), copy.bytes()), (Ok(6), Ok(24)));
    assert_eq!((copy.local_end(), copy.remote_end()), (Ok(1 + 100 + 20 + 4), Ok(2 + 10 + 200 + 4)));
}

#[test]
fn a_limit_is_met_by_itself() {
    assert_eq!(bounded("runs", 8, 8), Ok(()));
    assert_eq!(bounded("runs", 9, 8), Err(Error::limit("runs", 9, 8)));
}
