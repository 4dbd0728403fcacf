// Train-mode BatchNorm over NCHW float32 with residual addition and activation on the CPU: a thread owns a channel,
// takes its statistics in two passes while the planes are in its cache, and applies them in a third.
#include <cmath>
#include <cstdint>

namespace {

enum Activation { NONE = 0, RELU = 1, RELU6 = 2, SILU = 3, HARDSWISH = 4 };

// exp for float32 within 2 ulp, branch-free so that loops over it vectorise: 2^n by exponent bits, a polynomial for
// the rest. Arguments are clamped where the result leaves the normal range.
inline float exponential(float x) {
  const float clamped = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
  const float n = std::nearbyint(clamped * 1.44269504088896341f);
  const float r = std::fma(n, -1.42860682030941723212e-6f, std::fma(n, -0.693145751953125f, clamped));
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.f;
  union {
    std::int32_t bits;
    float value;
  } power;
  power.bits = (static_cast<std::int32_t>(n) + 127) << 23;
  return x != x ? x : p * power.value;
}

// Comparisons are written so that NaN passes through, as in PyTorch.
template <int KIND>
inline float activate(float x) {
  if (KIND == RELU) return x < 0.f ? 0.f : x;
  if (KIND == RELU6) return x < 0.f ? 0.f : x > 6.f ? 6.f : x;
  if (KIND == SILU) return x / (1.f + exponential(-x));
  if (KIND == HARDSWISH) return x * (x + 3.f < 0.f ? 0.f : x + 3.f > 6.f ? 6.f : x + 3.f) / 6.f;
  return x;
}

template <int KIND>
void apply(const float* x, const float* residual, float* out, std::int64_t n, float mean, float scale, float shift) {
  if (residual) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = activate<KIND>((x[i] - mean) * scale + shift + residual[i]);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = activate<KIND>((x[i] - mean) * scale + shift);
  }
}

using Apply = void (*)(const float*, const float*, float*, std::int64_t, float, float, float);
const Apply APPLY[] = {apply<NONE>, apply<RELU>, apply<RELU6>, apply<SILU>, apply<HARDSWISH>};

}  // namespace

extern "C" int batch_norm_train(const float* x, const float* residual, const float* weight, const float* bias,
                                float* running_mean, float* running_var, std::int64_t* batches, float* out, float*,
                                std::int64_t batch, std::int64_t channels, std::int64_t area, std::int64_t activation,
                                std::int64_t, float momentum, float eps, void*) {
  if (activation < 0 || activation > HARDSWISH) return 1;
  const Apply kernel = APPLY[activation];
  const double count = static_cast<double>(batch) * static_cast<double>(area);
#pragma omp parallel for schedule(static)
  for (std::int64_t c = 0; c < channels; ++c) {
    double total = 0.0;
    for (std::int64_t n = 0; n < batch; ++n) {
      const float* plane = x + (n * channels + c) * area;
      double sum = 0.0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < area; ++i) sum += plane[i];
      total += sum;
    }
    const double mean = total / count;
    double m2 = 0.0;
    for (std::int64_t n = 0; n < batch; ++n) {
      const float* plane = x + (n * channels + c) * area;
      double sum = 0.0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < area; ++i) {
        const double d = plane[i] - mean;
        sum += d * d;
      }
      m2 += sum;
    }
    if (running_mean) {
      const float unbiased = static_cast<float>(m2 / (count - 1.0));
      running_mean[c] = (1.f - momentum) * running_mean[c] + momentum * static_cast<float>(mean);
      running_var[c] = (1.f - momentum) * running_var[c] + momentum * unbiased;
    }
    const float inverse = static_cast<float>(1.0 / std::sqrt(m2 / count + static_cast<double>(eps)));
    const float scale = weight ? weight[c] * inverse : inverse;
    for (std::int64_t n = 0; n < batch; ++n) {
      const std::int64_t at = (n * channels + c) * area;
      kernel(x + at, residual ? residual + at : nullptr, out + at, area, static_cast<float>(mean), scale,
             bias ? bias[c] : 0.f);
    }
  }
  if (batches) ++*batches;
  return 0;
}
