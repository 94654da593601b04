#!/usr/bin/env bash
# Installs the CUDA compiler with pip into target/cuda, where `crates/kernels/build.rs` looks for it. Needs no driver and no GPU.
# CUDA 13.0, because drivers for 13.0 refuse the PTX of later compilers.
set -euo pipefail
cd "$(dirname "$0")/.."
root=target/cuda
if [ ! -x "$root/nvidia/cu13/bin/nvcc" ]; then
    python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all: --target "$root" \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
fi
"$root/nvidia/cu13/bin/nvcc" --version
