//! Integration tests of the engine, by concern.

mod adaptation;
mod config;
mod demo;
mod demo_engine;
mod heads;
mod models;
mod systems;
