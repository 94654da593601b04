// The kernels on the host, by name: the counterpart of a loaded module.
#define TOKENROUTER_EMULATION
#include "kernels.cu"

#include <cstring>
#include <memory>
#include <utility>

namespace {

template <class... A, size_t... I> void unpack(void (*kernel)(A...), void **params, std::index_sequence<I...>) {
    kernel(*(A *)params[I]...);
}
template <class... A> void call(void (*kernel)(A...), void **params) {
    unpack(kernel, params, std::index_sequence_for<A...>());
}

struct Kernel {
    const char *name;
    void (*call)(void **);
};
#define KERNEL(name) {#name, [](void **params) { call(name, params); }}
const Kernel KERNELS[] = {
    KERNEL(embed_f32), KERNEL(embed_f16), KERNEL(embed_bf16), KERNEL(embed_q8), KERNEL(embed_q4),
    KERNEL(rms_norm), KERNEL(add), KERNEL(silu_mul), KERNEL(rope_append), KERNEL(copy_blocks),
    KERNEL(gemm_tensor_f16_1), KERNEL(gemm_tensor_f16_2), KERNEL(gemm_tensor_f16_4),
    KERNEL(gemm_tensor_bf16_1), KERNEL(gemm_tensor_bf16_2), KERNEL(gemm_tensor_bf16_4),
    KERNEL(gemm_f32), KERNEL(gemm_f16), KERNEL(gemm_bf16), KERNEL(gemm_q8), KERNEL(gemm_q4),
    KERNEL(attention_decode_f32), KERNEL(attention_decode_f16), KERNEL(attention_decode_bf16), KERNEL(attention_merge),
    KERNEL(attention_extend_f32), KERNEL(attention_extend_f16), KERNEL(attention_extend_bf16),
    KERNEL(logit_signals), KERNEL(fill), KERNEL(layer_norm), KERNEL(activate), KERNEL(softmax_copy),
};

} // namespace

// Runs a kernel to its end; `params` are pointers to its arguments, as for `cuLaunchKernel`. 0: done, 1: no such kernel.
extern "C" int tokenrouter_emulate(const char *name, unsigned x, unsigned y, unsigned z, unsigned threads, void **params) {
    for (const Kernel &kernel : KERNELS) {
        if (strcmp(kernel.name, name) != 0) continue;
        thread_local std::unique_ptr<emulation::Block> owner(new emulation::Block());
        emulation::block = owner.get();
        emulation::block->call = kernel.call, emulation::block->params = params;
        blockDim = {threads, 1, 1}, gridDim = {x, y, z};
        for (blockIdx = {0, 0, 0}; blockIdx.z < z; blockIdx.z++)
            for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
                for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) emulation::run_block(threads);
        return 0;
    }
    return 1;
}
