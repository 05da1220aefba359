//! The extension module `roost._core`.

use pyo3::prelude::*;

mod mailbox;
mod node;
mod parts;
mod shape;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    shape::register(module)?;
    module.add_class::<node::Node>()?;
    module.add_class::<mailbox::Mailbox>()?;
    module.add_class::<mailbox::Request>()?;
    module.add_class::<mailbox::Target>()?;
    module.add_class::<mailbox::Call>()?;
    module.add_class::<mailbox::Bell>()?;
    module.add_class::<parts::Buffer>()?;
    module.add("READY", mailbox::READY)?;
    module.add("TIMED_OUT", mailbox::TIMED_OUT)?;
    module.add("URGENT", mailbox::URGENT)?;
    Ok(())
}
