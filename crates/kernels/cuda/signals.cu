// What routing reads from a row of logits, and the candidate, so that only these few numbers return to the host.
#include "common.cuh"

constexpr int SIGNAL_THREADS = 512;
constexpr int MAX_TOP = 128;
// 8 bits at a time.
constexpr int RADIX = 256;

// Orders logits, falling, ties by rising id, as one number: larger is better, and no two are equal. NaN counts as -inf.
__device__ inline unsigned long long rank_of(float logit, unsigned id) {
    float clean = logit != logit ? NEG_INFINITY : logit + 0.0f;
    unsigned bits = __float_as_uint(clean);
    unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (unsigned long long)ordered << 32 | ~id;
}
__device__ inline unsigned id_of(unsigned long long rank) { return ~(unsigned)rank; }
__device__ inline float logit_of(unsigned long long rank) {
    unsigned ordered = (unsigned)(rank >> 32);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

__device__ inline unsigned long long block_max(unsigned long long x) {
    __shared__ unsigned long long part[WARP];
    for (int step = WARP / 2; step > 0; step /= 2) {
        unsigned long long other = __shfl_xor_sync(ALL, x, step);
        x = other > x ? other : x;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / WARP; warp++) x = part[warp] > x ? part[warp] : x;
    return x;
}

// The largest `k` ranks of a row, falling, in `top`: a radix selection finds the smallest rank that belongs to them.
__device__ void select_top(const float *row, int vocab, int extra, int k, unsigned long long *top) {
    __shared__ unsigned counts[RADIX];
    __shared__ unsigned long long floor_rank;
    __shared__ int wanted, taken;
    __shared__ bool exact;
    if (threadIdx.x == 0) floor_rank = 0, wanted = k, taken = 0, exact = false;
    for (int i = threadIdx.x; i < MAX_TOP; i += blockDim.x) top[i] = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < RADIX; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        if (exact) break;
        for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
            unsigned long long rank = rank_of(id == extra ? NEG_INFINITY : row[id], id);
            bool alike = shift == 56 || rank >> (shift + 8) == floor_rank >> (shift + 8);
            if (alike) atomicAdd(&counts[rank >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = RADIX - 1;
            for (; (int)counts[digit] < wanted; digit--) wanted -= counts[digit];
            floor_rank |= (unsigned long long)digit << shift;
            // All that begin like this are wanted: what follows need not be looked at.
            exact = (int)counts[digit] == wanted;
        }
        __syncthreads();
    }
    for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
        unsigned long long rank = rank_of(id == extra ? NEG_INFINITY : row[id], id);
        if (rank >= floor_rank) top[atomicAdd(&taken, 1)] = rank;
    }
    // Bitonic sort, falling; the rest of `top` is 0 and sinks to its end.
    for (int size = 2; size <= MAX_TOP; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < MAX_TOP; i += blockDim.x) {
                int j = i ^ step;
                bool falling = (i & size) == 0;
                if (j > i && (top[i] < top[j]) == falling) {
                    unsigned long long low = top[i];
                    top[i] = top[j], top[j] = low;
                }
            }
        }
    __syncthreads();
}

// One row a block. `out[row]` is: candidate (the id of the largest logit below `bound`, the lowest of equals), logit of row
// `extra` of the head, entropy in nats, logarithm of the sum of exponentials, and a word for a routing score.
// `largest[row]` is `k` logits, falling, and their ids. `extra` is no token: it counts as -inf; -1: there is none.
extern "C" __global__ void __launch_bounds__(SIGNAL_THREADS)
    logit_signals(const float *logits, unsigned *out, unsigned *largest, int vocab, int bound, int extra, int k, int softmax) {
    __shared__ unsigned long long top[MAX_TOP];
    const float *row = logits + (size_t)blockIdx.x * vocab;
    unsigned *to = out + (size_t)blockIdx.x * 5, *top_to = largest + (size_t)blockIdx.x * 2 * k;
    unsigned long long best = 0, candidate = 0;
    for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
        unsigned long long rank = rank_of(id == extra ? NEG_INFINITY : row[id], id);
        best = rank > best ? rank : best;
        if (id < bound && rank > candidate) candidate = rank;
    }
    best = block_max(best), candidate = block_max(candidate);
    float max = logit_of(best), entropy = 0, log_sum_exp = max;
    if (softmax && max > NEG_INFINITY && max < -NEG_INFINITY) {
        float total = 0, weighted = 0;
        for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
            if (id == extra) continue;
            float shifted = fmaxf(row[id] - max, -87.0f), e = expf(shifted);
            total += e, weighted = fmaf(e, shifted, weighted);
        }
        total = block_reduce(total, Add()), weighted = block_reduce(weighted, Add());
        log_sum_exp = max + logf(total), entropy = fmaxf(logf(total) - weighted / total, 0.0f);
    }
    if (k > 0) select_top(row, vocab, extra, k, top);
    for (int i = threadIdx.x; i < k; i += blockDim.x)
        top_to[i] = __float_as_uint(logit_of(top[i])), top_to[k + i] = id_of(top[i]);
    if (threadIdx.x == 0) {
        to[0] = id_of(candidate), to[1] = __float_as_uint(extra >= 0 ? row[extra] : 0.0f);
        to[2] = __float_as_uint(entropy), to[3] = __float_as_uint(log_sum_exp);
    }
}
