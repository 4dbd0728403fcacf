// The current stream, device guards and error checks of at::cuda and c10::cuda.
#pragma once

#include "ops.h"

#include <cuda_runtime_api.h>

namespace c10::cuda {

inline void stitch_check(cudaError_t code) {
  if (C10_UNLIKELY(code != cudaSuccess)) {
    cudaGetLastError();
    throw c10::Error(std::string("CUDA error: ") + cudaGetErrorString(code));
  }
}

inline DeviceIndex current_device() {
  int device = 0;
  stitch_check(cudaGetDevice(&device));
  return DeviceIndex(device);
}
inline DeviceIndex device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? DeviceIndex(count) : DeviceIndex(0);
}
inline void set_device(DeviceIndex device) { stitch_check(cudaSetDevice(device)); }
inline void device_synchronize() { stitch_check(cudaDeviceSynchronize()); }

class CUDAStream {
 public:
  CUDAStream(cudaStream_t stream, DeviceIndex device) : stream_(stream), device_(device) {}
  operator cudaStream_t() const { return stream_; }
  cudaStream_t stream() const { return stream_; }
  DeviceIndex device_index() const { return device_; }
  Device device() const { return Device(DeviceType::CUDA, device_); }
  void synchronize() const { stitch_check(cudaStreamSynchronize(stream_)); }
  bool operator==(const CUDAStream& o) const { return stream_ == o.stream_ && device_ == o.device_; }
  bool operator!=(const CUDAStream& o) const { return !(*this == o); }

 private:
  cudaStream_t stream_;
  DeviceIndex device_;
};
inline CUDAStream getCurrentCUDAStream(DeviceIndex device = -1) {
  if (device < 0) device = current_device();
  stitch::need_lock();
  void* stream = nullptr;
  if (stitch::exchange()) {
    if (stitch::exchange()->stream(2, device, &stream)) stitch::throw_python_error();
  } else {
    static stitch::Function f{"_C._cuda_getCurrentRawStream"};
    stream = PyLong_AsVoidPtr(stitch::run_object(f, {}, int(device)).get());
  }
  return CUDAStream(static_cast<cudaStream_t>(stream), device);
}

// Makes a device current while it lives.
class CUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : before_(current_device()) { set_index(index); }
  explicit CUDAGuard(Device device) : CUDAGuard(checked(device)) {}
  CUDAGuard(const CUDAGuard&) = delete;
  CUDAGuard& operator=(const CUDAGuard&) = delete;
  ~CUDAGuard() {
    int now = 0;
    if (cudaGetDevice(&now) == cudaSuccess && now != before_) cudaSetDevice(before_);
  }
  void set_index(DeviceIndex index) {
    if (index >= 0 && index != current_device()) c10::cuda::set_device(index);
  }
  void set_device(Device device) { set_index(checked(device)); }
  Device current() const { return Device(DeviceType::CUDA, current_device()); }
  Device original_device() const { return Device(DeviceType::CUDA, before_); }

 private:
  static DeviceIndex checked(Device device) {
    if (!device.is_cuda()) throw c10::Error(stitch::text("a CUDA device was expected, not ", device));
    return device.index();
  }
  DeviceIndex before_;
};
class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<Device> device) {
    if (device) guard_.emplace(*device);
  }
  explicit OptionalCUDAGuard(std::optional<DeviceIndex> index) {
    if (index) guard_.emplace(*index);
  }
  explicit OptionalCUDAGuard(Device device) { guard_.emplace(device); }
  explicit OptionalCUDAGuard(DeviceIndex index) { guard_.emplace(index); }
  void set_device(Device device) {
    if (guard_) guard_->set_device(device);
    else guard_.emplace(device);
  }
  void reset() { guard_.reset(); }

 private:
  std::optional<CUDAGuard> guard_;
};

}  // namespace c10::cuda

#define C10_CUDA_CHECK(expression) ::c10::cuda::stitch_check(expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define AT_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)
#define TORCH_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)

namespace at::cuda {
using namespace c10::cuda;
inline const cudaDeviceProp* getDeviceProperties(DeviceIndex device) {
  static cudaDeviceProp* known[64] = {};
  if (device < 0 || device >= 64) throw c10::Error("there is no such device");
  if (!known[device]) {
    auto* properties = new cudaDeviceProp;
    stitch_check(cudaGetDeviceProperties(properties, device));
    known[device] = properties;
  }
  return known[device];
}
inline const cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(current_device()); }
inline int warp_size() { return getCurrentDeviceProperties()->warpSize; }
}  // namespace at::cuda

namespace torch::cuda {
using namespace at::cuda;
inline bool is_available() { return device_count() > 0; }
inline void synchronize(int64_t device = -1) {
  CUDAGuard guard{c10::DeviceIndex(device)};
  device_synchronize();
}
}  // namespace torch::cuda

#if defined(CUBLAS_API_H_) || defined(CUBLAS_V2_H_)
#define STITCH_WITH_CUBLAS 1
#endif
#if defined(STITCH_WITH_CUBLAS)
#include <cublas_v2.h>
namespace at::cuda {
inline cublasHandle_t getCurrentCUDABlasHandle() {
  static ::stitch::Function f{"cuda.current_blas_handle"};
  return static_cast<cublasHandle_t>(PyLong_AsVoidPtr(::stitch::run_object(f, {}).get()));
}
}  // namespace at::cuda
#define TORCH_CUDABLAS_CHECK(expression)                                                                \
  do {                                                                                                  \
    const cublasStatus_t stitch_status = (expression);                                                  \
    if (stitch_status != CUBLAS_STATUS_SUCCESS)                                                         \
      throw ::c10::Error(::stitch::text("CUDA error: cuBLAS status ", int(stitch_status), " when calling " #expression)); \
  } while (false)
#endif

#if defined(__CUDACC__)
// Atomic additions that PyTorch offers for every element type, as far as CUDA has them itself.
template <class T> __device__ inline T gpuAtomicAdd(T* address, T value) { return atomicAdd(address, value); }
template <class T> __device__ inline void gpuAtomicAddNoReturn(T* address, T value) { atomicAdd(address, value); }
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_t)                                 \
  int64_t stitch_at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;        \
  for (index_t i = index_t(stitch_at); stitch_at < (n);                      \
       stitch_at += int64_t(blockDim.x) * gridDim.x, i = index_t(stitch_at))
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#endif
