//! The exceptions, and how an error of the core becomes one.

use kvreshard::Error as CoreError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;

create_exception!(kvreshard, Error, PyException, "Base of every error that kvreshard raises.");
create_exception!(kvreshard, FormatError, Error, "A page format does not parse, or does not add up.");
create_exception!(kvreshard, LayoutError, Error, "A rank's own description contradicts itself.");
create_exception!(kvreshard, IncompatibleLayout, Error, "Two sides do not fit: copied bytes would not mean the same.");
create_exception!(kvreshard, MissingLayer, Error, "A layer is wanted that no rank of the other side holds.");
create_exception!(
    kvreshard,
    RequestError,
    Error,
    "A request names blocks or tokens that do not exist or do not suffice."
);
create_exception!(kvreshard, WireError, Error, "A peer's message does not decode.");
create_exception!(kvreshard, LimitExceeded, Error, "A bound on size or count was passed.");
create_exception!(kvreshard, ArithmeticOverflow, Error, "An address, a product or a sum does not fit 64 bits.");
create_exception!(kvreshard, VerificationError, Error, "A plan does not do exactly what is needed.");

/// The attributes of every exception; `None` where one does not apply.
const ATTRIBUTES: [&str; 11] =
    ["layer", "field", "local", "remote", "found", "expected", "remedy", "at", "side", "limit", "group"];

/// Adds the exceptions to the module, every attribute defined on the base.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = py.get_type::<Error>();
    for attribute in ATTRIBUTES {
        base.setattr(attribute, py.None())?;
    }
    for exception in [
        base,
        py.get_type::<FormatError>(),
        py.get_type::<LayoutError>(),
        py.get_type::<IncompatibleLayout>(),
        py.get_type::<MissingLayer>(),
        py.get_type::<RequestError>(),
        py.get_type::<WireError>(),
        py.get_type::<LimitExceeded>(),
        py.get_type::<ArithmeticOverflow>(),
        py.get_type::<VerificationError>(),
    ] {
        module.add(exception.name()?, &exception)?;
    }
    Ok(())
}

/// `?` on a result of the core, inside a function that returns [`PyResult`].
pub(crate) trait Raise<T> {
    /// The value, or the exception of the same meaning.
    fn raised(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> Raise<T> for kvreshard::Result<T> {
    fn raised(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, error).unwrap_or_else(|failed| failed))
    }
}

/// A request that is refused before the core sees it.
pub(crate) fn bad_request(py: Python<'_>, field: &str, found: impl ToString, expected: String) -> PyErr {
    let found = found.to_string();
    let text = format!("request: {field} {found}: {expected}");
    let attributes = [("field", field.to_owned()), ("found", found), ("expected", expected)];
    let attributes = attributes.map(|(name, text)| (name, Some(Value::Text(text)))).into();
    raise(py.get_type::<RequestError>(), text, attributes).unwrap_or_else(|failed| failed)
}

/// What an attribute holds.
#[derive(IntoPyObject)]
enum Value {
    Text(String),
    Number(u64),
    Index(usize),
}

type Attributes = Vec<(&'static str, Option<Value>)>;

/// The exception of the same meaning as `error`.
pub(crate) fn exception(py: Python<'_>, error: CoreError) -> PyResult<PyErr> {
    let text = error.to_string();
    let (class, attributes) = parts(py, error);
    raise(class, text, attributes)
}

fn raise(class: Bound<'_, PyType>, text: String, attributes: Attributes) -> PyResult<PyErr> {
    let value = class.call1((text,))?;
    for (name, attribute) in attributes {
        value.setattr(name, attribute)?;
    }
    Ok(PyErr::from_value(value))
}

fn parts(py: Python<'_>, error: CoreError) -> (Bound<'_, PyType>, Attributes) {
    let text = |text: String| Some(Value::Text(text));
    let maybe = |text: Option<String>| text.map(Value::Text);
    match error {
        CoreError::Syntax { at, expected, found } => (
            py.get_type::<FormatError>(),
            vec![("at", Some(Value::Index(at))), ("expected", text(expected)), ("found", text(found))],
        ),
        CoreError::Format { subject, problem, at } => (
            py.get_type::<FormatError>(),
            vec![("field", text(subject)), ("found", text(problem)), ("at", at.map(Value::Index))],
        ),
        CoreError::Overflow { term } => (py.get_type::<ArithmeticOverflow>(), vec![("field", text(term))]),
        CoreError::Limit { what, found, limit } => (
            py.get_type::<LimitExceeded>(),
            vec![("field", text(what)), ("found", Some(Value::Number(found))), ("limit", Some(Value::Number(limit)))],
        ),
        CoreError::Layout { layer, field, found, expected } => (
            py.get_type::<LayoutError>(),
            vec![("layer", maybe(layer)), ("field", text(field)), ("found", text(found)), ("expected", text(expected))],
        ),
        CoreError::Incompatible { layer, field, local, remote, remedy } => (
            py.get_type::<IncompatibleLayout>(),
            vec![
                ("layer", maybe(layer)),
                ("field", text(field)),
                ("local", text(local)),
                ("remote", text(remote)),
                ("remedy", maybe(remedy)),
            ],
        ),
        CoreError::Untagged { layer, local, problem, remedy } => (
            py.get_type::<IncompatibleLayout>(),
            vec![
                ("layer", maybe(layer)),
                ("field", text("page format".to_owned())),
                ("local", text(local)),
                ("remote", text("unknown".to_owned())),
                ("found", text(problem)),
                ("remedy", text(remedy)),
            ],
        ),
        CoreError::Missing { layer, side, missing } => (
            py.get_type::<MissingLayer>(),
            vec![("layer", text(layer)), ("side", text(side.to_string())), ("field", text(missing))],
        ),
        CoreError::Request { side, group, field, found, expected } => (
            py.get_type::<RequestError>(),
            vec![
                ("side", text(side.to_string())),
                ("group", group.map(Value::Index)),
                ("field", text(field)),
                ("found", text(found)),
                ("expected", text(expected)),
            ],
        ),
        CoreError::Wire { at, problem } => {
            (py.get_type::<WireError>(), vec![("field", text(at)), ("found", text(problem))])
        }
        CoreError::Version { found, supported } => (
            py.get_type::<WireError>(),
            vec![
                ("field", text("version".to_owned())),
                ("found", Some(Value::Number(found))),
                ("limit", Some(Value::Number(supported))),
            ],
        ),
        CoreError::Unproven { layer, problem, side, address } => (
            py.get_type::<VerificationError>(),
            vec![
                ("layer", maybe(layer)),
                ("found", text(problem)),
                ("side", text(side.to_string())),
                ("at", Some(Value::Number(address))),
            ],
        ),
        CoreError::Ring { subject, found, expected } => (
            py.get_type::<Error>(),
            vec![("field", text(subject)), ("found", text(found)), ("expected", text(expected))],
        ),
        // A variant of a newer core: its text still says what is wrong.
        _ => (py.get_type::<Error>(), Vec::new()),
    }
}
