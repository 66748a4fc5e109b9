//! Any two layouts: planning and checking agree, and no row leaves its region.
#![no_main]

use arbitrary::Arbitrary;
use kvreshard::check::{Options, Severity, check, check_engines};
use kvreshard::engine::Engine;
use kvreshard::plan::{Direction, Plan};
use kvreshard::route::Route;
use kvreshard::verify;
use kvreshard_fuzz::{AnyRank, assert_inside};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    local: AnyRank,
    remote: AnyRank,
    write: bool,
    /// Half of the inputs look at engines too: every rank of both, so that one of them costs what dozens of pairs do.
    engines: bool,
}

fuzz_target!(|input: Input| {
    let (Ok(local), Ok(remote)) = (input.local.build(), input.remote.build()) else { return };
    let direction = if input.write { Direction::Write } else { Direction::Read };
    let options = Options { direction, ..Options::default() };
    let report = check(&local, &remote, &options);
    match Plan::new(&local, &remote, direction) {
        Ok(plan) => {
            assert_inside(&plan);
            plan.digest();
            // Verification writes out every element, so it is for small pages.
            if plan.summary().is_ok_and(|summary| summary.bytes < 1 << 12) {
                let _ = verify::plan(&plan);
            }
        }
        Err(error) => assert!(report.of(Severity::Error).next().is_some(), "{error}\n{report}"),
    }
    if !input.engines {
        return;
    }
    if let (Ok(here), Ok(there)) = (Engine::uniform(&local), Engine::uniform(&remote)) {
        let _ = Route::new(&here, &there, direction);
        check_engines(&here, &there, &options);
    }
});
