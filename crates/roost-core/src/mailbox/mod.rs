//! Where messages wait for their actor, and where answers wait for their caller.

mod bell;
mod call;
mod queue;

pub use bell::{Bell, Due};
pub use call::{Answer, Call, Mode};
pub use queue::{Closed, Mailbox, Request};

pub(crate) use call::Graces;
pub(crate) use queue::request_of;
