/* See tvmx_model.h. */
#define _GNU_SOURCE
#include "tvmx_model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef __wasm__ /* which has no files to map */
#include <sys/mman.h>
#endif

#define ALIGNMENT 64

#ifdef TVMX_SINGLE_THREAD
#define THREAD_LOCAL
#else
#define THREAD_LOCAL _Thread_local
#endif

static THREAD_LOCAL char text[512];

__attribute__((format(printf, 2, 3))) static tvmx_status fail(tvmx_status status,
                                                              const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return status;
}

const char *tvmx_error(void) { return text; }

const char *tvmx_message(tvmx_status status) {
  switch (status) {
    case TVMX_OK: return "no error";
    case TVMX_NULL_ARGUMENT: return "a pointer is NULL";
    case TVMX_WRONG_MODEL: return "the handle is of another model";
    case TVMX_WRONG_COUNT: return "wrong number of inputs or outputs";
    case TVMX_WRONG_SIZE: return "a buffer of the wrong size";
    case TVMX_UNALIGNED: return "an unaligned buffer or workspace";
    case TVMX_WORKSPACE_TOO_SMALL: return "the workspace is too small";
    case TVMX_WRONG_CPU: return "this CPU lacks instructions";
    case TVMX_NO_WEIGHTS: return "the weights cannot be read";
    case TVMX_WRONG_WEIGHTS: return "the weights do not fit, or are damaged";
    case TVMX_NO_SUCH_SIZES: return "no code for these sizes";
    case TVMX_WRONG_RUNTIME: return "linked with another version of the runtime";
    case TVMX_WRONG_VALUE: return "a value that an operator does not allow";
    case TVMX_NO_MEMORY: return "out of memory";
  }
  return "unknown status";
}

/* --- weights ------------------------------------------------------------------------------ */

/* What a file of weights begins with; the weights follow at ALIGNMENT. */
typedef struct {
  char magic[8];
  tvmx_checksum checksum;
} weights_header;

static const char MAGIC[8] = "tvmx w1";

static int same(const tvmx_checksum *a, const tvmx_checksum *b) {
  return a->bytes == b->bytes && a->sum == b->sum && a->sum_of_sums == b->sum_of_sums;
}

/* `bytes` is a multiple of ALIGNMENT. */
static tvmx_checksum checksum_of(const unsigned char *data, size_t bytes) {
  tvmx_checksum result = {bytes, 0, 0};
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word;
    memcpy(&word, data + at, sizeof word);
    result.sum += word;
    result.sum_of_sums += result.sum;
  }
  return result;
}

static tvmx_status check_weights(const tvmx_model *model, const char *path) {
  const char *name = model->package->name;
  const unsigned char *file = model->file;
  weights_header header;
  if (model->file_bytes < ALIGNMENT || memcmp(file, MAGIC, sizeof MAGIC) != 0)
    return fail(TVMX_WRONG_WEIGHTS, "%s: %s is no file of weights", name, path);
  memcpy(&header, file, sizeof header);
  if (!same(&header.checksum, &model->package->checksum))
    return fail(TVMX_WRONG_WEIGHTS, "%s: %s has the weights of another model", name, path);
  if (model->file_bytes - ALIGNMENT != header.checksum.bytes)
    return fail(TVMX_WRONG_WEIGHTS, "%s: %s is truncated", name, path);
  tvmx_checksum found = checksum_of(file + ALIGNMENT, model->file_bytes - ALIGNMENT);
  if (!same(&found, &header.checksum))
    return fail(TVMX_WRONG_WEIGHTS, "%s: %s is damaged", name, path);
  return TVMX_OK;
}

#ifdef __wasm__

static void *map_file(int file, size_t bytes) {
  unsigned char *memory = aligned_alloc(ALIGNMENT, bytes / ALIGNMENT * ALIGNMENT + ALIGNMENT);
  ssize_t count = 1;
  for (size_t have = 0; memory && have < bytes && count > 0; have += (size_t)count)
    count = read(file, memory + have, bytes - have);
  if (memory && count <= 0) free(memory), memory = NULL;
  return memory;
}

static void unmap_file(void *memory, size_t bytes) { (void)bytes, free(memory); }

