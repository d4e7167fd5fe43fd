#include "npu.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct npu_device {
  float *dram, *scratchpad;
  size_t dram_size, scratchpad_size;
  npu_statistics statistics;
  char error[160];
};

static const char *const names[NPU_OPCODES] = {"LOAD", "STORE", "CONV", "POOL", "ADD"};

npu_device *npu_open(size_t dram, size_t scratchpad) {
  npu_device *device = calloc(1, sizeof *device);
  if (!device) return NULL;
  device->dram_size = dram;
  device->scratchpad_size = scratchpad;
  device->dram = calloc(dram ? dram : 1, sizeof(float));
  device->scratchpad = calloc(scratchpad ? scratchpad : 1, sizeof(float));
  if (device->dram && device->scratchpad) return device;
  npu_close(device);
  return NULL;
}

void npu_close(npu_device *device) {
  if (!device) return;
  free(device->dram);
  free(device->scratchpad);
  free(device);
}

const char *npu_error(const npu_device *device) { return device->error; }

const npu_statistics *npu_get_statistics(const npu_device *device) { return &device->statistics; }

static int fail(npu_device *device, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(device->error, sizeof device->error, format, arguments);
  va_end(arguments);
  return NPU_ILLEGAL;
}

/* --- the host's side ---------------------------------------------------------------------- */

static int in_dram(npu_device *device, const char *what, size_t address, size_t count) {
  if (address <= device->dram_size && count <= device->dram_size - address) return NPU_OK;
  return fail(device, "%s: %zu floats at %zu leave the DRAM of %zu", what, count, address,
              device->dram_size);
}

int npu_write(npu_device *device, size_t address, const float *from, size_t count) {
  int code = in_dram(device, "write", address, count);
  if (code == NPU_OK) memcpy(device->dram + address, from, count * sizeof *from);
  return code;
}

int npu_read(npu_device *device, size_t address, float *to, size_t count) {
  int code = in_dram(device, "read", address, count);
  if (code == NPU_OK) memcpy(to, device->dram + address, count * sizeof *to);
  return code;
}

/* --- what is legal ------------------------------------------------------------------------ */

/* A block of floats that a command touches; `count` saturates, so that it is never too small. */
typedef struct {
  const char *name;
  uint64_t begin, count;
} block;

