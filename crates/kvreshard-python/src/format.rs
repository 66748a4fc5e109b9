//! `PageFormat`.

use std::collections::BTreeMap;

use kvreshard::format::{self as core, ElementType, Types};
use numpy::ndarray::ArrayD;
use numpy::{IntoPyArray, PyArrayDyn};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::NewArguments;
use crate::errors::Raise;
use crate::picture::Piece;

/// Which byte of a page is which element: a nest of loops, its extents and element types.
#[pyclass(module = "kvreshard", frozen, eq, hash, from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PageFormat(pub(crate) core::PageFormat);

impl PageFormat {
    fn known(&self, component: &str) -> kvreshard::Result<&core::Component> {
        self.0.component(component).ok_or_else(|| kvreshard::Error::Format {
            subject: component.to_owned(),
            problem: format!("no such component; there are {}", self.components().join(", ")),
            at: None,
        })
    }
}

#[pymethods]
impl PageFormat {
    #[new]
    #[pyo3(signature = (notation, /, *, extents=None, types=None, dtype=None, **axes))]
    fn new(
        py: Python<'_>,
        notation: &str,
        extents: Option<BTreeMap<String, u64>>,
        types: Option<BTreeMap<String, Bound<'_, PyAny>>>,
        dtype: Option<&Bound<'_, PyAny>>,
        axes: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let extents = merged(extents.unwrap_or_default(), axes)?;
        let default = dtype.map(|dtype| element_type(dtype)).transpose()?;
        let each = types.unwrap_or_default().into_iter().map(|(name, dtype)| Ok((name, element_type(&dtype)?)));
        let types = Types::new(default, each.collect::<PyResult<_>>()?);
        core::PageFormat::new(notation, &extents, &types).map(Self).raised(py)
    }

    #[getter]
    fn notation(&self) -> &str {
        self.0.notation()
    }

    #[getter]
    fn canonical(&self) -> &str {
        self.0.canonical()
    }

    #[getter]
    fn extents(&self) -> BTreeMap<&str, u64> {
        self.0.extents().iter().map(|(axis, extent)| (axis.as_str(), *extent)).collect()
    }

    #[getter]
    fn types(&self) -> BTreeMap<&str, &'static str> {
        self.0.components().iter().map(|component| (component.name().as_str(), component.dtype().name())).collect()
    }

    #[getter]
    fn components(&self) -> Vec<&str> {
        self.0.components().iter().map(|component| component.name().as_str()).collect()
    }

    #[getter]
    fn page_bytes(&self) -> u64 {
        self.0.page_bytes()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.0.fingerprint().to_string()
    }

    #[pyo3(signature = (component, /, **index))]
    fn offset(&self, py: Python<'_>, component: &str, index: Option<&Bound<'_, PyDict>>) -> PyResult<u64> {
        let index = merged(BTreeMap::new(), index)?;
        let index: Vec<_> = index.iter().map(|(axis, at)| (axis.as_str(), *at)).collect();
        self.0.offset(component, &index).raised(py)
    }

    #[pyo3(signature = (component, /))]
    fn axes(&self, py: Python<'_>, component: &str) -> PyResult<Vec<(String, u64)>> {
        let component = self.known(component).raised(py)?;
        let axes = component.axes().map(|(axis, _)| (axis.to_string(), component.extent(axis.as_str()).unwrap_or(1)));
        Ok(axes.collect())
    }

    #[pyo3(signature = (component, /))]
    fn offsets<'py>(&self, py: Python<'py>, component: &str) -> PyResult<Bound<'py, PyArrayDyn<i64>>> {
        let component = self.known(component).raised(py)?;
        let offsets = py.detach(|| component.offsets()).raised(py)?;
        let shape: Vec<usize> = self
            .axes(py, component.name().as_str())?
            .into_iter()
            .map(|(_, e)| e.try_into())
            .collect::<Result<_, _>>()?;
        let array = ArrayD::from_shape_vec(shape, offsets);
        Ok(array.map_err(|error| PyValueError::new_err(error.to_string()))?.into_pyarray(py))
    }

    #[pyo3(signature = (other, /))]
    fn difference(&self, other: &Self) -> Vec<String> {
        self.0.difference(&other.0).iter().map(ToString::to_string).collect()
    }

    #[pyo3(signature = (other, /))]
    fn same_bytes_as(&self, other: &Self) -> bool {
        self.0.same_bytes_as(&other.0)
    }

    #[pyo3(signature = (**axes))]
    fn with_extents(&self, py: Python<'_>, axes: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        self.0.with_extents(&merged(BTreeMap::new(), axes)?).map(Self).raised(py)
    }

    fn pieces(&self, py: Python<'_>) -> PyResult<Vec<Piece>> {
        let pieces = py.detach(|| self.0.pieces()).raised(py)?;
        Ok(pieces.into_iter().map(Piece).collect())
    }

    fn to_svg<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kvreshard.pictures")?.call_method1("format_svg", (slf,))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kvreshard.pictures")?.call_method1("format_html", (slf,))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    pub(crate) fn __repr__(&self) -> String {
        format!("PageFormat({:?}, extents={:?}, types={:?})", self.notation(), self.extents(), self.types())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> NewArguments<'py, (&str,)> {
        let keywords = PyDict::new(py);
        keywords.set_item("extents", self.extents())?;
        keywords.set_item("types", self.types())?;
        Ok(((self.notation(),), keywords))
    }
}