#else

static void *map_file(int file, size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static void unmap_file(void *memory, size_t bytes) { munmap(memory, bytes); }

#endif

static tvmx_status map_weights(tvmx_model *model, const char *path) {
  const char *name = model->package->name;
  struct stat status;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  int known = file >= 0 && fstat(file, &status) == 0;
  if (known && !S_ISREG(status.st_mode)) errno = EINVAL, known = 0;
  if (known && status.st_size > 0) {
    model->file_bytes = (size_t)status.st_size;
    model->file = map_file(file, model->file_bytes);
    known = model->file != NULL;
  }
  int reason = errno;
  if (file >= 0) close(file);
  if (!known) return fail(TVMX_NO_WEIGHTS, "%s: cannot read %s: %s", name, path, strerror(reason));
  tvmx_status result = check_weights(model, path);
  if (result == TVMX_OK) model->weights = (const unsigned char *)model->file + ALIGNMENT;
  return result;
}

/* --- models ------------------------------------------------------------------------------- */

tvmx_status tvmx_create(tvmx_model **model, const tvmx_package *package, const char *weights) {
  const char *name = package->name;
  if (!model) return fail(TVMX_NULL_ARGUMENT, "%s: no place for the model", name);
  *model = NULL;
  if (package->version != TVMX_VERSION)
    return fail(TVMX_WRONG_RUNTIME,
                "%s: linked with the runtime of a package that another version of tvm_ext, or one "
                "for a single thread, has written: link the shared libraries",
                name);
  const char *missing = tvmx_cpu_lacks(package->needs[package->level_count - 1]);
  if (missing)
    return fail(TVMX_WRONG_CPU, "%s: built for a CPU with %s, which this one lacks", name, missing);
  if (!weights && !package->weights && package->checksum.bytes > 0)
    return fail(TVMX_NO_WEIGHTS, "%s: needs the path of its file of weights", name);
  tvmx_model *made = calloc(1, sizeof *made);
  if (!made) return fail(TVMX_NO_MEMORY, "%s: out of memory", name);
  made->package = package;
  made->weights = package->weights;
  tvmx_status status = weights ? map_weights(made, weights) : TVMX_OK;
  if (status != TVMX_OK) {
    tvmx_destroy(made);
    return status;
  }
  tvmx_start(); /* no run allocates the pool */
  *model = made;
  return TVMX_OK;
}

void tvmx_destroy(tvmx_model *model) {
  if (!model) return;
  if (model->file) unmap_file(model->file, model->file_bytes);
  free(model);
}

/* The programs of the best level that this CPU runs; of the least where it runs none. */
static const tvmx_program *programs_of(const tvmx_package *package) {
  int level = __atomic_load_n(package->level, __ATOMIC_RELAXED);
  if (level < 0) {
    level = 0;
    while (level + 1 < (int)package->level_count && tvmx_cpu_lacks(package->needs[level])) level++;
    __atomic_store_n(package->level, level, __ATOMIC_RELAXED);
  }
  return package->programs + (size_t)level * package->program_count;
}

/* --- sizes -------------------------------------------------------------------------------- */

/* Puts "batch = 4, length = 7" at `at` of the text; where that ends. */
static size_t describe(size_t at, const tvmx_package *package, const int64_t *sizes) {
  for (size_t dim = 0; dim < package->dim_count && at < sizeof text; dim++) {
    const char *comma = dim ? ", " : "";
    int wrote = snprintf(text + at, sizeof text - at, "%s%s = %" PRId64, comma, package->dims[dim],
                         sizes[dim]);
    if (wrote > 0) at += (size_t)wrote;
  }
  return at < sizeof text ? at : sizeof text - 1;
}

static tvmx_status refuse(const tvmx_package *package, const int64_t *sizes) {
  if (!sizes)
    return fail(TVMX_NULL_ARGUMENT, "%s: the sizes of symbolic dims are NULL", package->name);
  fail(TVMX_NO_SUCH_SIZES, "%s: no code for ", package->name);
  size_t at = describe(strlen(text), package, sizes);
  for (size_t k = 0; k < package->program_count; k++) {
    snprintf(text + at, sizeof text - at, "%s", k ? "; " : ", only for ");
    at = describe(strlen(text), package, package->programs[k].sizes);
  }
  return TVMX_NO_SUCH_SIZES;
}

/* The program for `sizes`, or NULL. */
static const tvmx_program *find(const tvmx_package *package, const int64_t *sizes) {
  size_t bytes = package->dim_count * sizeof *sizes;
  const tvmx_program *programs = programs_of(package);
  if (bytes == 0) return programs;
  for (size_t k = 0; sizes && k < package->program_count; k++)
    if (memcmp(programs[k].sizes, sizes, bytes) == 0) return &programs[k];
  return NULL;
}

static size_t workspace_of(const tvmx_program *program, int threads) {
  return program->arena_bytes + program->scratch_bytes * (size_t)threads;
}

size_t tvmx_workspace_bytes(const tvmx_package *package, const int64_t *sizes) {
  int threads = tvmx_threads();
  const tvmx_program *program = find(package, sizes);
  if (program) return workspace_of(program, threads);
  size_t most = 0;
  if (sizes) refuse(package, sizes);
  for (size_t k = 0; !sizes && k < package->program_count; k++) {
    size_t bytes = workspace_of(&programs_of(package)[k], threads);
    if (bytes > most) most = bytes;
  }
  return most;
}

/* --- runs --------------------------------------------------------------------------------- */

static tvmx_status check_buffer(const char *name, const char *side, const tvmx_tensor *tensor,
                                const void *data, size_t bytes) {
  if (bytes != tensor->bytes)
    return fail(TVMX_WRONG_SIZE, "%s: %s %s has %zu bytes, needs %zu", name, side, tensor->name,
                bytes, tensor->bytes);
  if (!data && bytes > 0)
    return fail(TVMX_NULL_ARGUMENT, "%s: %s %s is NULL", name, side, tensor->name);
  if ((uintptr_t)data % tensor->element != 0)
    return fail(TVMX_UNALIGNED, "%s: %s %s is not aligned to its elements of %zu bytes", name, side,
                tensor->name, tensor->element);
  return TVMX_OK;
}

static tvmx_status check_workspace(const char *name, size_t needed, const void *memory,
                                   size_t bytes, int threads) {
  if (bytes < needed)
    return fail(TVMX_WORKSPACE_TOO_SMALL, "%s: the workspace has %zu bytes, needs %zu on %d threads",
                name, bytes, needed, threads);
  if (!memory && needed > 0)
    return fail(TVMX_NULL_ARGUMENT, "%s: the workspace is NULL", name);
  if ((uintptr_t)memory % ALIGNMENT != 0)
    return fail(TVMX_UNALIGNED, "%s: the workspace is not at a multiple of %d", name, ALIGNMENT);
  return TVMX_OK;
}

static tvmx_status check_handle(const tvmx_package *package, const tvmx_model *model) {
  if (!model)
    return fail(TVMX_NULL_ARGUMENT, "%s: the model is NULL: create it first", package->name);
  if (model->package != package)
    return fail(TVMX_WRONG_MODEL, "%s: the handle is of %s", package->name, model->package->name);
  return TVMX_OK;
}

static tvmx_status check_counts(const tvmx_package *package, const tvmx_input *inputs,
                                size_t input_count, const tvmx_output *outputs,
                                size_t output_count) {
  if (input_count != package->input_count || output_count != package->output_count)
    return fail(TVMX_WRONG_COUNT, "%s: %zu inputs and %zu outputs given, the model has %zu and %zu",
                package->name, input_count, output_count, package->input_count,
                package->output_count);
  if ((!inputs && input_count > 0) || (!outputs && output_count > 0))
    return fail(TVMX_NULL_ARGUMENT, "%s: the inputs or the outputs are NULL", package->name);
  return TVMX_OK;
}

/* `failed`: the check that fails, counted from 1, and the numbers given and wanted. */
static tvmx_status refuse_value(const char *name, const char *const *checks,
                                const int64_t *failed) {
  fail(TVMX_WRONG_VALUE, "%s: ", name);
  size_t at = strlen(text);
  for (const char *next = checks[failed[0] - 1]; *next && at + 24 < sizeof text; next++) {
    if (*next == 1 || *next == 2)
      at += (size_t)snprintf(text + at, sizeof text - at, "%" PRId64, failed[(size_t)*next]);
    else
      text[at++] = *next, text[at] = 0;
  }
  return TVMX_WRONG_VALUE;
}

tvmx_status tvmx_run(const tvmx_package *package, const tvmx_model *model, const int64_t *sizes,
                     const tvmx_input *inputs, size_t input_count, void **in,
                     const tvmx_output *outputs, size_t output_count, void **out, void *workspace,
                     size_t workspace_bytes) {
  const char *name = package->name;
  tvmx_status status = check_handle(package, model);
  if (status == TVMX_OK)
    status = check_counts(package, inputs, input_count, outputs, output_count);
  if (status != TVMX_OK) return status;
  const tvmx_program *program = find(package, sizes);
  if (!program) return refuse(package, sizes);
  for (size_t k = 0; k < input_count && status == TVMX_OK; k++) {
    status = check_buffer(name, "input", &program->inputs[k], inputs[k].data, inputs[k].bytes);
    in[k] = (void *)(uintptr_t)inputs[k].data;
  }
  for (size_t k = 0; k < output_count && status == TVMX_OK; k++) {
    status = check_buffer(name, "output", &program->outputs[k], outputs[k].data, outputs[k].bytes);
    out[k] = outputs[k].data;
  }
  int threads = tvmx_threads();
  size_t needed = workspace_of(program, threads);
  if (status == TVMX_OK)
    status = check_workspace(name, needed, workspace, workspace_bytes, threads);
  if (status != TVMX_OK) return status;
  int lends = program->scratch_bytes > 0;
  if (lends)
    tvmx_lend((unsigned char *)workspace + program->arena_bytes, program->scratch_bytes, threads);
  int64_t failed[3] = {0, 0, 0};
  int code = program->execute(model->weights, workspace, in, out, NULL, failed);
  if (lends) tvmx_lend(NULL, 0, 0);
  if (failed[0]) return refuse_value(name, program->checks, failed);
  if (code != 0)
    return fail(TVMX_NO_MEMORY, "%s: a kernel returned %d: out of memory", name, code);
  return TVMX_OK;
}

/* --- metadata ----------------------------------------------------------------------------- */

static const tvmx_tensor *tensors_of(const tvmx_package *package, const tvmx_program *program,
                                     tvmx_side side, size_t *count) {
  switch (side) {
    case TVMX_INPUTS: *count = package->input_count; return program->inputs;
    case TVMX_OUTPUTS: *count = package->output_count; return program->outputs;
    case TVMX_INITIALIZERS: break;
  }
  *count = program->initializer_count;
  return program->initializers;
}

const tvmx_tensor *tvmx_tensors(const tvmx_package *package, const int64_t *sizes, tvmx_side side,
                                size_t *count) {
  const tvmx_program *program = find(package, sizes);
  size_t found = 0;
  const tvmx_tensor *tensors = NULL;
  if (program)
    tensors = tensors_of(package, program, side, &found);
  else
    refuse(package, sizes);
  if (count) *count = found;
  return tensors;
}

static void print_tensor(const tvmx_tensor *tensor) {
  printf("%s  %s[", tensor->name, tensor->dtype);
  for (int axis = 0; axis < tensor->rank; axis++)
    printf("%s%" PRId64, axis ? ", " : "", tensor->shape[axis]);
  printf("]\n");
}

void tvmx_print(const tvmx_package *package, tvmx_side side) {
  for (size_t k = 0; k < package->program_count; k++) {
    const tvmx_program *program = &programs_of(package)[k];
    size_t count;
    const tvmx_tensor *tensors = tensors_of(package, program, side, &count);
    for (size_t dim = 0; dim < package->dim_count; dim++)
      printf("%s%s = %" PRId64 "%s", dim ? ", " : "", package->dims[dim], program->sizes[dim],
             dim + 1 == package->dim_count ? ":\n" : "");
    for (const tvmx_tensor *tensor = tensors; tensor < tensors + count; tensor++)
      print_tensor(tensor);
  }
}
