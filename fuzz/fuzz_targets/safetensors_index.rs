#![no_main]
include!("../target.rs");
fuzz!("safetensors_index");
