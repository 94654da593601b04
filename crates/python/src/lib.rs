//! `tokenrouter._native`: the extension module of the Python package `tokenrouter`. Users see the classes in `python/`.
//!
//! Structured values cross the boundary as JSON, for which both sides have types. The arrays of every step do not.

mod buffers;
mod engine;
mod errors;
mod model;
mod policy;
mod sampling;
mod stream;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<engine::NativeEngine>()?;
    module.add_class::<stream::NativeStream>()?;
    module.add_function(wrap_pyfunction!(model::optimize, module)?)?;
    module.add_function(wrap_pyfunction!(model::predict, module)?)?;
    module.add_function(wrap_pyfunction!(model::simulate, module)?)?;
    Ok(())
}
