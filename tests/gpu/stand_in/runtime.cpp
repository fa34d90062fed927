// The CUDA runtime and driver of a card that is not there, for a CUDA build of torch: memory is
// addresses without memory behind them, launches and library calls do nothing. So torch's own
// caching allocator, streams, memory history and kernels' requests are the real ones, and every
// figure of memory is; values are not. What is not here returns 0: see build.py.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#define REAL extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kMemory = size_t{80} << 30, kPage = size_t{2} << 20;

std::atomic<uintptr_t> g_next{uintptr_t{1} << 46};
std::atomic<size_t> g_used{0};
std::mutex g_lock;
std::unordered_map<void*, size_t> g_sizes;

// of no kind: whoever makes one has only an address of it
cudaError_t make(void* place) {
  *static_cast<void**>(place) = std::malloc(16);
  return cudaSuccess;
}

int zero() {
  return 0;
}

}  // namespace

REAL cudaError_t cudaGetDeviceCount(int* count) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  *count = visible == nullptr || *visible != '\0';
  return *count ? cudaSuccess : cudaErrorNoDevice;
}

REAL cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

REAL cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

REAL cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// Figures of an H100 SXM as far as kernels choose by them.
REAL cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) {
  std::memset(found, 0, sizeof *found);
  std::strcpy(found->name, "NVIDIA H100 stand-in");
  found->totalGlobalMem = kMemory;
  found->major = 9;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->maxThreadsPerMultiProcessor = 2048;
  found->maxThreadsPerBlock = 1024;
  found->sharedMemPerBlock = 48 << 10;
  found->sharedMemPerBlockOptin = 227 << 10;
  found->sharedMemPerMultiprocessor = 228 << 10;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->l2CacheSize = 50 << 20;
  for (int axis = 0; axis < 3; ++axis) {
    found->maxThreadsDim[axis] = axis == 2 ? 64 : 1024;
    found->maxGridSize[axis] = axis == 0 ? 2147483647 : 65535;
  }
  return cudaSuccess;
}

REAL cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}

REAL cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = kMemory;
  *free = kMemory - g_used;
  return cudaSuccess;
}

REAL cudaError_t cudaMalloc(void** place, size_t size) {
  const size_t whole = (size + kPage - 1) / kPage * kPage;
  const std::lock_guard<std::mutex> holding(g_lock);
  if (whole > kMemory - g_used) {
    return cudaErrorMemoryAllocation;
  }
  g_used += whole;
  *place = reinterpret_cast<void*>(g_next.fetch_add(whole));
  g_sizes[*place] = whole;
  return cudaSuccess;
}

REAL cudaError_t cudaFree(void* place) {
  const std::lock_guard<std::mutex> holding(g_lock);
  const auto found = g_sizes.find(place);
  if (found != g_sizes.end()) {
    g_used -= found->second;
    g_sizes.erase(found);
  }
  return cudaSuccess;
}

REAL cudaError_t cudaHostAlloc(void** place, size_t size, unsigned) {
  *place = std::malloc(size);
  return cudaSuccess;
}

REAL cudaError_t cudaFreeHost(void* place) {
  std::free(place);
  return cudaSuccess;
}

REAL cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return make(stream);
}

REAL cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make(event);
}

REAL cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

REAL cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

REAL cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

REAL cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

REAL cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  std::memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  // the architecture that torch's attention kernels are asked for
  found->binaryVersion = 90;
  return cudaSuccess;
}

REAL cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

REAL cudaError_t cudaGetDriverEntryPointByVersion(
    const char*, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&zero);
  if (result != nullptr) {
    *result = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

// Each thread has a handle of its own, and torch a workspace for each.
REAL int cublasCreate_v2(void** handle) {
  return make(handle);
}

REAL int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}

REAL int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return 0;
}

// One way to multiply, which needs no workspace.
REAL int cublasLtMatmulAlgoGetHeuristic(
    void*, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {
  std::memset(results, 0, 96);
  *count = 1;
  return 0;
}

REAL int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

REAL int cuCtxGetCurrent(void** context) {
  *context = reinterpret_cast<void*>(&g_used);
  return 0;
}
