//! `check`, `Report`, `Finding`.

use kvreshard::check::{self as core, Options, Severity, Strategy};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::{Raise, exception};
use crate::layout::RankLayout;
use crate::route::Engine;
use crate::stock::{StockHandshake, policy};

/// One thing that a check found.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct Finding {
    finding: core::Finding,
    error: Py<PyAny>,
}

impl Finding {
    fn of(py: Python<'_>, finding: &core::Finding) -> PyResult<Self> {
        let error = exception(py, finding.cause.clone())?.into_value(py).into_any();
        Ok(Self { finding: finding.clone(), error })
    }

    fn attribute<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.error.bind(py).getattr(name)
    }
}

#[pymethods]
impl Finding {
    #[getter]
    fn severity(&self) -> &'static str {
        self.finding.severity.name()
    }

    #[getter]
    fn row(&self) -> Option<&'static str> {
        self.finding.row
    }

    #[getter]
    fn error(&self, py: Python<'_>) -> Py<PyAny> {
        self.error.clone_ref(py)
    }

    #[getter]
    fn layer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute(py, "layer")
    }

    #[getter]
    fn field<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute(py, "field")
    }

    #[getter]
    fn local<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute(py, "local")
    }

    #[getter]
    fn remote<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute(py, "remote")
    }

    #[getter]
    fn remedy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute(py, "remedy")
    }

    fn __str__(&self) -> String {
        self.finding.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Finding({:?})", self.finding.to_string())
    }
}

/// Everything that a check found.
#[pyclass(module = "kvreshard", frozen, eq)]
#[derive(PartialEq, Eq)]
pub(crate) struct Report(pub(crate) core::Report);

impl Report {
    fn of(&self, py: Python<'_>, severity: Severity) -> PyResult<Vec<Finding>> {
        self.0.of(severity).map(|finding| Finding::of(py, finding)).collect()
    }
}

#[pymethods]
impl Report {
    #[getter]
    fn findings(&self, py: Python<'_>) -> PyResult<Vec<Finding>> {
        self.0.findings().iter().map(|finding| Finding::of(py, finding)).collect()
    }

    #[getter]
    fn errors(&self, py: Python<'_>) -> PyResult<Vec<Finding>> {
        self.of(py, Severity::Error)
    }

    #[getter]
    fn warnings(&self, py: Python<'_>) -> PyResult<Vec<Finding>> {
        self.of(py, Severity::Warning)
    }

    #[getter]
    fn notes(&self, py: Python<'_>) -> PyResult<Vec<Finding>> {
        self.of(py, Severity::Note)
    }

    #[getter]
    fn omitted(&self) -> u64 {
        self.0.omitted()
    }

    #[getter]
    fn accepted(&self) -> bool {
        self.0.is_accepted()
    }

    #[getter]
    fn advice(&self) -> &'static str {
        self.0.advice().name()
    }

    #[getter]
    fn strategies(&self) -> Vec<&'static str> {
        self.0.strategies().iter().map(|outlook| outlook.strategy.name()).collect()
    }

    #[getter]
    fn runs_per_page(&self) -> Option<u64> {
        self.0.outlook(Strategy::Direct).and_then(|outlook| outlook.runs_per_page)
    }

    #[getter]
    fn bytes_per_run(&self) -> Option<u64> {
        self.0.outlook(Strategy::Direct).and_then(|outlook| outlook.bytes_per_run)
    }

    fn raise_errors(&self, py: Python<'_>) -> PyResult<()> {
        self.0.raise().raised(py)
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kvreshard.pictures")?.call_method1("report_html", (slf,))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let of = |severity| self.0.of(severity).count();
        let (errors, warnings, notes) = (of(Severity::Error), of(Severity::Warning), of(Severity::Note));
        format!("Report({errors} errors, {warnings} warnings, {notes} notes, advice: {})", self.0.advice())
    }
}

/// Whether two sides mean the same pages.
#[pyfunction]
#[pyo3(signature = (
    local, remote, /, *, direction="read", strategy=None, max_runs_per_page=None, landing=true, packing=true,
    untagged=None, assume_untagged=None
))]
#[allow(clippy::too_many_arguments)] // They are keywords.
pub(crate) fn check(
    local: &Bound<'_, PyAny>,
    remote: &Bound<'_, PyAny>,
    direction: &str,
    strategy: Option<&str>,
    max_runs_per_page: Option<u64>,
    landing: bool,
    packing: bool,
    untagged: Option<&str>,
    assume_untagged: Option<&str>,
) -> PyResult<Report> {
    let py = local.py();
    let policy = policy(untagged, assume_untagged).raised(py)?;
    let options = Options {
        direction: direction.parse().raised(py)?,
        strategy: strategy.map(str::parse).transpose().raised(py)?,
        max_runs_per_page: max_runs_per_page.unwrap_or(core::MAX_RUNS_PER_PAGE),
        landing,
        packing,
    };
    if let (Ok(local), Ok(remote)) = (local.cast::<Engine>(), remote.cast::<Engine>()) {
        let (local, remote) = (local.get(), remote.get());
        return Ok(Report(py.detach(|| core::check_engines(&local.0, &remote.0, &options))));
    }
    let wrong = |what: &Bound<'_, PyAny>| -> PyErr {
        let name = what.get_type().name().unwrap_or_else(|_| PyString::new(py, "?"));
        PyTypeError::new_err(format!(
            "check takes two RankLayout, two Engine, or a RankLayout and a StockHandshake, not {name}"
        ))
    };
    let Ok(ours) = local.cast::<RankLayout>() else { return Err(wrong(local)) };
    let ours = ours.get();
    if let Ok(peer) = remote.cast::<StockHandshake>() {
        let peer = peer.get();
        let checked = py.detach(|| core::untagged::check_untagged(&ours.0, &peer.0, policy, &options));
        return Ok(Report(checked));
    }
    let Ok(theirs) = remote.cast::<RankLayout>() else { return Err(wrong(remote)) };
    let theirs = theirs.get();
    Ok(Report(py.detach(|| core::check(&ours.0, &theirs.0, &options))))
}
