// What all targets have in common.

#[allow(dead_code)]
#[path = "bodies.rs"]
mod bodies;

macro_rules! fuzz {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            let body = bodies::TARGETS.iter().find(|(name, _)| *name == $name).expect("a target of this name").1;
            let dir = tempfile::tempdir().expect("a temporary folder");
            body(dir.path(), data);
        });
    };
}
