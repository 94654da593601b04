#![no_main]
include!("../target.rs");
fuzz!("tokenizer_config");
