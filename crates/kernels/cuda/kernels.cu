// All kernels of the CUDA backend in one translation unit: `build.rs` compiles it ahead of time.
#include "elementwise.cu"
#include "gemm.cu"
#include "attention.cu"
#include "signals.cu"
#include "heads.cu"
