/* What compiled models need at run time: threads and scratch memory. C11; libc and pthreads.
 *
 * Kernels split their loops over a pool of threads, which all models of a process share. The
 * pool starts with the first parallel loop; idle threads spin for a while, then sleep.
 * Define TVMX_SINGLE_THREAD to build without pthreads: every loop then runs in the caller, and
 * only one thread at a time may call.
 *
 * What no function has set comes from the environment, where that has it: TVMX_THREADS=4,
 * TVMX_SPIN=0, TVMX_AFFINITY=0-3,8. What cannot be read there counts as not set.
 */
#ifndef TVMX_H
#define TVMX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Let parallel loops use `count` threads, the caller included; 0: one per usable core.
 * Returns 0, or -1 where a negative count is asked for. Not from within a kernel. */
int tvmx_set_threads(int count);

/* How many threads parallel loops use. */
int tvmx_threads(void);

/* How often an idle thread looks for work before it sleeps (default 20000, some 0.2 ms). */
void tvmx_set_spin(int looks);

/* Bind the threads of the pool to cores: number k to cores[k % count]. Number 0 is the caller of a
 * loop, which stays where its owner wants it; no cores: the system places all. Linux only, nothing
 * happens elsewhere. Returns 0, or -1 where a number is no core's. Not from within a kernel. */
int tvmx_set_affinity(const int *cores, size_t count);

/* Start the pool now, not with the first parallel loop. */
void tvmx_start(void);

/* Scratch memory for the kernels that this thread runs: `bytes`, a multiple of 64, for each of
 * `shares` threads of its parallel loops, itself the first, at a multiple of 64. Kernels allocate
 * what is not lent, once per thread. NULL ends the loan. */
void tvmx_lend(void *memory, size_t bytes, int shares);

/* The function that parallel loops of this library are launched by, and another in its place.
 * Libraries that a program is linked with share one pool. Those that it opens by dlopen() with
 * RTLD_LOCAL have one each, unless the launcher of one is given to the others before they run;
 * let all have the same number of threads then. */
typedef int (*tvmx_launcher)(int (*body)(int, void *, void *), void *data, int tasks);
tvmx_launcher tvmx_get_launcher(void);
void tvmx_set_launcher(tvmx_launcher launcher);

/* Kernels call it: whether the next parallel loop of this thread runs in it alone, as little work
 * does sooner. Returns 0. */
int tvmx_alone(int yes);

/* For kernels that TVM runs: what their parallel loops call, and tvmx_alone() as it calls
 * functions. */
tvmx_launcher tvmx_get_region(void);
int tvmx_packed_alone(void *self, const void *arguments, int32_t count, void *result);

/* Seconds of a monotonic clock. */
double tvmx_seconds(void);

#ifdef __cplusplus
}
#endif
#endif
