//! `Blocks` and `Request`.

use std::collections::BTreeMap;

use kvreshard::{Interval, Side, request as core};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::block_ids;
use crate::errors::bad_request;
use crate::layer::Pair;

/// The blocks of one group on one side of a request.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Blocks(core::Blocks);

#[pymethods]
impl Blocks {
    #[new]
    #[pyo3(signature = (ids, first_token=0))]
    fn new(ids: &Bound<'_, PyAny>, first_token: u64) -> PyResult<Self> {
        Ok(Self(core::Blocks::new(block_ids(ids)?, first_token)))
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        PyArray1::from_slice(py, self.0.ids())
    }

    #[getter]
    fn first_token(&self) -> u64 {
        self.0.first_token()
    }

    fn __len__(&self) -> usize {
        self.0.ids().len()
    }

    fn __repr__(&self) -> String {
        format!("Blocks({:?}, first_token={})", self.0.ids(), self.0.first_token())
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyArray1<i32>>, u64) {
        (self.ids(py), self.first_token())
    }
}

/// The tokens wanted and where they are.
#[pyclass(module = "kvreshard", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Request(pub(crate) core::Request);

#[pymethods]
impl Request {
    #[new]
    #[pyo3(signature = (tokens, local, remote, *, more=false))]
    fn new(py: Python<'_>, tokens: Pair, local: Vec<Blocks>, remote: Vec<Blocks>, more: bool) -> PyResult<Self> {
        let Some(wanted) = Interval::new(tokens.0, tokens.1) else {
            return Err(bad_request(
                py,
                "tokens",
                format!("{tokens:?}"),
                "a start that is not after the end".to_owned(),
            ));
        };
        let lists = |side: Vec<Blocks>| side.into_iter().map(|blocks| blocks.0).collect();
        Ok(Self(core::Request::new(wanted, lists(local), lists(remote)).with_more(more)))
    }

    #[getter]
    fn tokens(&self) -> Pair {
        (self.0.tokens().start(), self.0.tokens().end())
    }

    #[getter]
    fn local(&self) -> Vec<Blocks> {
        self.0.side(Side::Local).iter().cloned().map(Blocks).collect()
    }

    #[getter]
    fn remote(&self) -> Vec<Blocks> {
        self.0.side(Side::Remote).iter().cloned().map(Blocks).collect()
    }

    #[getter]
    fn more(&self) -> bool {
        self.0.more()
    }

    fn __repr__(&self) -> String {
        let more = if self.more() { ", more=True" } else { "" };
        let lists = |side: Vec<Blocks>| side.iter().map(Blocks::__repr__).collect::<Vec<_>>().join(", ");
        format!("Request({:?}, [{}], [{}]{more})", self.tokens(), lists(self.local()), lists(self.remote()))
    }

    #[allow(clippy::type_complexity, reason = "the arguments by place and by name, as pickle wants them")]
    fn __getnewargs_ex__(&self) -> ((Pair, Vec<Blocks>, Vec<Blocks>), BTreeMap<&'static str, bool>) {
        ((self.tokens(), self.local(), self.remote()), BTreeMap::from([("more", self.more())]))
    }
}
