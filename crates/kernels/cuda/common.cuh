// What all kernels share: types, conversions, reductions.
//
// Sums are taken in an order that depends on shapes alone, never on the number of rows beside a row, and multiplications
// and additions are fused only where `fmaf` says so (`-fmad=false`): a row's result is the same to the last bit in every
// batch, and in every kernel that computes the same thing.
#pragma once

#ifdef TOKENROUTER_EMULATION
#include "emulation.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using f16 = __half;
using bf16 = __nv_bfloat16;
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(f16 x) { return __half2float(x); }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline void from_float(float x, float &out) { out = x; }
__device__ inline void from_float(float x, f16 &out) { out = __float2half_rn(x); }
__device__ inline void from_float(float x, bf16 &out) { out = __float2bfloat16_rn(x); }
#endif

// Types of elements, as the host names them.
enum Type { F32 = 0, F16 = 1, BF16 = 2 };

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;
#define NEG_INFINITY (-__int_as_float(0x7f800000))

// Writes an element whose type is known at run time: for results, which are written once.
__device__ inline void store(void *out, size_t index, float x, int type) {
    if (type == F16) from_float(x, ((f16 *)out)[index]);
    else if (type == BF16) from_float(x, ((bf16 *)out)[index]);
    else ((float *)out)[index] = x;
}

// Eight consecutive elements, the first one 16-byte aligned.
template <class T> __device__ inline void load8(const T *from, float *to) {
    union { uint4 raw; T element[8]; } pack;
    pack.raw = *(const uint4 *)from;
    for (int i = 0; i < 8; i++) to[i] = to_float(pack.element[i]);
}
template <> __device__ inline void load8<float>(const float *from, float *to) {
    float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

struct Add { __device__ float operator()(float a, float b) const { return a + b; } };
struct Max { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };

// All lanes get the result.
template <class Op> __device__ inline float warp_reduce(float x, Op op) {
    for (int step = WARP / 2; step > 0; step /= 2) x = op(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

// All threads of the block get the result; `blockDim.x` is a multiple of 32.
template <class Op> __device__ inline float block_reduce(float x, Op op) {
    __shared__ float part[WARP];
    x = warp_reduce(x, op);
    __syncthreads();
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
    float all = part[0];
    for (int warp = 1; warp < blockDim.x / WARP; warp++) all = op(all, part[warp]);
    return all;
}
