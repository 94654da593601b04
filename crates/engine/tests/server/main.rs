//! The HTTP server from outside: over sockets, on free ports.

mod client;
mod demo;
mod extras;
mod limits;
mod lost;
mod metrics;
mod openapi;
mod running;
mod security;
mod shutdown;
mod states;
mod text;
