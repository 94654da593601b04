#![no_main]
include!("../target.rs");
fuzz!("model_config");
