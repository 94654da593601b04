//! `tokenrouter._native`: what the Python package `tokenrouter` is made of. Its users see the classes in `python/`.
//!
//! Values with structure cross the border as JSON, which both sides have types for; arrays of every step do not.

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
