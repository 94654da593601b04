// Products of activations and weights: out[row][n] = sum over k of a[row][k] * w[n][k], sums in f32.
#include "common.cuh"

// --- 16-bit weights on tensor cores -----------------------------------------------------------------------------------

constexpr int TILE = 16;
constexpr int GEMM_WARPS = 8;

// A block computes 16 columns of 16 * TILES rows. Its warps take every eighth step of 16 along k, and their sums are added
// in order: neither depends on the number of rows. `a` has rows up to the next multiple of 16 * TILES; what is in those
// beyond `rows` is read and has no effect.
template <class T, int TILES>
__device__ void gemm_tensor(const T *a, const T *w, float *out, int rows, int k, int stride) {
    // What a tensor core stores to begins at a multiple of 32 bytes.
    struct alignas(32) Sums { float of[TILES * TILE * TILE]; };
    __shared__ Sums part[GEMM_WARPS];
    int warp = threadIdx.x / WARP;
    size_t column = blockIdx.x * TILE, row = blockIdx.y * (size_t)(TILE * TILES);
#ifdef TOKENROUTER_EMULATION
    Accumulator sums[TILES];
    for (int step = warp * TILE; step < k; step += GEMM_WARPS * TILE)
        for (int tile = 0; tile < TILES; tile++)
            sums[tile].multiply(a + (row + tile * TILE) * k + step, w + column * k + step, k);
    for (int tile = 0; tile < TILES; tile++) sums[tile].store(part[warp].of + tile * TILE * TILE);
#else
    namespace wmma = nvcuda::wmma;
    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> sums[TILES];
    for (int tile = 0; tile < TILES; tile++) wmma::fill_fragment(sums[tile], 0.0f);
#pragma unroll 4
    for (int step = warp * TILE; step < k; step += GEMM_WARPS * TILE) {
        wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, T, wmma::col_major> weights;
        wmma::load_matrix_sync(weights, w + column * k + step, k);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, T, wmma::row_major> inputs;
            wmma::load_matrix_sync(inputs, a + (row + tile * TILE) * k + step, k);
            wmma::mma_sync(sums[tile], inputs, weights, sums[tile]);
        }
    }
    for (int tile = 0; tile < TILES; tile++)
        wmma::store_matrix_sync(part[warp].of + tile * TILE * TILE, sums[tile], TILE, wmma::mem_row_major);
#endif
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * TILE * TILE; i += blockDim.x) {
        float sum = part[0].of[i];
        for (int other = 1; other < GEMM_WARPS; other++) sum += part[other].of[i];
        if (row + i / TILE < rows) out[(row + i / TILE) * stride + column + i % TILE] = sum;
    }
}
#define GEMM_TENSOR(name, T, TILES)                                                                            \
    extern "C" __global__ void __launch_bounds__(GEMM_WARPS *WARP)                                             \
        name(const T *a, const T *w, float *out, int rows, int k, int stride) {                                \
        gemm_tensor<T, TILES>(a, w, out, rows, k, stride);                                                     \
    }
GEMM_TENSOR(gemm_tensor_f16_1, f16, 1)
GEMM_TENSOR(gemm_tensor_f16_2, f16, 2)
GEMM_TENSOR(gemm_tensor_f16_4, f16, 4)
GEMM_TENSOR(gemm_tensor_bf16_1, bf16, 1)
GEMM_TENSOR(gemm_tensor_bf16_2, bf16, 2)
GEMM_TENSOR(gemm_tensor_bf16_4, bf16, 4)

// --- all other weights, f32 activations ---------------------------------------------------------------------------------

// Eight weights of a row from k on, a multiple of 8.
template <class T> struct PlainRow {
    static __device__ void load(const void *weights, const void *, size_t row, int k, int width, float *to) {
        load8((const T *)weights + row * width + k, to);
    }
};
struct Q8Row {
    static __device__ void load(const void *weights, const void *scales, size_t row, int k, int width, float *to) {
        union { uint2 raw; signed char value[8]; } pack;
        pack.raw = *(const uint2 *)((const signed char *)weights + row * width + k);
        float scale = to_float(((const f16 *)scales)[row * (width / 32) + k / 32]);
        for (int i = 0; i < 8; i++) to[i] = scale * pack.value[i];
    }
};
struct Q4Row {
    static __device__ void load(const void *weights, const void *scales, size_t row, int k, int width, float *to) {
        unsigned bits = *(const unsigned *)((const unsigned char *)weights + (row * width + k) / 2);
        const f16 *pair = (const f16 *)scales + 2 * (row * (width / 32) + k / 32);
        float scale = to_float(pair[0]), offset = to_float(pair[1]);
        for (int i = 0; i < 8; i++) to[i] = fmaf(scale, (bits >> 4 * i) & 15, offset);
    }
};

constexpr int ROWS = 8, COLUMNS = 4, SIMT_WARPS = 4;

// A warp computes 4 columns of 8 rows; its lanes share k.
template <class W>
__device__ void gemm_simt(const float *a, const void *w, const void *scales, float *out, int rows, int n, int k, int stride) {
    int lane = threadIdx.x % WARP;
    int column = (blockIdx.x * SIMT_WARPS + threadIdx.x / WARP) * COLUMNS;
    size_t row = blockIdx.y * ROWS;
    float sums[ROWS][COLUMNS] = {};
    for (int step = lane * 8; step < k; step += WARP * 8) {
        float weights[COLUMNS][8] = {};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (column + c < n) W::load(w, scales, column + c, step, k, weights[c]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r >= rows) continue;
            float inputs[8];
            load8(a + (row + r) * k + step, inputs);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                for (int i = 0; i < 8; i++) sums[r][c] = fmaf(inputs[i], weights[c][i], sums[r][c]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float sum = warp_reduce(sums[r][c], Add());
            if (lane == 0 && row + r < rows && column + c < n) out[(row + r) * stride + column + c] = sum;
        }
}
#define GEMM_SIMT(name, W)                                                                                      \
    extern "C" __global__ void __launch_bounds__(SIMT_WARPS *WARP)                                              \
        name(const float *a, const void *w, const void *scales, float *out, int rows, int n, int k, int stride) { \
        gemm_simt<W>(a, w, scales, out, rows, n, k, stride);                                                    \
    }
GEMM_SIMT(gemm_f32, PlainRow<float>)
GEMM_SIMT(gemm_f16, PlainRow<f16>)
GEMM_SIMT(gemm_bf16, PlainRow<bf16>)
GEMM_SIMT(gemm_q8, Q8Row)
GEMM_SIMT(gemm_q4, Q4Row)
