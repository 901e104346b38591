//! Options by name from Python's values. The engine defines which settings exist and which values are valid.

use std::time::Duration;

use bucketq::settings::{SETTINGS, Setting, SettingKind, Value};
use bucketq::{Code, Error, Options, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::OrRaise;

fn known(name: &str) -> Result<&'static Setting> {
    Setting::named(name).ok_or_else(|| Error::new(Code::Option, format!("there is no setting {name:?}")))
}

/// Converts a value; durations are milliseconds.
fn value(setting: &Setting, value: &Bound<'_, PyAny>) -> Result<Value> {
    let value = match setting.kind {
        SettingKind::Switch => value.extract().map(Value::Switch),
        SettingKind::Count => value.extract().map(Value::Count),
        SettingKind::Span => value.extract().map(|ms| Value::Span(Duration::from_millis(ms))),
        // Words stay words.
        SettingKind::SpanOr(_) => value
            .extract()
            .map(Value::Text)
            .or_else(|_| value.extract().map(|ms| Value::Span(Duration::from_millis(ms)))),
        SettingKind::Text | SettingKind::Secret | SettingKind::OneOf(_) => value.extract().map(Value::Text),
    };
    // Python's own error could show the value.
    value.map_err(|_| setting.refused())
}

/// Returns the options with these settings; durations are milliseconds.
pub fn options(settings: &Bound<'_, PyDict>) -> PyResult<Result<Options>> {
    let mut options = Options::default();
    for (name, given) in settings {
        let name: String = name.extract()?;
        let set = known(&name).and_then(|setting| setting.set(&mut options, value(setting, &given)?));
        if let Err(error) = set {
            return Ok(Err(error));
        }
    }
    Ok(Ok(options))
}

fn show(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyAny>> {
    Ok(match value {
        Value::Switch(on) => on.into_pyobject(py)?.to_owned().into_any(),
        Value::Count(count) => count.into_pyobject(py)?.into_any(),
        Value::Span(span) => span.as_secs_f64().into_pyobject(py)?.into_any(),
        Value::Text(text) => text.into_pyobject(py)?.into_any(),
    })
}

/// Name, kind, default or None, meaning.
type Row<'py> = (&'static str, String, Option<Bound<'py, PyAny>>, &'static str);

/// Returns every setting. Durations are seconds.
#[pyfunction]
pub fn settings(py: Python<'_>) -> PyResult<Vec<Row<'_>>> {
    let row = |setting: &'static Setting| {
        let kind = match setting.kind {
            SettingKind::Switch => "switch".to_owned(),
            SettingKind::Count => "count".to_owned(),
            SettingKind::Span => "seconds".to_owned(),
            SettingKind::SpanOr(words) => format!("seconds {}", words.join(" ")),
            SettingKind::Text => "text".to_owned(),
            SettingKind::Secret => "secret".to_owned(),
            SettingKind::OneOf(words) => words.join(" "),
        };
        let default = setting.default().map(|value| show(py, value)).transpose()?;
        Ok((setting.name, kind, default, setting.says))
    };
    SETTINGS.iter().map(row).collect()
}

/// Parses a value from text, as in the environment. Durations are seconds.
#[pyfunction]
pub fn parse_setting<'py>(py: Python<'py>, name: &str, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let value = known(name).and_then(|setting| setting.parse(text)).or_raise(py)?;
    show(py, value)
}
