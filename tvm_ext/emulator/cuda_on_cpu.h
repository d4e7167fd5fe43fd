// What generated CUDA C needs to run on one CPU thread, one fiber per CUDA thread.
//
// A fiber runs until it meets a barrier or a warp exchange. When none can run any more, the
// lanes that wait at a warp exchange go on; when there are none of those, the block barrier
// opens. So lanes that diverge meet only those that reach the same kind of point, as on a GPU.
// Shared memory is filled with NaN bytes before each block: what is read must have been written.
// Tensors know their size: what lies outside of one is noted, and not accessed.
// With -DREVERSED blocks and threads take turns from the last to the first: a kernel whose
// result then differs lacks a barrier.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short

struct Dim3 { int x, y, z; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---- tensors ------------------------------------------------------------------------------
struct Outside { bool found; int64_t index, size; };
static Outside outside;  // the first access outside of a tensor

// A parameter of a kernel, from element ``start`` on; several elements at once are a ``U``.
template <class T> struct Tensor {
  T* data;
  int64_t size, start;
  bool holds(int64_t first, int64_t count) const {
    bool inside = first >= 0 && first + count <= size;
    if (!inside && !outside.found) outside = {true, first, size};
    return inside;
  }
  T& operator[](int64_t i) const {
    static T nowhere;
    return holds(start + i, 1) ? data[start + i] : nowhere;
  }
  Tensor operator+(int64_t i) const { return {data, size, start + i}; }
  template <class U> explicit operator U*() const {
    static U nowhere;
    return holds(start, (sizeof(U) + sizeof(T) - 1) / sizeof(T)) ? (U*)(data + start) : &nowhere;
  }
};

// ---- fibers -------------------------------------------------------------------------------
enum State { READY, AT_WARP, AT_BARRIER, DONE };
struct Fiber {
  State state;
  bool started;
  ucontext_t context;
  jmp_buf jump;
  uint64_t slot;  // what the lane shows in a warp exchange
  char* stack;
};
static const int MAX_THREADS = 1024, STACK_BYTES = 64 << 10;
static Fiber fibers[MAX_THREADS];
static int threads, current;
static jmp_buf scheduler;
static void (*kernel_body)(const void*);
static const void* kernel_arguments;

static void select_thread(int i) {
  current = i;
  threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
}
static void wait_at(State point) {
  fibers[current].state = point;
  if (!_setjmp(fibers[current].jump)) _longjmp(scheduler, 1);
}
static void fiber_main() {
  kernel_body(kernel_arguments);
  fibers[current].state = DONE;
  _longjmp(scheduler, 1);
}
static void resume(int i) {
  select_thread(i);
  if (_setjmp(scheduler)) return;
  Fiber& fiber = fibers[i];
  if (fiber.started) _longjmp(fiber.jump, 1);
  fiber.started = true;
  if (!fiber.stack) fiber.stack = (char*)malloc(STACK_BYTES);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = STACK_BYTES;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
  setcontext(&fiber.context);
}
static bool release(State point) {
  bool any = false;
  for (int i = 0; i < threads; ++i)
    if (fibers[i].state == point) fibers[i].state = READY, any = true;
  return any;
}
static int nth(int i, int count) {
#ifdef REVERSED
  return count - 1 - i;
#else
  return i;
#endif
}
static void run_fibers() {
  for (int i = 0; i < threads; ++i) fibers[i].state = READY, fibers[i].started = false;
  do
    for (int i = 0; i < threads; ++i)
      if (int thread = nth(i, threads); fibers[thread].state == READY) resume(thread);
  while (release(AT_WARP) || release(AT_BARRIER));
}

extern char __start_cuda_shared[] __attribute__((weak));
extern char __stop_cuda_shared[] __attribute__((weak));

// launch = gridDim.xyz, blockDim.xyz; a kernel that never waits needs no fibers.
// Returns the first access outside of a tensor, if any was found.
template <class Body> static Outside run_grid(const Body& body, const int* launch, bool waits) {
  outside = {};
  gridDim = {launch[0], launch[1], launch[2]};
  blockDim = {launch[3], launch[4], launch[5]};
  threads = launch[3] * launch[4] * launch[5];
  kernel_body = [](const void* self) { (*(const Body*)self)(); };
  kernel_arguments = &body;
  for (int z = 0; z < gridDim.z; ++z)
    for (int y = 0; y < gridDim.y; ++y)
      for (int x = 0; x < gridDim.x; ++x) {
        blockIdx = {nth(x, gridDim.x), nth(y, gridDim.y), nth(z, gridDim.z)};
        if (__start_cuda_shared)
          memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
        if (waits) {
          run_fibers();
        } else {
          for (int i = 0; i < threads; ++i) select_thread(nth(i, threads)), body();
        }
      }
  return outside;
}

// ---- barriers and warp exchanges ----------------------------------------------------------
static void __syncthreads() { wait_at(AT_BARRIER); }
static void __syncwarp(unsigned = ~0u) { wait_at(AT_WARP); }
static unsigned __activemask() { return ~0u; }
template <class T> static T exchange(T value, int lane, int width) {
  int self = current % 32, base = current - self, first = self - self % width;
  memcpy(&fibers[current].slot, &value, sizeof value);
  wait_at(AT_WARP);
  bool inside = lane >= first && lane < first + width && base + lane < threads;
  T result = value;
  if (inside) memcpy(&result, &fibers[base + lane].slot, sizeof result);
  wait_at(AT_WARP);
  return result;
}
template <class T> static T __shfl_down_sync(unsigned, T v, int d, int width = 32) {
  return exchange(v, current % 32 + d, width);
}
template <class T> static T __shfl_up_sync(unsigned, T v, int d, int width = 32) {
  return exchange(v, current % 32 - d, width);
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int mask, int width = 32) {
  return exchange(v, current % 32 ^ mask, width);
}
template <class T> static T __shfl_sync(unsigned, T v, int lane, int width = 32) {
  return exchange(v, current % 32 / width * width + lane % width, width);
}
template <class T> static T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }

