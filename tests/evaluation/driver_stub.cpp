// As much of CUDA's driver as nvrtc_runner calls, in host memory, so that its protocol can be exercised without a GPU:
// 'scale' is run here, 'wrong' does nothing, 'fault' fails as a device does, 'hang' takes forever.
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

using Pointer = unsigned long long;
static int broken = 0;

extern "C" {
int cuInit(unsigned) { return getenv("STUB_NO_DEVICE") ? 100 : 0; }
int cuDeviceGet(int* device, int) { *device = 0; return 0; }
int cuDeviceGetAttribute(int* value, int, int) { *value = 1 << 20; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = reinterpret_cast<void*>(1); return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { return broken; }
int cuGetErrorName(int error, const char** text) {
  *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_ILLEGAL_ADDRESS";
  return 0;
}
int cuMemAlloc_v2(Pointer* pointer, size_t size) {
  if (size > 1ull << 32) return 2;
  *pointer = reinterpret_cast<Pointer>(malloc(size));
  return 0;
}
int cuMemFree_v2(Pointer pointer) { free(reinterpret_cast<void*>(pointer)); return 0; }
int cuMemsetD8_v2(Pointer pointer, unsigned char byte, size_t size) {
  memset(reinterpret_cast<void*>(pointer), byte, size);
  return broken;
}
int cuMemcpyHtoD_v2(Pointer to, const void* from, size_t size) { memcpy(reinterpret_cast<void*>(to), from, size); return 0; }
int cuMemcpyDtoH_v2(void* to, Pointer from, size_t size) { memcpy(to, reinterpret_cast<void*>(from), size); return 0; }
int cuEventCreate(void** event, unsigned) { *event = event; return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventElapsedTime(float* milliseconds, void*, void*) { *milliseconds = 0.5f; return 0; }
int cuModuleLoadData(void** module, const void* image) { *module = const_cast<void*>(image); return memcmp(image, "\177ELF", 4) ? 200 : 0; }
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void*, const char* name) { *function = strdup(name); return 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned, void*, void** arguments, void**) {
  const std::string name = static_cast<const char*>(function);
  if (name == "fault") { broken = 700; return 0; }
  if (name == "hang") sleep(600);
  if (name != "scale" || gy * gz * by * bz != 1) return 0;
  const float* x = *static_cast<const float**>(arguments[0]);
  float* y = *static_cast<float**>(arguments[1]);
  const long long n = *static_cast<long long*>(arguments[2]);
  const float factor = *static_cast<float*>(arguments[3]);
  for (long long i = 0; i < n && i < static_cast<long long>(gx) * bx; ++i) y[i] = factor * x[i];
  return 0;
}
}
