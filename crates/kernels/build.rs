//! Compiles the CUDA kernels: ahead of time for GPUs (feature `cuda`), and for the host, to test them (`cuda-emulation`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cuda");
    #[cfg(feature = "cuda-emulation")]
    emulation();
    #[cfg(feature = "cuda")]
    cuda();
}

#[cfg(feature = "cuda-emulation")]
fn emulation() {
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .warnings(false)
        // As on the GPU, multiplications and additions are fused only where the source says so.
        .flag("-ffp-contract=off")
        .file("cuda/emulation.cpp")
        .compile("tokenrouter_emulation");
}

/// Compute capabilities with machine code. Later ones use the PTX of the last.
#[cfg(feature = "cuda")]
const ARCHITECTURES: [&str; 2] = ["80", "90"];

#[cfg(feature = "cuda")]
fn cuda() {
    use std::path::PathBuf;
    use std::process::Command;

    for variable in ["NVCC", "CUDA_HOME", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let in_home = |home: PathBuf| home.join("bin/nvcc");
    // The folder that `just cuda-toolkit` uses.
    let fetched = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda/nvidia/cu13");
    let fetched = in_home(fetched);
    let nvcc = variable("NVCC")
        .or_else(|| variable("CUDA_HOME").map(in_home))
        .unwrap_or_else(|| if fetched.exists() { fetched } else { "nvcc".into() });
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("kernels.fatbin");
    let mut command = Command::new(&nvcc);
    command.args(["-fatbin", "-std=c++17", "-O3", "-fmad=false", "-o"]).arg(&out).arg("cuda/kernels.cu");
    for architecture in ARCHITECTURES {
        command.arg(format!("-gencode=arch=compute_{architecture},code=sm_{architecture}"));
    }
    let last = ARCHITECTURES[ARCHITECTURES.len() - 1];
    command.arg(format!("-gencode=arch=compute_{last},code=compute_{last}"));
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{}: {status} for `cuda/kernels.cu`", nvcc.display()),
        Err(error) => panic!(
            "feature `cuda` needs nvcc: {}: {error}. Fetch it with `just cuda-toolkit`, or set CUDA_HOME or NVCC",
            nvcc.display()
        ),
    }
}
