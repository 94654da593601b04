//! Integration tests of the engine, by concern.

mod demo;
mod models;
mod schedules;
mod tiny;
