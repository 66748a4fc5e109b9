//! Descriptors, and what lists of them are written to.

use crate::plan::Run;

/// One descriptor pair: `length` bytes at each address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Address on the local side.
    pub local: u64,
    /// Address on the remote side.
    pub remote: u64,
    /// Bytes.
    pub length: u64,
    /// NIXL's device id on the local side.
    pub local_device: u32,
    /// NIXL's device id on the remote side.
    pub remote_device: u32,
}

/// What joined runs are written to, with the devices of both sides.
pub(super) trait Sink {
    /// One run.
    fn put(&mut self, run: Run, on: (u32, u32));

    /// Runs whose number is known, so that room is made once.
    fn extend(&mut self, runs: impl ExactSizeIterator<Item = Run> + Clone, on: (u32, u32));
}

impl Sink for Vec<Descriptor> {
    fn put(&mut self, run: Run, on: (u32, u32)) {
        self.push(described(run, on));
    }

    fn extend(&mut self, runs: impl ExactSizeIterator<Item = Run> + Clone, on: (u32, u32)) {
        Extend::extend(self, runs.map(|run| described(run, on)));
    }
}

fn described(run: Run, (local_device, remote_device): (u32, u32)) -> Descriptor {
    Descriptor { local: run.local, remote: run.remote, length: run.len, local_device, remote_device }
}

/// NIXL's Nx3 tables of both sides.
pub(super) struct Tables<'a> {
    pub(super) local: &'a mut Vec<[u64; 3]>,
    pub(super) remote: &'a mut Vec<[u64; 3]>,
}

impl Sink for Tables<'_> {
    fn put(&mut self, run: Run, on: (u32, u32)) {
        self.local.push([run.local, run.len, u64::from(on.0)]);
        self.remote.push([run.remote, run.len, u64::from(on.1)]);
    }

    fn extend(&mut self, runs: impl ExactSizeIterator<Item = Run> + Clone, on: (u32, u32)) {
        self.local.extend(runs.clone().map(|run| [run.local, run.len, u64::from(on.0)]));
        self.remote.extend(runs.map(|run| [run.remote, run.len, u64::from(on.1)]));
    }
}
