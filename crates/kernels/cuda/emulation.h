// Enough of CUDA to run the kernels on the host: threads of a block are fibers that are switched at barriers and shuffles,
// blocks run one after the other. Slow, exact in its semantics, and strict: a barrier or a shuffle that some thread of the
// block or warp never reaches ends the process with a message. For tests only.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __shared__ static thread_local
#define __launch_bounds__(threads)

struct dim3 { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

using f16 = _Float16;
struct bf16 { uint16_t bits; };

inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }

inline float to_float(float x) { return x; }
inline float to_float(f16 x) { return (float)x; }
inline float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline void from_float(float x, float &out) { out = x; }
inline void from_float(float x, f16 &out) { out = (f16)x; }
inline void from_float(float x, bf16 &out) {
    unsigned bits = __float_as_uint(x);
    // To nearest, ties to even; NaN stays NaN.
    out.bits = x != x ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A 16 x 16 tile of sums, spread over the lanes of a warp: what a tensor core's fragment is, without one.
struct Accumulator {
    float sums[8] = {};
    template <class T> void multiply(const T *a, const T *w, int k);
    void store(float *to);
};

namespace emulation {

// --- Fibers ---

void body();

#ifdef __x86_64__
// Pushes what a callee must keep, swaps stacks, pops it. A switch of `ucontext` costs a system call.
extern "C" void tokenrouter_switch(void **from, void *to);
asm(R"(
.text
.globl tokenrouter_switch
.type tokenrouter_switch, @function
tokenrouter_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size tokenrouter_switch, .-tokenrouter_switch
)");

struct Context {
    void *stack_pointer;
    void start(char *stack, size_t size) {
        // As if `body` had been called and had called the switch: its address, six registers.
        void **top = (void **)(((uintptr_t)stack + size) & ~(uintptr_t)15);
        top[-1] = nullptr, top[-2] = (void *)body;
        stack_pointer = top - 8;
    }
    void switch_to(Context &other) { tokenrouter_switch(&stack_pointer, other.stack_pointer); }
};
#else
struct Context {
    ucontext_t context;
    void start(char *stack, size_t size) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = size;
        makecontext(&context, body, 0);
    }
    void switch_to(Context &other) { swapcontext(&context, &other.context); }
};
#endif

// --- Blocks ---

struct Group { unsigned size, arrived, generation; };

constexpr size_t STACK = 64 << 10;
constexpr unsigned MAX_THREADS = 1024;

struct Fiber { Context context; std::vector<char> stack; bool done; };

struct Block {
    Context scheduler;
    Fiber fibers[MAX_THREADS];
    Group all, warps[32];
    unsigned slots[2][32][32];
    unsigned running;
    bool progress;
    void (*call)(void **);
    void **params;
};

// A pointer: a thread-local object would be checked for its construction at every use.
inline thread_local Block *block;
inline thread_local dim3 thread_index, block_index, block_size, grid_size;

inline void yield() { block->fibers[block->running].context.switch_to(block->scheduler); }

inline void release(Group &group) { group.arrived = 0, group.generation++, block->progress = true; }

inline void arrive(Group &group) {
    unsigned generation = group.generation;
    if (++group.arrived == group.size) release(group);
    else while (group.generation == generation) yield();
}

// The end of a thread; a block's barriers do not wait for threads that have ended.
inline void leave() {
    block->fibers[block->running].done = true;
    block->progress = true;
    if (--block->all.size > 0 && block->all.arrived == block->all.size) release(block->all);
}

// A fiber is a thread of one block after the other.
inline void body() {
    for (;;) {
        block->call(block->params);
        leave();
        yield();
    }
}

inline void run_block(unsigned threads) {
    block->all = {threads, 0, 0};
    for (auto &warp : block->warps) warp = {32, 0, 0};
    for (unsigned i = 0; i < threads; i++) {
        Fiber &fiber = block->fibers[i];
        fiber.done = false;
        if (!fiber.stack.empty()) continue;
        fiber.stack.resize(STACK);
        // Tops at the same place of a page would all compete for the same lines of the cache.
        fiber.context.start(fiber.stack.data(), STACK - i * 320 % (STACK / 2));
    }
    for (unsigned left = threads; left > 0;) {
        block->progress = false;
        left = 0;
        for (unsigned i = 0; i < threads; i++) {
            if (block->fibers[i].done) continue;
            block->running = i, thread_index = {i, 0, 0};
            block->scheduler.switch_to(block->fibers[i].context);
            left += !block->fibers[i].done;
        }
        if (left > 0 && !block->progress) {
            fprintf(stderr, "emulated kernel: %u threads wait for others that never come\n", left);
            abort();
        }
    }
}

inline unsigned shuffle(unsigned value, unsigned from) {
    unsigned warp = thread_index.x / 32, lane = thread_index.x % 32;
    // Two sets of slots: a lane may write for the next shuffle while others still read of this one, but not for the one
    // after it, which waits for all.
    unsigned *slots = block->slots[block->warps[warp].generation % 2][warp];
    slots[lane] = value;
    arrive(block->warps[warp]);
    return slots[from];
}

} // namespace emulation

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size

inline void __syncthreads() { emulation::arrive(emulation::block->all); }
inline float __shfl_xor_sync(unsigned, float x, int mask) {
    return __uint_as_float(emulation::shuffle(__float_as_uint(x), threadIdx.x % 32 ^ mask));
}
inline unsigned long long __shfl_xor_sync(unsigned, unsigned long long x, int mask) {
    unsigned from = threadIdx.x % 32 ^ mask;
    unsigned low = emulation::shuffle((unsigned)x, from), high = emulation::shuffle((unsigned)(x >> 32), from);
    return (unsigned long long)high << 32 | low;
}
template <class T> T atomicAdd(T *to, T value) { T old = *to; *to += value; return old; }

template <class T> void Accumulator::multiply(const T *a, const T *w, int k) {
    for (int i = 0; i < 8; i++) {
        int element = threadIdx.x % 32 * 8 + i, row = element / 16, column = element % 16;
        for (int step = 0; step < 16; step++)
            sums[i] = fmaf(to_float(a[(size_t)row * k + step]), to_float(w[(size_t)column * k + step]), sums[i]);
    }
}
inline void Accumulator::store(float *to) { memcpy(to + threadIdx.x % 32 * 8, sums, sizeof sums); }
