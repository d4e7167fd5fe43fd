/* What a package costs when it runs: memory, loading, calls. HEADER and MODEL(name) say which. */
#define _GNU_SOURCE
#include HEADER

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 20
#define CALLS 20000

static tvmx_model *model;
static tvmx_input *inputs;
static tvmx_output *outputs;
static size_t input_count, output_count, workspace_bytes;
static void *workspace;

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(64, bytes / 64 * 64 + 64);
  if (!memory) exit(2);
  memset(memory, 0, bytes); /* resident before anything is measured, as a caller's own data is */
  return memory;
}

static long resident(void) {
  long pages = 0, unit = 0;
  char line[256];
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file))
    if (!strncmp(line, "VmRSS:", 6)) pages = atol(line + 6), unit = 1024;
  if (file) fclose(file);
  return pages * unit;
}

static void run(void) {
  if (MODEL(run)(model, inputs, input_count, outputs, output_count, workspace, workspace_bytes) !=
      TVMX_OK) {
    fprintf(stderr, "%s\n", tvmx_error());
    exit(1);
  }
}

static int nothing(int task, void *group, void *data) {
  (void)task, (void)group, (void)data;
  return 0;
}

static void call(void) { run(); }
static void region(void) { tvmx_get_launcher()(nothing, NULL, 0); }

/* Seconds of one call, in the best of some rounds. */
static double best(void (*what)(void)) {
  double least = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    double start = tvmx_seconds();
    for (int k = 0; k < CALLS; k++) what();
    double seconds = (tvmx_seconds() - start) / CALLS;
    if (seconds < least) least = seconds;
  }
  return least;
}

int main(int argc, char **argv) {
  if (argc < 4) return 3;
  tvmx_set_threads(atoi(argv[1]));
  const tvmx_tensor *given = MODEL(inputs)(&input_count), *made = MODEL(outputs)(&output_count);
  inputs = calloc(input_count + 1, sizeof *inputs);
  outputs = calloc(output_count + 1, sizeof *outputs);
  for (size_t k = 0; k < input_count; k++)
    inputs[k] = (tvmx_input){allocate(given[k].bytes), given[k].bytes};
  for (size_t k = 0; k < output_count; k++)
    outputs[k] = (tvmx_output){allocate(made[k].bytes), made[k].bytes};

  long before = resident();
  double start = tvmx_seconds();
  if (MODEL(create)(&model, *argv[2] ? argv[2] : NULL) != TVMX_OK) {
    fprintf(stderr, "%s\n", tvmx_error());
    return 1;
  }
  double create = tvmx_seconds() - start;
  workspace_bytes = MODEL(workspace_bytes)();
  workspace = aligned_alloc(64, workspace_bytes / 64 * 64 + 64);
  run();
  run();
  printf("{\"resident\": %ld, \"create\": %.9f", resident() - before, create);
  if (atoi(argv[3])) printf(", \"call\": %.9f, \"region\": %.9f", best(call), best(region));
  puts("}");
  return 0;
}
