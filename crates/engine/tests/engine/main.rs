//! Integration tests of the engine, by concern.

mod adaptation;
mod config;
mod demo;
mod demo_engine;
mod formats;
mod gguf;
mod heads;
mod loading;
mod models;
mod students;
mod systems;
mod virtual_time;
