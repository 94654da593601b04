//! The HTTP server from outside: over sockets, on free ports.

mod client;
mod demo;
mod limits;
mod metrics;
mod openapi;
mod running;
mod security;
mod shutdown;
mod states;
