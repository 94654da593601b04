//! Integration tests of the engine, by concern.

mod schedules;