static uint64_t times(uint64_t a, uint64_t b) {
  return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* The floats from the first to the last of a copy. */
static uint64_t span(const uint32_t count[3], const uint32_t stride[2]) {
  uint64_t rows = (uint64_t)(count[1] - 1) * stride[1] + count[2];
  return plus((uint64_t)(count[0] - 1) * stride[0], rows);
}

static int inside(npu_device *device, const char *where, block b, uint64_t size) {
  if (b.begin <= size && b.count <= size - b.begin) return NPU_OK;
  return fail(device, "%s of %llu floats at %llu leaves the %s of %llu", b.name,
              (unsigned long long)b.count, (unsigned long long)b.begin, where,
              (unsigned long long)size);
}

static int overlap(block a, block b) {
  return a.begin < b.begin + b.count && b.begin < a.begin + a.count;
}

static int any_zero(const uint32_t *values, int count) {
  int found = 0;
  for (int k = 0; k < count; k++) found |= !values[k];
  return found;
}

static int check_copy(npu_device *device, const npu_copy *c, int load) {
  if (any_zero(c->count, 3)) return fail(device, "a count is zero");
  const uint32_t *written = load ? c->local_stride : c->dram_stride;
  if ((c->count[1] > 1 && written[1] < c->count[2]) ||
      (c->count[0] > 1 && written[0] < (uint64_t)(c->count[1] - 1) * written[1] + c->count[2]))
    return fail(device, "what it writes overlaps itself");
  block dram = {"block", c->dram, span(c->count, c->dram_stride)};
  block local = {"block", c->local, span(c->count, c->local_stride)};
  int code = inside(device, "DRAM", dram, device->dram_size);
  return code ? code : inside(device, "scratchpad", local, device->scratchpad_size);
}

static int check_window(npu_device *device, const npu_command *command) {
  const npu_window *w = &command->window;
  int conv = command->opcode == NPU_CONV;
  const uint32_t sizes[] = {w->channels, w->height, w->width, w->filters, w->rows, w->columns};
  if (any_zero(sizes, 6)) return fail(device, "a size is zero");
  for (int k = 0; k < 2; k++) {
    if (w->kernel[k] - 1 >= NPU_MAX_KERNEL) return fail(device, "no kernel of %u", w->kernel[k]);
    if (w->stride[k] - 1 >= NPU_MAX_STRIDE) return fail(device, "no stride of %u", w->stride[k]);
    if (w->pad[k] >= w->kernel[k]) return fail(device, "pad %u hides the kernel", w->pad[k]);
  }
  if (!conv && w->filters != w->channels) return fail(device, "filters differ from channels");
  if (!conv && command->flags) return fail(device, "POOL has no flags");
  uint64_t window = (uint64_t)w->kernel[0] * w->kernel[1];
  block output = {"output", w->output, times(w->filters, (uint64_t)w->rows * w->columns)};
  block reads[] = {
      {"input", w->input, times(w->channels, (uint64_t)w->height * w->width)},
      {"weight", w->weight, conv ? times((uint64_t)w->filters * w->channels, window) : 0},
      {"bias", w->bias, command->flags & NPU_BIAS ? w->filters : 0},
  };
  int code = inside(device, "scratchpad", output, device->scratchpad_size);
  for (int k = 0; k < 3 && !code; k++) {
    if (!reads[k].count) continue;
    code = inside(device, "scratchpad", reads[k], device->scratchpad_size);
    if (!code && overlap(output, reads[k]))
      code = fail(device, "output overlaps %s", reads[k].name);
  }
  return code;
}

static int check_sum(npu_device *device, const npu_command *command) {
  const npu_sum *s = &command->sum;
  if (!s->count) return fail(device, "the count is zero");
  if (command->flags & ~NPU_RELU) return fail(device, "ADD knows no flag but RELU");
  block output = {"output", s->output, s->count};
  block reads[] = {{"a", s->a, s->count}, {"b", s->b, s->count}};
  int code = inside(device, "scratchpad", output, device->scratchpad_size);
  for (int k = 0; k < 2 && !code; k++) {
    code = inside(device, "scratchpad", reads[k], device->scratchpad_size);
    if (!code && reads[k].begin != output.begin && overlap(output, reads[k]))
      code = fail(device, "output overlaps a part of %s", reads[k].name);
  }
  return code;
}

static int check(npu_device *device, const npu_command *command) {
  switch (command->opcode) {
    case NPU_LOAD: return check_copy(device, &command->copy, 1);
    case NPU_STORE: return check_copy(device, &command->copy, 0);
    case NPU_CONV:
    case NPU_POOL: return check_window(device, command);
    case NPU_ADD: return check_sum(device, command);
    default: return fail(device, "no such opcode: %u", command->opcode);
  }
}

/* --- what the units do -------------------------------------------------------------------- */

static void copy(npu_device *device, const npu_copy *c, int load) {
  for (uint32_t plane = 0; plane < c->count[0]; plane++)
    for (uint32_t row = 0; row < c->count[1]; row++) {
      float *dram = device->dram + c->dram + (size_t)plane * c->dram_stride[0] +
                    (size_t)row * c->dram_stride[1];
      float *local = device->scratchpad + c->local + (size_t)plane * c->local_stride[0] +
                     (size_t)row * c->local_stride[1];
      memcpy(load ? local : dram, load ? dram : local, c->count[2] * sizeof(float));
    }
}

/* One output of a window: the sum of products with `weight`, or without one the maximum. */
static float see(const npu_window *w, const float *input, const float *weight, uint32_t channel,
                 int64_t top, int64_t left, float value) {
  const float *plane = input + (size_t)channel * w->height * w->width;
  for (uint32_t i = 0; i < w->kernel[0]; i++)
    for (uint32_t j = 0; j < w->kernel[1]; j++) {
      int64_t y = top + i, x = left + j;
      if (y < 0 || y >= w->height || x < 0 || x >= w->width) continue;
      float seen = plane[y * w->width + x];
      if (weight)
        value += seen * weight[i * w->kernel[1] + j];
      else if (seen > value || seen != seen) /* a NaN stays */
        value = seen;
    }
  return value;
}

static float rectified(float value) { return value < 0 ? 0 : value; }

static void window(npu_device *device, const npu_command *command) {
  const npu_window *w = &command->window;
  const float *input = device->scratchpad + w->input, *weight = device->scratchpad + w->weight;
  const float *bias = device->scratchpad + w->bias;
  float *output = device->scratchpad + w->output;
  size_t taps = (size_t)w->kernel[0] * w->kernel[1];
  for (uint32_t f = 0; f < w->filters; f++)
    for (uint32_t y = 0; y < w->rows; y++)
      for (uint32_t x = 0; x < w->columns; x++, output++) {
        int64_t top = (int64_t)y * w->stride[0] - w->pad[0];
        int64_t left = (int64_t)x * w->stride[1] - w->pad[1];
        if (command->opcode == NPU_POOL) {
          *output = see(w, input, NULL, f, top, left, -INFINITY);
          continue;
        }
        float sum = command->flags & NPU_ACCUMULATE ? *output : 0;
        if (command->flags & NPU_BIAS) sum += bias[f];
        for (uint32_t c = 0; c < w->channels; c++)
          sum = see(w, input, weight + (f * (size_t)w->channels + c) * taps, c, top, left, sum);
        *output = command->flags & NPU_RELU ? rectified(sum) : sum;
      }
}

static void add(npu_device *device, const npu_command *command) {
  const npu_sum *s = &command->sum;
  float *pad = device->scratchpad;
  for (uint32_t k = 0; k < s->count; k++) {
    float sum = pad[s->a + k] + pad[s->b + k];
    pad[s->output + k] = command->flags & NPU_RELU ? rectified(sum) : sum;
  }
}

static uint64_t rounds(uint64_t count, uint64_t lanes) { return (count + lanes - 1) / lanes; }

/* Count the command; its cycles by the model in npu.h. */
static void account(npu_statistics *total, const npu_command *command) {
  const npu_window *w = &command->window;
  const uint32_t *count = command->copy.count;
  uint64_t cycles = 0, moved = (uint64_t)count[0] * count[1] * count[2];
  uint64_t taps = (uint64_t)w->rows * w->columns * w->kernel[0] * w->kernel[1];
  switch (command->opcode) {
    case NPU_LOAD: cycles = 32 + rounds(moved, 4), total->loaded += moved; break;
    case NPU_STORE: cycles = 32 + rounds(moved, 4), total->stored += moved; break;
    case NPU_CONV:
      cycles = taps * rounds(w->filters, 8) * rounds(w->channels, 8);
      total->multiply_adds += taps * w->filters * w->channels;
      break;
    case NPU_POOL: cycles = taps * rounds(w->channels, 8); break;
    case NPU_ADD: cycles = rounds(command->sum.count, 8); break;
  }
  total->commands[command->opcode]++;
  total->cycles[command->opcode] += cycles;
}

static void run(npu_device *device, const npu_command *command) {
  switch (command->opcode) {
    case NPU_LOAD: copy(device, &command->copy, 1); break;
    case NPU_STORE: copy(device, &command->copy, 0); break;
    case NPU_CONV:
    case NPU_POOL: window(device, command); break;
    case NPU_ADD: add(device, command); break;
  }
}

int npu_check(npu_device *device, const npu_command *commands, size_t count, npu_statistics *cost) {
  for (size_t k = 0; k < count; k++) {
    int code = check(device, &commands[k]);
    if (code != NPU_OK) {
      char reason[sizeof device->error];
      memcpy(reason, device->error, sizeof reason);
      const char *name = commands[k].opcode < NPU_OPCODES ? names[commands[k].opcode] : "?";
      snprintf(device->error, sizeof device->error, "command %zu (%s): %.120s", k, name, reason);
      return code;
    }
  }
  for (size_t k = 0; k < count; k++) account(cost, &commands[k]);
  return NPU_OK;
}

int npu_submit(npu_device *device, const npu_command *commands, size_t count) {
  int code = npu_check(device, commands, count, &device->statistics);
  if (code != NPU_OK) return code;
  for (size_t k = 0; k < count; k++) run(device, &commands[k]);
  return NPU_OK;
}
