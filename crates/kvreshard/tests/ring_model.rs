//! The ring protocol, explored state by state: whatever a network and a host may do, in every order.
//!
//! Two kinds of fault are looked for. A state that must not be: a slot written or read while someone else owns it, wrong bytes
//! scattered, pages touched that were given back, a request that ends twice. And a state from which a network that works, and hosts
//! that go on, do not lead to the end: a deadlock, a request lost, a slot that never comes back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing
)]

mod ring_world;

use kvreshard::ring::table::{Row, TABLE, owner};
use kvreshard::ring::{Flow, Place, Rules, State, Step};
use ring_world::explore::explore;
use ring_world::{Budget, Setup, config};

const FLOWS: [Flow; 2] = [Flow::Push, Flow::Pull];
const KIND: Budget = Budget {
    drops: 0,
    doubles: 0,
    receivers_killed: 0,
    senders_killed: 0,
    senders_suspected: 0,
    receivers_suspected: 0,
    cancels: 0,
    withdrawals: 0,
    failures: 0,
    reconnects: 0,
    rings_registered: 0,
    stagings_registered: 0,
    early_ticks: 0,
};

const ALL: [State; 12] = [
    State::Free,
    State::Granted,
    State::Reading,
    State::Scattering,
    State::Gathering,
    State::Writing,
    State::Ready,
    State::Quarantined,
    State::Held,
    State::Used,
    State::Shipped,
    State::Returned,
];

/// Receiver, sender and chunks of each request.
type Jobs = &'static [(usize, usize, u64)];

const ONE: Jobs = &[(0, 0, 1)];
const CHUNKS: Jobs = &[(0, 0, 2)];
const TWO: Jobs = &[(0, 0, 1), (0, 0, 1)];
const TWO_SENDERS: Jobs = &[(0, 0, 1), (0, 1, 1)];
const TWO_RECEIVERS: Jobs = &[(0, 0, 1), (1, 0, 1)];

fn setup(flow: Flow, jobs: Jobs, slots: u32) -> Setup {
    let receivers = jobs.iter().map(|job| job.0 + 1).max().unwrap();
    let senders = jobs.iter().map(|job| job.1 + 1).max().unwrap();
    Setup::new(flow, receivers, senders, (slots, slots), jobs)
}

/// Every state, and no fault.
fn holds(setup: Setup) {
    let text = format!("{:?} {:?} {:?}", setup.flow, setup.jobs, setup.budget);
    let begun = std::time::Instant::now();
    let found = explore(setup, 3_000_000);
    println!("{} states, {} steps, {:?}: {text}", found.states, found.steps, begun.elapsed());
    if let Some((fault, steps)) = &found.fault {
        panic!("{text}\n{steps:#?}\n{fault}");
    }
    assert!(found.complete && found.ends > 0, "{text}: {found:?}");
}

#[test]
fn a_bad_network_loses_nothing() {
    for flow in FLOWS {
        holds(setup(flow, CHUNKS, 2).with(Budget { drops: 2, doubles: 1, ..KIND }));
        holds(setup(flow, CHUNKS, 3).with(Budget { drops: 1, early_ticks: 1, ..KIND }));
        holds(setup(flow, TWO, 2).with(KIND));
        holds(setup(flow, TWO_SENDERS, 2).with(KIND));
        holds(setup(flow, TWO_RECEIVERS, 2).with(KIND));
    }
}

#[test]
fn requests_may_be_given_up_and_fail_at_any_time() {
    for flow in FLOWS {
        holds(setup(flow, ONE, 2).with(Budget { cancels: 1, withdrawals: 1, failures: 1, drops: 1, ..KIND }));
        holds(setup(flow, CHUNKS, 2).with(Budget { cancels: 1, withdrawals: 1, ..KIND }));
        holds(setup(flow, CHUNKS, 2).with(Budget { failures: 1, doubles: 1, ..KIND }));
        holds(setup(flow, CHUNKS, 2).with(Budget { cancels: 1, doubles: 1, ..KIND }));
        holds(setup(flow, TWO, 1).with(Budget { failures: 1, ..KIND }));
        // Chunks of two requests wait for one slot while one of the two is given up.
        holds(Setup { ring: config(1, 1), ..setup(flow, TWO, 2).with(Budget { cancels: 1, ..KIND }) });
    }
}

#[test]
fn the_dead_may_still_write_and_read() {
    for flow in FLOWS {
        let dead = Budget { senders_killed: 1, receivers_killed: 1, ..KIND };
        holds(setup(flow, CHUNKS, 2).with(Budget { drops: 1, doubles: 1, ..dead }));
        holds(setup(flow, TWO_SENDERS, 2).with(Budget { senders_killed: 1, ..KIND }));
        holds(setup(flow, TWO_RECEIVERS, 2).with(Budget { receivers_killed: 1, ..KIND }));
    }
}

#[test]
fn the_living_may_be_taken_for_dead() {
    for flow in FLOWS {
        for suspected in [Budget { senders_suspected: 1, ..KIND }, Budget { receivers_suspected: 1, ..KIND }] {
            holds(setup(flow, ONE, 2).with(Budget { drops: 1, doubles: 1, ..suspected }));
            holds(setup(flow, CHUNKS, 2).with(suspected));
            holds(setup(flow, ONE, 2).with(Budget { reconnects: 1, drops: 1, ..suspected }));
        }
    }
}

