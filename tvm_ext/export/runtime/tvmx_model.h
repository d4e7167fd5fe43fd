/* What the headers of exported models share: status codes, buffers, metadata. C11; needs tvmx.h.
 *
 * Every function that can fail returns a tvmx_status: TVMX_OK, which is 0, or what went wrong;
 * tvmx_error() then has the whole sentence. Threads may run one model at the same time, each with
 * a workspace of its own. tvmx_set_threads() in tvmx.h says how many cores one run may use.
 */
#ifndef TVMX_MODEL_H
#define TVMX_MODEL_H

#include "tvmx.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  TVMX_OK = 0,
  TVMX_NULL_ARGUMENT,       /* a pointer that must not be NULL is */
  TVMX_WRONG_MODEL,         /* the handle is of another model */
  TVMX_WRONG_COUNT,         /* more or fewer inputs or outputs than the model has */
  TVMX_WRONG_SIZE,          /* a buffer has other bytes than its tensor */
  TVMX_UNALIGNED,           /* the workspace is not at a multiple of 64, or a buffer of its element */
  TVMX_WORKSPACE_TOO_SMALL, /* fewer bytes than the model asks for, with so many threads */
  TVMX_WRONG_CPU,           /* this CPU lacks instructions that the model was built for */
  TVMX_NO_WEIGHTS,          /* the file of weights cannot be read */
  TVMX_WRONG_WEIGHTS,       /* they are of another model, or damaged */
  TVMX_NO_SUCH_SIZES,       /* the package has no code for these sizes of the symbolic dims */
  TVMX_WRONG_RUNTIME,       /* linked with the runtime of another version of tvm_ext */
  TVMX_WRONG_VALUE,         /* an operator does not allow a value, such as an index beyond an axis */
  TVMX_NO_MEMORY
} tvmx_status;

/* A short text for `status`, and the sentence for the last failure of the calling thread. */
const char *tvmx_message(tvmx_status status);
const char *tvmx_error(void);

/* An input, an output or a constant: rows are dense, the last dim runs fastest. */
typedef struct {
  const char *name;
  const char *dtype; /* as numpy names it: "float32" */
  int rank;
  const int64_t *shape; /* `rank` sizes */
  size_t bytes;
  size_t element; /* bytes of one element */
} tvmx_tensor;

typedef struct {
  const void *data;
  size_t bytes;
} tvmx_input;

typedef struct {
  void *data;
  size_t bytes;
} tvmx_output;

/* --- for the generated sources ------------------------------------------------------------ */

/* Of a runtime: another version of it, or one for a single thread, has another. */
#ifndef TVMX_VERSION
#define TVMX_VERSION 0
#endif

typedef struct {
  uint64_t bytes, sum, sum_of_sums;
} tvmx_checksum;

/* A model at one choice of sizes. */
typedef struct {
  const int64_t *sizes; /* of the symbolic dims; NULL where there are none */
  const tvmx_tensor *inputs, *outputs, *initializers;
  size_t initializer_count;
  size_t arena_bytes, scratch_bytes;
  int (*execute)(const unsigned char *weights, unsigned char *arena, void *const *inputs,
                 void *const *outputs, void (*observe)(int, double), int64_t *failed);
  const char *const *checks; /* what is told of values; \1 and \2 are those given and wanted */
} tvmx_program;

typedef struct {
  uint64_t version; /* TVMX_VERSION when it was compiled; this and the name never move */
  const char *name;
  const char *const *dims; /* the names of the symbolic dims */
  const tvmx_program *programs; /* for each level, the best first, those of all sizes */
  size_t dim_count, level_count, program_count, input_count, output_count;
  tvmx_checksum checksum;       /* of the weights */
  const unsigned char *weights; /* NULL where they are in a file */
  const char *const *const *needs; /* of each level, by LLVM's names; NULL ends them */
  int *level;                      /* the one that runs here; -1 where nobody has asked yet */
} tvmx_package;

typedef struct {
  const tvmx_package *package;
  const unsigned char *weights;
  void *file; /* mapped or read; NULL where weights are embedded */
  size_t file_bytes;
} tvmx_model;

/* The first of `needs` that this CPU lacks, or NULL; what cannot be told is taken to be there. */
const char *tvmx_cpu_lacks(const char *const *needs);

typedef enum { TVMX_INPUTS, TVMX_OUTPUTS, TVMX_INITIALIZERS } tvmx_side;

tvmx_status tvmx_create(tvmx_model **model, const tvmx_package *package, const char *weights);
void tvmx_destroy(tvmx_model *model);

/* Of the program for `sizes`; without sizes the most that any needs. 0 where there is none. */
size_t tvmx_workspace_bytes(const tvmx_package *package, const int64_t *sizes);

/* `in` and `out` have room for a pointer to each buffer. */
tvmx_status tvmx_run(const tvmx_package *package, const tvmx_model *model, const int64_t *sizes,
                     const tvmx_input *inputs, size_t input_count, void **in,
                     const tvmx_output *outputs, size_t output_count, void **out, void *workspace,
                     size_t workspace_bytes);
const tvmx_tensor *tvmx_tensors(const tvmx_package *package, const int64_t *sizes, tvmx_side side,
                                size_t *count);
void tvmx_print(const tvmx_package *package, tvmx_side side);

#ifdef __cplusplus
}
#endif
#endif
