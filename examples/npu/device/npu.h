/* A small accelerator, simulated: its own DRAM, a scratchpad, a convolution unit, a list of
   commands that run in order. Every number is a float32; every address and count is in floats.

   The units see the scratchpad only: LOAD brings a block there, STORE takes one back. */

#ifndef NPU_H
#define NPU_H

#include <stddef.h>
#include <stdint.h>

enum { NPU_MAX_KERNEL = 11, NPU_MAX_STRIDE = 4 };

enum npu_opcode { NPU_LOAD, NPU_STORE, NPU_CONV, NPU_POOL, NPU_ADD, NPU_OPCODES };

/* What CONV and ADD do on the way: CONV adds the bias, adds to what its output holds already;
   both replace what is negative by zero, last of all. */
enum npu_flag { NPU_BIAS = 1, NPU_ACCUMULATE = 2, NPU_RELU = 4 };

enum npu_code { NPU_OK, NPU_NO_MEMORY, NPU_ILLEGAL };

/* LOAD and STORE: count[0] planes of count[1] rows of count[2] floats; the strides lead from
   plane to plane and from row to row. */
typedef struct {
  uint32_t dram, local, count[3], dram_stride[2], local_stride[2];
} npu_copy;

/* CONV and POOL on dense tiles: input [channels][height][width], output [filters][rows][columns]
   (POOL: filters = channels), weight [filters][channels][kernel...], bias [filters]. Output (0, 0)
   sees input from (-pad[0], -pad[1]) on; outside of the tile CONV reads zero, POOL nothing. */
typedef struct {
  uint32_t input, weight, bias, output;
  uint32_t channels, height, width, filters, rows, columns;
  uint32_t kernel[2], stride[2], pad[2];
} npu_window;

/* ADD: output[i] = a[i] + b[i]; the output may be one of them. */
typedef struct {
  uint32_t a, b, output, count;
} npu_sum;

typedef struct {
  uint32_t opcode, flags;
  union {
    npu_copy copy;
    npu_window window;
    npu_sum sum;
  };
} npu_command;

/* Cycles are a model: 8 x 8 multiply-adds, 8 lanes for POOL and ADD, 4 floats of DRAM per cycle
   and 32 cycles until a transfer begins; units take turns. */
typedef struct {
  uint64_t commands[NPU_OPCODES], cycles[NPU_OPCODES], loaded, stored, multiply_adds;
} npu_statistics;

typedef struct npu_device npu_device;

/* A device with so much DRAM and scratchpad, all zero; NULL where there is no memory for it. */
npu_device *npu_open(size_t dram, size_t scratchpad);
void npu_close(npu_device *device);

/* The host's side of the DRAM. They return an npu_code. */
int npu_write(npu_device *device, size_t address, const float *from, size_t count);
int npu_read(npu_device *device, size_t address, float *to, size_t count);

/* Judge commands, and add what they cost to `cost`, without running them. Returns an npu_code. */
int npu_check(npu_device *device, const npu_command *commands, size_t count, npu_statistics *cost);

/* Run commands in order; none runs where one is illegal. Returns an npu_code. */
int npu_submit(npu_device *device, const npu_command *commands, size_t count);

/* What was wrong in the last call that did not return NPU_OK. */
const char *npu_error(const npu_device *device);

const npu_statistics *npu_get_statistics(const npu_device *device);

#endif
