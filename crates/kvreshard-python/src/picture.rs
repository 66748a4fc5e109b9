//! `Piece` and `Picture`.

use std::collections::BTreeMap;

use kvreshard::picture as core;
use pyo3::prelude::*;

/// Contiguous bytes of one page, of one component.
#[pyclass(module = "kvreshard", frozen, eq, skip_from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Piece(pub(crate) core::Piece);

#[pymethods]
impl Piece {
    #[getter]
    fn segment(&self) -> usize {
        self.0.segment
    }

    #[getter]
    fn page(&self) -> u64 {
        self.0.page
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.0.offset
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    #[getter]
    fn component(&self) -> Option<&str> {
        self.0.component.as_ref().map(|name| name.as_str())
    }

    #[getter]
    fn axes(&self) -> BTreeMap<&str, (u64, u64, u64)> {
        self.0.axes.iter().map(|reach| (reach.axis.as_str(), (reach.first, reach.last, reach.count))).collect()
    }

    #[getter]
    fn run(&self) -> Option<usize> {
        self.0.run
    }

    fn __repr__(&self) -> String {
        let component = self.component().unwrap_or("nothing");
        format!("Piece({component} at {} + {}, {:?})", self.0.offset, self.0.bytes, self.axes())
    }
}

/// One layer of a plan, over one period of pages.
#[pyclass(module = "kvreshard", frozen, eq, skip_from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Picture(pub(crate) core::Picture);

/// Page, segment and byte offset of a run on one side.
type End = (u64, usize, u64);

#[pymethods]
impl Picture {
    #[getter]
    fn layer(&self) -> &str {
        &self.0.layer
    }

    #[getter]
    fn local(&self) -> Vec<Piece> {
        self.0.local.iter().cloned().map(Piece).collect()
    }

    #[getter]
    fn remote(&self) -> Vec<Piece> {
        self.0.remote.iter().cloned().map(Piece).collect()
    }

    #[getter]
    fn runs(&self) -> Vec<(End, End, u64)> {
        self.0.runs.iter().map(|run| (run.local, run.remote, run.bytes)).collect()
    }

    fn __repr__(&self) -> String {
        format!("Picture({:?}, {} runs)", self.0.layer, self.0.runs.len())
    }
}
