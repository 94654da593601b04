//! Two engines in one process, each with one model, over real sockets.

mod faults;
mod pair;
mod proxy;
mod refusals;
mod same;
