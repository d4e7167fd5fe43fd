// Stands in for libcuda.so.1 and libcudart.so.13 where there is no GPU, so that TVM's own runtime
// runs builds for cuda. Memory of the device is memory that the host cannot touch: it is mapped
// twice, where pointers say so without access, elsewhere for copies and kernels. Kernels are
// functions of shared libraries (stand_in.py compiles them), which are given device pointers only.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_IMAGE = 209, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3, ALIGNMENT = 256, MOST_BLOCKS = 1 << 20 };

// ---- memory -----------------------------------------------------------------------------------
static const size_t POOL_BYTES = (size_t)8 << 30;
static char *seen, *real;  // the pool as pointers name it, and as it can be accessed
static size_t used;

typedef struct {
  size_t start, size, room;
  int live;
} Block;
static Block* blocks;
static size_t count;

static int refuse(int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("stand-in for the GPU: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  return code;
}

static void open_pool(void) {
  if (seen) return;
  int file = memfd_create("device", 0);
  if (file < 0 || ftruncate(file, POOL_BYTES)) abort();
  seen = mmap(0, POOL_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  real = mmap(0, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  blocks = calloc(MOST_BLOCKS, sizeof *blocks);
  if (seen == MAP_FAILED || real == MAP_FAILED || !blocks) abort();
}

static int on_device(const void* pointer) {
  return seen && (const char*)pointer >= seen && (const char*)pointer < seen + POOL_BYTES;
}

// Bytes of live memory from ``pointer`` on; 0: none.
static size_t room(const void* pointer) {
  size_t place = (const char*)pointer - seen;
  for (size_t k = count; k-- > 0;)
    if (blocks[k].live && place >= blocks[k].start && place < blocks[k].start + blocks[k].size)
      return blocks[k].start + blocks[k].size - place;
  return 0;
}

static void* access_to(const void* pointer) { return real + ((const char*)pointer - seen); }

int cudaMalloc(void** pointer, size_t size) {
  open_pool();
  *pointer = 0;
  if (!size) return 0;
  size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, k = 0;
  while (k < count && (blocks[k].live || blocks[k].room != rounded)) ++k;
  if (k == count) {
    if (used + rounded > POOL_BYTES || count == MOST_BLOCKS) return OUT_OF_MEMORY;
    blocks[count++] = (Block){used, size, rounded, 0};
    used += rounded;
  }
  blocks[k].live = 1;
  blocks[k].size = size;
  memset(real + blocks[k].start, 0xC7, size);  // what was not written is no zero
  *pointer = seen + blocks[k].start;
  return 0;
}

int cudaFree(void* pointer) {
  if (!pointer) return 0;
  for (size_t k = 0; k < count; ++k)
    if (blocks[k].live && seen + blocks[k].start == pointer) return blocks[k].live = 0;
  return refuse(INVALID_VALUE, "cudaFree of what was not allocated");
}

static void* place(const void* pointer, size_t bytes, int device) {
  if (on_device(pointer) != device) return 0;
  if (!device) return (void*)pointer;
  return room(pointer) >= bytes ? access_to(pointer) : 0;
}

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  (void)stream;
  if (!bytes) return 0;
  void* target = place(to, bytes, kind != TO_HOST);
  void* source = place(from, bytes, kind != TO_DEVICE);
  if (!target || !source)
    return refuse(ILLEGAL_ADDRESS, "copy of %zu bytes of kind %d beyond memory", bytes, kind);
  memmove(target, source, bytes);
  return 0;
}

int cudaMemcpyPeerAsync(void* to, int a, const void* from, int b, size_t bytes, void* stream) {
  (void)a, (void)b;
  return cudaMemcpyAsync(to, from, bytes, ON_DEVICE, stream);
}

int cudaMallocHost(void** pointer, size_t size) {
  *pointer = malloc(size);
  return *pointer ? 0 : OUT_OF_MEMORY;
}

int cudaFreeHost(void* pointer) {
  free(pointer);
  return 0;
}

int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = POOL_BYTES - used, *total = POOL_BYTES;
  return 0;
}

// ---- kernels ----------------------------------------------------------------------------------
typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned attribute_count;
} Launch;  // CUlaunchConfig

// Given the extents of grid and block, the arguments, and how to learn of memory.
typedef int Kernel(const unsigned* extents, void* const* arguments, size_t (*room)(const void*),
                   void* (*access)(const void*));