#[test]
fn rings_may_be_registered_anew_at_any_time() {
    for flow in FLOWS {
        for anew in [Budget { rings_registered: 1, ..KIND }, Budget { stagings_registered: 1, ..KIND }] {
            holds(setup(flow, ONE, 2).with(Budget { reconnects: 1, drops: 1, ..anew }));
            holds(setup(flow, CHUNKS, 2).with(anew));
        }
    }
}

/// A network that keeps every message for ever and delivers any of them at any time, any number of times. Nothing need ever end
/// there, so only states that must not be are looked for.
#[test]
fn messages_may_come_at_any_time_and_any_number_of_times() {
    for flow in FLOWS {
        let worlds = [
            (CHUNKS, Budget { early_ticks: 1, cancels: 1, ..KIND }),
            (CHUNKS, Budget { senders_suspected: 1, early_ticks: 1, ..KIND }),
            (CHUNKS, Budget { receivers_suspected: 1, early_ticks: 1, ..KIND }),
            (ONE, Budget { senders_suspected: 1, reconnects: 1, ..KIND }),
            (TWO_SENDERS, Budget { senders_killed: 1, ..KIND }),
        ];
        for (jobs, budget) in worlds {
            let setup = setup(flow, jobs, 1).sticky(budget);
            let text = format!("{:?} {:?} {:?}", setup.flow, setup.jobs, setup.budget);
            let found = explore(setup, 60_000);
            println!("{} states, {} steps, complete {}: {text}", found.states, found.steps, found.complete);
            if let Some((fault, steps)) = found.fault.filter(|(fault, _)| !fault.contains("do not lead to the end")) {
                panic!("{text}\n{steps:#?}\n{fault}");
            }
        }
    }
}

/// Small worlds that between them use every row of the table.
const WORLDS: [(Jobs, Budget); 13] = [
    (ONE, KIND),
    (ONE, Budget { drops: 1, ..KIND }),
    (ONE, Budget { failures: 1, ..KIND }),
    (ONE, Budget { cancels: 1, ..KIND }),
    (ONE, Budget { senders_suspected: 1, ..KIND }),
    (ONE, Budget { receivers_suspected: 1, ..KIND }),
    (ONE, Budget { senders_killed: 1, receivers_killed: 1, ..KIND }),
    (ONE, Budget { rings_registered: 1, ..KIND }),
    (ONE, Budget { stagings_registered: 1, ..KIND }),
    (CHUNKS, KIND),
    (ONE, Budget { failures: 1, drops: 1, ..KIND }),
    (ONE, Budget { failures: 1, drops: 1, early_ticks: 1, ..KIND }),
    (TWO, Budget { failures: 1, ..KIND }),
];

/// The first fault that the checker finds under other rules. A look at the first states of every world finds nearly all; where it
/// does not, every state of all worlds but the last, which is large, is looked at. A world that goes on for ever is a fault then:
/// slots are granted and returned without end.
fn first_fault(rules: &Rules) -> Option<String> {
    let look = |worlds: &[(Jobs, Budget)], limit: usize, all: bool| {
        worlds.iter().flat_map(|world| FLOWS.map(|flow| (flow, world))).find_map(|(flow, &(jobs, budget))| {
            let found = explore(setup(flow, jobs, 1).with(budget).rules(rules.clone()), limit);
            let endless = (all && !found.complete).then(|| format!("no end after {} states", found.states));
            found.fault.map(|(fault, _)| fault).or(endless)
        })
    };
    look(&WORLDS, 3_000, false).or_else(|| look(&WORLDS[..WORLDS.len() - 1], 15_000, true))
}

#[test]
fn the_checker_sees_quarantine_end_early() {
    for state in [State::Granted, State::Ready] {
        let early = TABLE.iter().map(|row| match row.step {
            Step::Lost if row.state == state => Row { next: State::Free, ..*row },
            _ => *row,
        });
        let fault =
            first_fault(&Rules::injected(early.collect())).expect("a slot was freed while a lost peer could touch it");
        assert!(fault.contains("is under way, and slot"), "{fault}");
    }
    assert_eq!(first_fault(&Rules::default()), None);
}

/// Changes that do no harm. A sender that takes a granted slot, or one that it is done with, for returned gives it back when it is
/// asked again, and is granted the slot anew: slower, and nothing else.
const HARMLESS: [(State, Step, State); 4] = [
    (State::Free, Step::Grant, State::Returned),
    (State::Used, Step::Unused, State::Returned),
    (State::Shipped, Step::Consumed, State::Returned),
    (State::Shipped, Step::Grant, State::Returned),
];

/// Each row of the table is needed, and leads to the one right state: the checker finds a fault in every table that lacks a row or
/// has another state in it.
#[test]
fn the_checker_sees_every_change_of_the_table() {
    let mut missed = Vec::new();
    let mut tables = 0;
    for (at, row) in TABLE.iter().enumerate() {
        let mut lacking = TABLE.to_vec();
        lacking.remove(at);
        let mut changed = vec![(None, lacking)];
        for state in ALL.into_iter().filter(|&state| state != row.next && owner(row.place, state).is_some()) {
            let mut table = TABLE.to_vec();
            table[at].next = state;
            changed.push((Some(state), table));
        }
        for (state, table) in changed {
            tables += 1;
            let harmless =
                HARMLESS.iter().any(|&(from, step, to)| (row.state, row.step, state) == (from, step, Some(to)));
            let harmless = harmless && row.place == Place::Credit;
            if !harmless && first_fault(&Rules::injected(table)).is_none() {
                missed.push((row.place, row.state, row.step, state));
            }
        }
    }
    println!("{tables} tables");
    assert!(missed.is_empty(), "not seen: {missed:?}");
}
