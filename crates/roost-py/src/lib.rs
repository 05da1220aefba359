//! The extension module `roost._core`.

use pyo3::prelude::*;

mod mailbox;
mod node;
mod parts;
mod process;
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
    module.add_function(wrap_pyfunction!(parts::to_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(node::generate_key, module)?)?;
    module.add_function(wrap_pyfunction!(process::detach_process, module)?)?;
    module.add_function(wrap_pyfunction!(process::close_other_fds, module)?)?;
    module.add_function(wrap_pyfunction!(process::set_process_name, module)?)?;
    module.add("READY", mailbox::READY)?;
    module.add("TIMED_OUT", mailbox::TIMED_OUT)?;
    module.add("URGENT", mailbox::URGENT)?;
    Ok(())
}
