#!/usr/bin/env bash
# The CUDA compiler from pip, without a driver or a GPU: into target/cuda, where `crates/kernels/build.rs` looks for it.
# CUDA 13.0: later compilers write PTX that its drivers refuse.
set -euo pipefail
cd "$(dirname "$0")/.."
root=target/cuda
if [ ! -x "$root/nvidia/cu13/bin/nvcc" ]; then
    python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all: --target "$root" \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
fi
"$root/nvidia/cu13/bin/nvcc" --version
