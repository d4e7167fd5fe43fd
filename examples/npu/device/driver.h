/* The host's side: what a compiled model links to use the device. */

#ifndef NPU_DRIVER_H
#define NPU_DRIVER_H

#include "npu.h"

/* `count` floats at `host` belong at `address` of the DRAM. */
typedef struct {
  size_t address, count;
  float *host;
} npu_block;

/* Commands, and what is written before (weights once, inputs each time) and read after them:
   `blocks` are weights, inputs, outputs, in this order. */
typedef struct {
  const npu_command *commands;
  size_t command_count;
  const npu_block *blocks;
  size_t weights, inputs, outputs;
} npu_region;

/* Run a region on the one device of this library, which is opened by the first call with so much
   memory. `ready` tells whether the weights are there. Threads wait for each other. Returns an
   npu_code; stderr says what was wrong. */
int npu_run(const npu_region *region, size_t dram, size_t scratchpad, int *ready);

#endif
