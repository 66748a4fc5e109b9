//! `RegionTags`.

use kvreshard::wire as core;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Raise;
use crate::format::PageFormat;
use crate::layout::RankLayout;

/// Base, page bytes, page stride, pages, device, memory kind.
type Host = (u64, u64, u64, u64, u32, String);

/// The formats of a host's regions, without addresses.
#[pyclass(module = "kvreshard", frozen, eq)]
#[derive(PartialEq, Eq)]
pub(crate) struct RegionTags(core::RegionTags);

#[pymethods]
impl RegionTags {
    #[staticmethod]
    #[pyo3(signature = (layout, /))]
    fn of(layout: &RankLayout) -> Self {
        Self(core::RegionTags::of(&layout.0))
    }

    #[staticmethod]
    #[pyo3(signature = (data, /))]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        py.detach(|| core::RegionTags::from_bytes(data)).map(Self).raised(py)
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &py.detach(|| self.0.to_bytes()).raised(py)?))
    }

    /// A tag that is withheld: its region counts as one that nobody describes.
    #[pyo3(signature = (*indexes))]
    fn without(&self, indexes: Vec<usize>) -> Self {
        let mut tags = self.0.clone();
        for (at, tag) in tags.regions.iter_mut().enumerate() {
            if indexes.contains(&at) {
                *tag = None;
            }
        }
        Self(tags)
    }

    #[getter]
    fn layers(&self) -> Vec<Option<&str>> {
        self.0.regions.iter().map(|tag| tag.as_ref().map(|tag| &*tag.layer)).collect()
    }

    #[getter]
    fn formats(&self) -> Vec<Option<PageFormat>> {
        self.0.regions.iter().map(|tag| tag.as_ref().map(|tag| PageFormat(tag.format.clone()))).collect()
    }

    #[pyo3(signature = (*, engine, regions, generation=0))]
    fn join(&self, py: Python<'_>, engine: &str, regions: Vec<Host>, generation: u64) -> PyResult<RankLayout> {
        py.detach(|| {
            let mut host = Vec::with_capacity(regions.len());
            for (base, page_bytes, page_stride, pages, device, memory) in &regions {
                let (base, page_bytes, page_stride, pages) = (*base, *page_bytes, *page_stride, *pages);
                let memory = memory.parse()?;
                host.push(core::HostRegion { base, page_bytes, page_stride, pages, device: *device, memory });
            }
            self.0.join(engine, generation, &host)
        })
        .map(RankLayout)
        .raised(py)
    }

    fn __len__(&self) -> usize {
        self.0.regions.len()
    }

    fn __repr__(&self) -> String {
        format!("RegionTags({} regions)", self.0.regions.len())
    }
}
