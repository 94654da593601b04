// Attention of ragged batches over paged keys and values.
//
// A token attends to positions 0 to its own; these are cut into splits of a fixed length, each with an online softmax of
// its own, and splits are merged from the first to the last. `attention_decode` gives a block to every split, so that a few
// rows with long contexts fill the device, and `attention_merge` joins them; `attention_extend` gives a block to every
// token and loops, so that prefills need no memory between the two. Both give the same bits.
#include "common.cuh"

constexpr int SPLIT = 256;
constexpr int ATTENTION_THREADS = 128;
// Query heads of a key/value head that a block handles; more take more blocks.
constexpr int GROUP = 8;
constexpr int MAX_DIM = 128;

// Where a batch's keys and values are, and whose they are.
struct Paged {
    // Of each token; below 0: padding, whose result is 0.
    const int *positions;
    // Of each token: its row of `tables`.
    const int *rows;
    // `[row][table_width]`: block ids.
    const int *tables;
    int table_width, block_size;
};

// The softmax so far: values relative to `max`.
struct Partial {
    float max, sum, value;
    // With a later one.
    __device__ void merge(const Partial &later) {
        float top = fmaxf(max, later.max);
        float mine = expf(max - top), its = expf(later.max - top);
        sum = fmaf(sum, mine, later.sum * its);
        value = fmaf(value, mine, later.value * its);
        max = top;
    }
};

template <class T> struct Attention {
    // Scores and then weights, of one split.
    float scores[GROUP][SPLIT];
    float queries[GROUP][MAX_DIM];
    // Sums of the second half of the threads, where a head is so narrow that two share an element.
    float halves[GROUP][MAX_DIM];
    float max[GROUP], sum[GROUP];
    size_t slots[SPLIT];

    __device__ void load_queries(const float *q, int group, int dim) {
        for (int i = threadIdx.x; i < group * dim; i += blockDim.x) queries[i / dim][i % dim] = q[i];
    }

    // One split of `count` positions from `first` on. Thread d, below `dim`, gets element d of each head.
    __device__ void attend(const Paged &paged, int row, int first, int count, const T *keys, const T *values, int stride,
                           int group, int dim, float scale, Partial *result) {
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += blockDim.x) {
            int position = first + i;
            int block = paged.tables[(size_t)row * paged.table_width + position / paged.block_size];
            slots[i] = (size_t)block * paged.block_size + position % paged.block_size;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += blockDim.x) {
            float dots[GROUP] = {};
            for (int d = 0; d < dim; d += 8) {
                float key[8];
                load8(keys + slots[i] * stride + d, key);
#pragma unroll
                for (int g = 0; g < GROUP; g++)
                    if (g < group)
                        for (int j = 0; j < 8; j++) dots[g] = fmaf(queries[g][d + j], key[j], dots[g]);
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++)
                if (g < group) scores[g][i] = dots[g] * scale;
        }
        __syncthreads();
        for (int g = threadIdx.x / WARP; g < group; g += blockDim.x / WARP) {
            float top = NEG_INFINITY, total = 0;
            for (int i = threadIdx.x % WARP; i < count; i += WARP) top = fmaxf(top, scores[g][i]);
            top = warp_reduce(top, Max());
            for (int i = threadIdx.x % WARP; i < count; i += WARP) total += scores[g][i] = expf(scores[g][i] - top);
            total = warp_reduce(total, Add());
            max[g] = top, sum[g] = total;
        }
        __syncthreads();
        int parts = dim <= ATTENTION_THREADS / 2 ? 2 : 1;
        int part = threadIdx.x / (ATTENTION_THREADS / parts), d = threadIdx.x % (ATTENTION_THREADS / parts);
        float sums[GROUP] = {};
        if (d < dim)
            for (int i = part; i < count; i += parts) {
                float value = to_float(values[slots[i] * stride + d]);
#pragma unroll
                for (int g = 0; g < GROUP; g++)
                    if (g < group) sums[g] = fmaf(scores[g][i], value, sums[g]);
            }
        if (part == 1 && d < dim)
            for (int g = 0; g < group; g++) halves[g][d] = sums[g];
        __syncthreads();
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            if (g < group && part == 0 && d < dim)
                result[g] = {max[g], sum[g], parts == 2 ? sums[g] + halves[g][d] : sums[g]};
    }
};

// What a block works on: query heads `head` to `head + group` of a token, all of key/value head `kv_head`.
struct Work {
    size_t token;
    int kv_head, head, group;
    __device__ Work(int heads, int kv_heads) {
        int per_kv = heads / kv_heads, blocks = (per_kv + GROUP - 1) / GROUP;
        token = blockIdx.x, kv_head = blockIdx.y / blocks;
        int start = blockIdx.y % blocks * GROUP;
        head = kv_head * per_kv + start;
        group = per_kv - start < GROUP ? per_kv - start : GROUP;
    }
};

