// Embeddings, norms, rotary positions, gates: everything that touches each element once.
#include "common.cuh"

// One weight of a matrix that is read element by element.
template <class T> struct Plain {
    static __device__ float at(const void *weights, const void *, size_t row, int k, int width) {
        return to_float(((const T *)weights)[row * width + k]);
    }
};
// 8 bits: `int8[row][width]`, and a scale per 32.
struct Q8 {
    static __device__ float at(const void *weights, const void *scales, size_t row, int k, int width) {
        float scale = to_float(((const f16 *)scales)[row * (width / 32) + k / 32]);
        return scale * ((const signed char *)weights)[row * width + k];
    }
};
// 4 bits: two to a byte, the first one low; a scale and an offset per 32.
struct Q4 {
    static __device__ float at(const void *weights, const void *scales, size_t row, int k, int width) {
        const f16 *pair = (const f16 *)scales + 2 * (row * (width / 32) + k / 32);
        int byte = ((const unsigned char *)weights)[(row * width + k) / 2];
        return fmaf(to_float(pair[0]), k % 2 ? byte >> 4 : byte & 15, to_float(pair[1]));
    }
};

// x[token] = table[tokens[token]], rows of `width`; tokens are `step` apart, rows of `x` `stride`.
template <class W>
__device__ void embed(const int *tokens, int step, const void *table, const void *scales, float *x, int width, int stride) {
    size_t token = blockIdx.x;
    for (int k = threadIdx.x; k < width; k += blockDim.x)
        x[token * stride + k] = W::at(table, scales, tokens[token * step], k, width);
}
#define EMBED(name, W)                                                                                              \
    extern "C" __global__ void name(const int *tokens, int step, const void *table, const void *scales, float *x,   \
                                    int width, int stride) {                                                        \
        embed<W>(tokens, step, table, scales, x, width, stride);                                                    \
    }
EMBED(embed_f32, Plain<float>)
EMBED(embed_f16, Plain<f16>)
EMBED(embed_bf16, Plain<bf16>)
EMBED(embed_q8, Q8)
EMBED(embed_q4, Q4)

// Adds `delta` (unless null) to the residual stream and writes the norm of the sum times `weight` to `out` of `type` and,
// unless null, to `plain`. Row i of the outputs is row `rows[i]` of the stream, or i where `rows` is null.
extern "C" __global__ void rms_norm(float *x, const float *delta, const int *rows, const float *weight, float eps,
                                    void *out, int type, float *plain, int width) {
    size_t to = blockIdx.x, from = rows ? rows[to] : to;
    float squares = 0;
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float value = x[from * width + k];
        if (delta) x[from * width + k] = value = value + delta[from * width + k];
        squares = fmaf(value, value, squares);
    }
    float scale = 1.0f / sqrtf(block_reduce(squares, Add()) / width + eps);
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float value = x[from * width + k] * scale * weight[k];
        store(out, to * width + k, value, type);
        if (plain) plain[to * width + k] = value;
    }
}

// x += delta + bias; either may be null.
extern "C" __global__ void add(float *x, const float *delta, const float *bias, int width) {
    size_t row = blockIdx.x;
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float value = x[row * width + k];
        if (delta) value += delta[row * width + k];
        x[row * width + k] = bias ? value + bias[k] : value;
    }
}

// out[row][k] = silu(gates[row][k]) * gates[row][width + k]
extern "C" __global__ void silu_mul(const float *gates, void *out, int type, int width) {
    size_t row = blockIdx.x;
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float gate = gates[row * 2 * width + k], up = gates[row * 2 * width + width + k];
        store(out, row * width + k, gate / (1.0f + expf(-gate)) * up, type);
    }
}

// Biases, norms of heads, rotation, and the append to the KV cache, for one head of one token a block. A row of `qkv` is
// all query heads, then key heads, then value heads; queries are written back to it. `positions` below 0 are padding.
// Caches are `[slot][kv_heads][dim]`. `biases` and the norms' weights may be null.
extern "C" __global__ void rope_append(float *qkv, const float *biases, const float *q_norm, const float *k_norm, float eps,
                                       const int *positions, const int *slots, const float *cosines, const float *sines,
                                       void *keys, void *values, int type, int heads, int kv_heads, int dim, int interleaved) {
    size_t token = blockIdx.x;
    int head = blockIdx.y, half = dim / 2, pair = threadIdx.x;
    int position = positions[token];
    if (position < 0) return;
    bool active = pair < half;
    float *vector = qkv + (token * (heads + 2 * kv_heads) + head) * dim;
    bool is_value = head >= heads + kv_heads;
    int first = interleaved && !is_value ? 2 * pair : pair, second = interleaved && !is_value ? 2 * pair + 1 : pair + half;
    float a = active ? vector[first] : 0, b = active ? vector[second] : 0;
    if (biases && active) a += biases[head * dim + first], b += biases[head * dim + second];
    if (is_value) {
        size_t at = ((size_t)slots[token] * kv_heads + head - heads - kv_heads) * dim;
        if (active) store(values, at + first, a, type), store(values, at + second, b, type);
        return;
    }
    const float *norm = head < heads ? q_norm : k_norm;
    if (norm) {
        float scale = 1.0f / sqrtf(block_reduce(fmaf(a, a, b * b), Add()) / dim + eps);
        if (active) a *= scale * norm[first], b *= scale * norm[second];
    }
    if (!active) return;
    float c = cosines[(size_t)position * half + pair], s = sines[(size_t)position * half + pair];
    float x = a * c - b * s, y = a * s + b * c;
    if (head < heads) {
        vector[first] = x, vector[second] = y;
    } else {
        size_t at = ((size_t)slots[token] * kv_heads + head - heads) * dim;
        store(keys, at + first, x, type), store(keys, at + second, y, type);
    }
}

// Copies whole blocks of the caches of all layers: `pairs[2 * i]` to `pairs[2 * i + 1]`. Sizes in 16-byte units: a cache of
// `cache` units after another, `block` units a block.
extern "C" __global__ void copy_blocks(uint4 *caches, const int *pairs, size_t cache, int block) {
    const uint4 *from = caches + blockIdx.y * cache + (size_t)pairs[2 * blockIdx.x] * block;
    uint4 *to = caches + blockIdx.y * cache + (size_t)pairs[2 * blockIdx.x + 1] * block;
    for (int i = threadIdx.x; i < block; i += blockDim.x) to[i] = from[i];
}

// Numbers between -scale and scale that look random: weights of a model that nobody has to download.
extern "C" __global__ void fill(void *out, int type, size_t count, unsigned seed, float scale) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        // The finaliser of MurmurHash3.
        unsigned x = (unsigned)i * 0x9e3779b9u + seed;
        x = (x ^ x >> 16) * 0x85ebca6bu, x = (x ^ x >> 13) * 0xc2b2ae35u, x ^= x >> 16;
        store(out, i, ((float)(x >> 8) / 8388608.0f - 1.0f) * scale, type);
    }
}
