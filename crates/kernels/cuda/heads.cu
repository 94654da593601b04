// Routing heads: small networks on hidden states. Their matrices go through `gemm_f32` and `gemm_bf16`.
#include "common.cuh"

// out[row] = norm(x[row]) * weight + bias, with mean and variance over `width`; rows are `from` and `to` elements apart.
extern "C" __global__ void layer_norm(const float *x, float *out, const float *weight, const float *bias, float eps, int width,
                                      int from, int to) {
    size_t row = blockIdx.x;
    float sum = 0, squares = 0;
    for (int k = threadIdx.x; k < width; k += blockDim.x) sum += x[row * from + k];
    float mean = block_reduce(sum, Add()) / width;
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float away = x[row * from + k] - mean;
        squares = fmaf(away, away, squares);
    }
    float scale = 1.0f / sqrtf(block_reduce(squares, Add()) / width + eps);
    for (int k = threadIdx.x; k < width; k += blockDim.x)
        out[row * to + k] = fmaf((x[row * from + k] - mean) * scale, weight[k], bias[k]);
}

enum Activation { NONE = 0, RELU = 1, GELU = 2, SIGMOID = 3 };

// x[row] = activation(x[row] * scale + shift) + residual[row]; `scale` and `residual` may be null. Rows of `x` are
// `stride` elements apart, those of `residual` `width`.
extern "C" __global__ void activate(float *x, const float *scale, const float *shift, const float *residual, int activation,
                                    int width, int stride) {
    size_t row = blockIdx.x;
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float value = x[row * stride + k];
        value = scale ? fmaf(value, scale[k], shift[k]) : value + shift[k];
        // A NaN stays one, which a maximum would hide.
        if (activation == RELU && value < 0) value = 0;
        if (activation == GELU) value = 0.5f * value * (1.0f + erff(value * 0.70710678f));
        if (activation == SIGMOID) value = 1.0f / (1.0f + expf(-value));
        x[row * stride + k] = residual ? value + residual[row * width + k] : value;
    }
}

// out[row][k] = x[row][first + k] for k below `count`, of the softmax over `width` elements if `softmax` is set, and 0 where
// `x` has no such element. Rows are `from` and `to` elements apart.
extern "C" __global__ void softmax_copy(const float *x, float *out, int softmax, int width, int first, int count, int from, int to) {
    size_t row = blockIdx.x;
    float top = NEG_INFINITY, total = 0;
    for (int k = threadIdx.x; k < width; k += blockDim.x) top = fmaxf(top, x[row * from + k]);
    top = block_reduce(top, Max());
    for (int k = threadIdx.x; k < width; k += blockDim.x) total += expf(x[row * from + k] - top);
    total = block_reduce(total, Add());
    for (int k = threadIdx.x; k < count; k += blockDim.x) {
        float value = first + k < width ? x[row * from + first + k] : 0;
        out[row * to + k] = first + k >= width ? 0 : softmax ? expf(value - top) / total : value;
    }
}
