//! Integration tests of the engine, by concern.

mod config;
mod demo;
mod models;
mod schedules;
mod tiny;
