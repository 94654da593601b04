#![no_main]
include!("../target.rs");
fuzz!("chat_template");