/// A mapping and keywords as one mapping, each key once.
fn merged(mut given: BTreeMap<String, u64>, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<BTreeMap<String, u64>> {
    for (axis, extent) in keywords.into_iter().flatten() {
        let axis: String = axis.extract()?;
        if given.insert(axis.clone(), extent.extract()?).is_some() {
            return Err(PyTypeError::new_err(format!("axis {axis:?} is given twice: in extents and as a keyword")));
        }
    }
    Ok(given)
}

fn element_type(dtype: &Bound<'_, PyAny>) -> PyResult<ElementType> {
    type_name(dtype)?.parse().raised(dtype.py())
}

/// The name of an element type, of a dtype of torch or numpy, or of a class such as `numpy.float16`.
fn type_name(dtype: &Bound<'_, PyAny>) -> PyResult<String> {
    match dtype.cast::<PyType>() {
        Ok(class) => class.name()?.extract(),
        Err(_) => dtype.str()?.extract(),
    }
}

/// A page format that an engine is known to use, by name.
#[pyfunction]
#[pyo3(signature = (name, /, **parameters))]
pub(crate) fn preset(py: Python<'_>, name: &str, parameters: Option<&Bound<'_, PyDict>>) -> PyResult<PageFormat> {
    let parameters = parameters.into_iter().flatten().map(|(parameter, value)| {
        let value = match value.extract::<u64>() {
            Ok(number) => core::Value::Number(number),
            Err(_) => core::Value::Text(type_name(&value)?),
        };
        Ok((parameter.extract()?, value))
    });
    core::preset(name, &parameters.collect::<PyResult<_>>()?).map(PageFormat).raised(py)
}

/// The names that `preset` knows.
#[pyfunction]
pub(crate) fn presets() -> Vec<&'static str> {
    core::presets().iter().map(|preset| preset.name).collect()
}

/// What is known of a preset.
#[pyclass(module = "kvreshard", frozen)]
pub(crate) struct PresetInfo(core::Preset);

#[pymethods]
impl PresetInfo {
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    #[getter]
    fn summary(&self) -> &'static str {
        self.0.summary
    }

    #[getter]
    fn found_in(&self) -> &'static str {
        self.0.found_in
    }

    #[getter]
    fn parameters(&self) -> Vec<(&'static str, &'static str, Option<String>)> {
        self.0.parameters.iter().map(|one| (one.name, one.meaning, one.default())).collect()
    }

    fn __repr__(&self) -> String {
        format!("PresetInfo({:?})", self.0.name)
    }
}

/// What is known of the preset `name`.
#[pyfunction]
#[pyo3(signature = (name, /))]
pub(crate) fn preset_info(py: Python<'_>, name: &str) -> PyResult<PresetInfo> {
    core::find_preset(name).copied().map(PresetInfo).raised(py)
}