// ---- types --------------------------------------------------------------------------------
typedef _Float16 half;
typedef half __half;
struct nv_bfloat16 {  // the upper half of a float, rounded to nearest even
  uint16_t bits;
  nv_bfloat16() = default;
  nv_bfloat16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    bits = x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  }
  operator float() const {
    uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
  }
};
typedef nv_bfloat16 __nv_bfloat16;
#define CUDA_VECTOR(T, name)                                                              \
  struct name##2 { T x, y; };                                                             \
  struct name##3 { T x, y, z; };                                                          \
  struct name##4 { T x, y, z, w; };                                                       \
  static inline name##2 make_##name##2(T a, T b) { return {a, b}; }                       \
  static inline name##3 make_##name##3(T a, T b, T c) { return {a, b, c}; }               \
  static inline name##4 make_##name##4(T a, T b, T c, T d) { return {a, b, c, d}; }
CUDA_VECTOR(float, float)
CUDA_VECTOR(double, double)
CUDA_VECTOR(int, int)
CUDA_VECTOR(unsigned, uint)
CUDA_VECTOR(signed char, char)
CUDA_VECTOR(unsigned char, uchar)
CUDA_VECTOR(short, short)
CUDA_VECTOR(unsigned short, ushort)
CUDA_VECTOR(long, longlong)
CUDA_VECTOR(half, half)
static inline unsigned __pack_half2(half x, half y) {
  uint16_t low, high;
  memcpy(&low, &x, 2), memcpy(&high, &y, 2);
  return (unsigned)high << 16 | low;
}

// ---- arithmetic ---------------------------------------------------------------------------
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN ((double)NAN)
// max and min of floats return the operand that is a number, as CUDA's do.
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline half max(half a, half b) { return a > b ? a : b; }
static inline half min(half a, half b) { return a < b ? a : b; }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline double rsqrt(double x) { return 1. / sqrt(x); }
static inline half __float2half_rn(float x) { return (half)x; }
static inline half __float2half(float x) { return (half)x; }
static inline float __half2float(half x) { return (float)x; }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline half __habs(half x) { return (half)fabsf((float)x); }
static inline half hpow(half x, half y) { return (half)powf((float)x, (float)y); }
#define CUDA_HALF(name, function) \
  static inline half name(half x) { return (half)function((float)x); }
CUDA_HALF(hexp, expf) CUDA_HALF(hlog, logf) CUDA_HALF(hlog2, log2f) CUDA_HALF(htanh, tanhf)
CUDA_HALF(herf, erff) CUDA_HALF(hsin, sinf) CUDA_HALF(hcos, cosf) CUDA_HALF(hsqrt, sqrtf)
CUDA_HALF(hrsqrt, rsqrtf) CUDA_HALF(hfloor, floorf) CUDA_HALF(hceil, ceilf)
CUDA_HALF(hrint, rintf) CUDA_HALF(htrunc, truncf)
template <class T> static inline T __ldg(const T* p) { return *p; }