// partials[token][head][split][2 + dim]: maximum, sum, values. `qkv` has rows of `heads + 2 * kv_heads` vectors.
template <class T>
__device__ void attention_decode(const float *qkv, Paged paged, const T *keys, const T *values, float *partials, int splits,
                                 int heads, int kv_heads, int dim, float scale) {
    __shared__ Attention<T> shared;
    Work work(heads, kv_heads);
    int length = paged.positions[work.token] + 1;
    shared.load_queries(qkv + (work.token * (heads + 2 * kv_heads) + work.head) * dim, work.group, dim);
    size_t offset = (size_t)work.kv_head * dim;
    for (int split = blockIdx.z; split * SPLIT < length; split += gridDim.z) {
        int first = split * SPLIT, count = length - first < SPLIT ? length - first : SPLIT;
        Partial result[GROUP];
        shared.attend(paged, paged.rows[work.token], first, count, keys + offset, values + offset, kv_heads * dim, work.group,
                      dim, scale, result);
        if (threadIdx.x >= dim) continue;
        for (int g = 0; g < work.group; g++) {
            float *to = partials + ((work.token * heads + work.head + g) * splits + split) * (2 + dim);
            if (threadIdx.x == 0) to[0] = result[g].max, to[1] = result[g].sum;
            to[2 + threadIdx.x] = result[g].value;
        }
    }
}

// out[token][head][dim] of `type`, from the partial results of `attention_decode`.
extern "C" __global__ void attention_merge(const float *partials, const int *positions, void *out, int type, int splits,
                                           int heads, int dim) {
    size_t token = blockIdx.x, at = token * heads + blockIdx.y;
    int length = positions[token] + 1;
    if (threadIdx.x >= dim) return;
    Partial all = {NEG_INFINITY, 0, 0};
    for (int split = 0; split * SPLIT < length; split++) {
        const float *from = partials + (at * splits + split) * (2 + dim);
        all.merge({from[0], from[1], from[2 + threadIdx.x]});
    }
    store(out, at * dim + threadIdx.x, length > 0 ? all.value / all.sum : 0, type);
}

template <class T>
__device__ void attention_extend(const float *qkv, Paged paged, const T *keys, const T *values, void *out, int type, int heads,
                                 int kv_heads, int dim, float scale) {
    __shared__ Attention<T> shared;
    Work work(heads, kv_heads);
    int length = paged.positions[work.token] + 1;
    shared.load_queries(qkv + (work.token * (heads + 2 * kv_heads) + work.head) * dim, work.group, dim);
    size_t offset = (size_t)work.kv_head * dim;
    Partial all[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) all[g] = {NEG_INFINITY, 0, 0};
    for (int first = 0; first < length; first += SPLIT) {
        int count = length - first < SPLIT ? length - first : SPLIT;
        Partial result[GROUP];
        shared.attend(paged, paged.rows[work.token], first, count, keys + offset, values + offset, kv_heads * dim, work.group,
                      dim, scale, result);
        if (threadIdx.x < dim)
#pragma unroll
            for (int g = 0; g < GROUP; g++)
                if (g < work.group) all[g].merge(result[g]);
    }
    if (threadIdx.x >= dim) return;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        if (g < work.group)
            store(out, (work.token * heads + work.head + g) * dim + threadIdx.x, length > 0 ? all[g].value / all[g].sum : 0, type);
}

#define ATTENTION(suffix, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)                                                   \
        attention_decode_##suffix(const float *qkv, const int *positions, const int *rows, const int *tables,         \
                                  int table_width, int block_size, const T *keys, const T *values, float *partials,   \
                                  int splits, int heads, int kv_heads, int dim, float scale) {                        \
        Paged paged = {positions, rows, tables, table_width, block_size};                                             \
        attention_decode<T>(qkv, paged, keys, values, partials, splits, heads, kv_heads, dim, scale);                 \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)                                                   \
        attention_extend_##suffix(const float *qkv, const int *positions, const int *rows, const int *tables,         \
                                  int table_width, int block_size, const T *keys, const T *values, void *out,         \
                                  int type, int heads, int kv_heads, int dim, float scale) {                          \
        Paged paged = {positions, rows, tables, table_width, block_size};                                             \
        attention_extend<T>(qkv, paged, keys, values, out, type, heads, kv_heads, dim, scale);                        \
    }
ATTENTION(f32, float)
ATTENTION(f16, f16)
ATTENTION(bf16, bf16)
