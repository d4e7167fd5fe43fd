#include "driver.h"

#include <pthread.h>
#include <stdio.h>

static npu_device *npu_shared;
static pthread_mutex_t npu_door = PTHREAD_MUTEX_INITIALIZER;

static int npu_write_blocks(const npu_block *blocks, size_t count) {
  int code = NPU_OK;
  for (size_t k = 0; k < count && code == NPU_OK; k++)
    code = npu_write(npu_shared, blocks[k].address, blocks[k].host, blocks[k].count);
  return code;
}

static int npu_read_blocks(const npu_block *blocks, size_t count) {
  int code = NPU_OK;
  for (size_t k = 0; k < count && code == NPU_OK; k++)
    code = npu_read(npu_shared, blocks[k].address, blocks[k].host, blocks[k].count);
  return code;
}

static int npu_run_alone(const npu_region *region, int *ready) {
  const npu_block *inputs = region->blocks + region->weights;
  int code = *ready ? NPU_OK : npu_write_blocks(region->blocks, region->weights);
  *ready = code == NPU_OK;
  if (code == NPU_OK) code = npu_write_blocks(inputs, region->inputs);
  if (code == NPU_OK) code = npu_submit(npu_shared, region->commands, region->command_count);
  if (code == NPU_OK) code = npu_read_blocks(inputs + region->inputs, region->outputs);
  return code;
}

int npu_run(const npu_region *region, size_t dram, size_t scratchpad, int *ready) {
  int code = NPU_NO_MEMORY;
  pthread_mutex_lock(&npu_door);
  if (!npu_shared) npu_shared = npu_open(dram, scratchpad);
  if (npu_shared) code = npu_run_alone(region, ready);
  if (code != NPU_OK)
    fprintf(stderr, "npu: %s\n", npu_shared ? npu_error(npu_shared) : "no memory for the device");
  pthread_mutex_unlock(&npu_door);
  return code;
}