int cuModuleLoadData(void** module, const char* path) {  // the image is the path of a library
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return *module ? 0 : refuse(NO_IMAGE, "%s", dlerror());
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  char symbol[1024];
  snprintf(symbol, sizeof symbol, "stand_in_%s", name);
  *function = dlsym(module, symbol);
  return *function ? 0 : NOT_FOUND;
}

int cuModuleUnload(void* module) { return module ? 0 : INVALID_VALUE; }

int cuFuncSetAttribute(void* function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return 0;
}

int cuLaunchKernelEx(const Launch* launch, void* function, void** arguments, void** extra) {
  (void)extra;
  const unsigned *grid = launch->grid, *block = launch->block;
  for (int k = 0; k < 3; ++k)
    if (!grid[k] || !block[k]) return refuse(INVALID_VALUE, "an empty launch");
  if (grid[0] > INT32_MAX || grid[1] > UINT16_MAX || grid[2] > UINT16_MAX ||
      block[0] * block[1] * block[2] > 1024 || launch->shared > 48 << 10)
    return refuse(INVALID_VALUE, "a launch over the limits");
  const unsigned extents[] = {grid[0], grid[1], grid[2], block[0], block[1], block[2]};
  return ((Kernel*)function)(extents, arguments, room, access_to) ? ILLEGAL_ADDRESS : 0;
}

int cuTensorMapEncodeTiled(void) { return INVALID_VALUE; }

// ---- the device, its streams and events: all is done when it is asked for ----------------------
enum { MAX_THREADS = 1, SHARED_BYTES = 8, WARP = 10, PROCESSORS = 16, MAJOR = 75, MINOR = 76 };

int cudaGetDeviceCount(int* devices) { return *devices = 1, 0; }
int cudaGetDevice(int* device) { return *device = 0; }
int cudaSetDevice(int device) { return device ? 101 : 0; }

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case MAX_THREADS: *value = 1024; break;
    case SHARED_BYTES: *value = 48 << 10; break;
    case WARP: *value = 32; break;
    case PROCESSORS: *value = 132; break;
    case MAJOR: *value = 9; break;
    case MINOR: *value = 0; break;
    default: *value = 1;
  }
  return 0;
}

int cudaGetDeviceProperties(char* name, int device) {  // the name comes first
  (void)device;
  strcpy(name, "stand-in");
  return 0;
}

int cuDeviceGetName(char* name, int length, int device) {
  (void)device;
  snprintf(name, length, "stand-in");
  return 0;
}

const char* cudaGetErrorName(int code) { return code == ILLEGAL_ADDRESS ? "illegal address" : "error"; }
const char* cudaGetErrorString(int code) { return cudaGetErrorName(code); }
int cuGetErrorName(int code, const char** name) { return *name = cudaGetErrorName(code), 0; }
int cuGetErrorString(int code, const char** name) { return *name = cudaGetErrorName(code), 0; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }

static int made(void** handle) {
  *handle = calloc(1, sizeof(struct timespec));
  return *handle ? 0 : OUT_OF_MEMORY;
}

int cudaStreamCreate(void** stream) { return made(stream); }
int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return (void)flags, made(stream); }
int cudaStreamDestroy(void* stream) { return free(stream), 0; }
int cudaStreamSynchronize(void* stream) { return (void)stream, 0; }
int cudaStreamWaitEvent(void* s, void* e, unsigned flags) { return (void)s, (void)e, (void)flags, 0; }
int cudaEventCreate(void** event) { return made(event); }
int cudaEventDestroy(void* event) { return free(event), 0; }
int cudaEventSynchronize(void* event) { return (void)event, 0; }

int cudaEventRecord(void* event, void* stream) {
  (void)stream;
  return clock_gettime(CLOCK_MONOTONIC, event);
}

int cudaEventElapsedTime(float* milliseconds, const struct timespec* from, const struct timespec* to) {
  *milliseconds = (to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) * 1e-6;
  return 0;
}

int cudaStreamBeginCapture(void* s, int mode) { return (void)s, (void)mode, INVALID_VALUE; }
int cudaStreamEndCapture(void* s, void** graph) { return (void)s, *graph = 0, INVALID_VALUE; }
int cudaGraphInstantiate(void** g, void* graph) { return (void)g, (void)graph, INVALID_VALUE; }
int cudaGraphLaunch(void* g, void* stream) { return (void)g, (void)stream, INVALID_VALUE; }
int cudaGraphDestroy(void* graph) { return (void)graph, 0; }
int cudaGraphExecDestroy(void* graph) { return (void)graph, 0; }
