/* See tvmx.h. The names __TVMBackend* are those by which compiled kernels ask for services. */
#define _GNU_SOURCE
#include "tvmx.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*region_body)(int task, void *group, void *data);

/* What a body reads of its region: kernels know this layout. */
typedef struct {
  void *sync;
  int32_t tasks;
} task_group;

double tvmx_seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
#if defined(CLOCK_MONOTONIC)
  clock_gettime(CLOCK_MONOTONIC, &now);
#endif
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#ifdef TVMX_SINGLE_THREAD
#define THREAD_LOCAL
#else
#define THREAD_LOCAL _Thread_local
#endif

/* Scratch memory that a caller lends its regions: `bytes` for each of `shares` tasks. */
typedef struct {
  unsigned char *memory;
  size_t bytes;
  int shares;
} loan;

typedef struct {
  unsigned char *next, *end;
} span;

static THREAD_LOCAL loan lent;
static THREAD_LOCAL span share; /* of this thread, what is left */

static span share_of(const loan *from, int task) {
  span none = {NULL, NULL};
  if (task >= from->shares) return none;
  span given = {from->memory + (size_t)task * from->bytes, NULL};
  given.end = given.next + from->bytes;
  return given;
}

void tvmx_lend(void *memory, size_t bytes, int shares) {
  loan none = {NULL, 0, 0}, given = {memory, bytes, shares};
  lent = memory ? given : none;
  share = share_of(&lent, 0);
}

/* A region of a kernel, and what its caller lends. The launcher may be another library's, whose
 * threads know nothing of loans: each task takes its share by itself. Task 0 is the caller's, or
 * that of a thread that goes on with what it has. */
typedef struct {
  region_body body;
  void *data;
  loan lent;
} region;

static int in_share(int task, void *group, void *data) {
  const region *whole = data;
  const loan none = {NULL, 0, 0}, own = lent;
  const span before = share;
  if (task > 0) share = share_of(&whole->lent, task);
  lent = none; /* a region within this one has no shares: others use them */
  int code = whole->body(task, group, whole->data);
  lent = own;
  share = before;
  return code;
}

static int run_tasks(region_body body, void *data, int first, int step, int tasks) {
  task_group group = {NULL, tasks};
  int result = 0;
  for (int task = first; task < tasks; task += step) {
    int code = body(task, &group, data);
    if (code != 0) result = code;
  }
  return result;
}

#ifdef TVMX_SINGLE_THREAD

int tvmx_set_threads(int count) { return count < 0 ? -1 : 0; }
int tvmx_threads(void) { return 1; }
int tvmx_set_affinity(const int *cores, size_t count) { return (void)cores, (void)count, 0; }
void tvmx_set_spin(int looks) { (void)looks; }
void tvmx_start(void) {}
static void release_at_thread_exit(void) {}

static int launch(region_body body, void *data, int tasks) {
  return run_tasks(body, data, 0, 1, tasks > 0 ? tasks : 1);
}

#else

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define MAX_WORKERS 255
#define SPIN 20000

typedef struct {
  pthread_t thread;
  int index; /* which share of each region is this worker's; the caller has share 0 */
  unsigned seen; /* the last region that it knows */
  atomic_uint taken; /* the last region whose share somebody runs or ran */
} worker;

static struct {
  pthread_mutex_t region; /* held by the caller of the running region, or by a change of size */
  pthread_mutex_t door;   /* guards sleeping and waking */
  pthread_cond_t wake, done;
  atomic_uint generation; /* counts regions: workers wait for it to change */
  atomic_int pending;     /* workers' shares of the region that are not finished */
  atomic_int sleepers;
  atomic_int caller_sleeps;
  atomic_int spin;
  atomic_int failure;
  atomic_int wanted; /* threads asked for; 0: one per usable core */
  atomic_int affine; /* how many cores were given; negative: nobody has said */
  int cores[MAX_WORKERS + 1];
  int moved;         /* the cores are not yet those of the workers */
  atomic_int bound;  /* workers that are where they belong */
  int started;       /* workers that run */
  atomic_int stopping;
  worker workers[MAX_WORKERS];
  region_body body;
  void *data;
  int tasks;
} pool = {
    .region = PTHREAD_MUTEX_INITIALIZER,
    .door = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
    .spin = -1,
    .affine = -1,
};

static THREAD_LOCAL int inside; /* this thread runs a region: one within it runs here alone */

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

/* The number in `text`, or -1; `end` gets where it ends. */
static int number(const char *text, const char **end) {
  int value = 0, digits = 0; /* strtol() of new C libraries has a name that others lack */
  for (; text[digits] >= '0' && text[digits] <= '9'; digits++) {
    if (value > (INT_MAX - 9) / 10) return -1;
    value = 10 * value + (text[digits] - '0');
  }
  *end = text + digits;
  return digits ? value : -1;
}

/* A variable of the environment that is a number alone, or `otherwise`. */
static int setting(const char *name, int otherwise) {
  const char *end = NULL;
  const char *text = getenv(name);
  int value = text ? number(text, &end) : -1;
  return value < 0 || *end ? otherwise : value;
}

static int spin(void) {
  int looks = atomic_load_explicit(&pool.spin, memory_order_relaxed);
  if (looks < 0) {
    looks = setting("TVMX_SPIN", SPIN);
    atomic_store(&pool.spin, looks);
  }
  return looks;
}

static unsigned await_region(unsigned seen) {
  int looks = spin();
  for (int look = 0; look < looks; look++) {
    unsigned now = atomic_load_explicit(&pool.generation, memory_order_acquire);
    if (now != seen) return now;
    pause_briefly();
  }
  pthread_mutex_lock(&pool.door);
  atomic_fetch_add(&pool.sleepers, 1);
  while (atomic_load(&pool.generation) == seen) pthread_cond_wait(&pool.wake, &pool.door);
  atomic_fetch_sub(&pool.sleepers, 1);
  pthread_mutex_unlock(&pool.door);
  return atomic_load(&pool.generation);
}

/* Where the system refuses a core, the thread stays where it is. */
static void bind_to_core(int thread) {
  int count = atomic_load(&pool.affine);
#if defined(__linux__) && defined(CPU_SET)
  if (count > 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)pool.cores[thread % count], &set);
    sched_setaffinity(0, sizeof set, &set);
  }
#else
  (void)thread, (void)count;
#endif
  atomic_fetch_add(&pool.bound, 1);
}

/* Run the share of `owner`, unless somebody took it. A region ends when all its shares are taken
 * and finished: who takes one meets no other region's body, and who comes late takes none. */
static void run_share(worker *owner, unsigned region) {
  unsigned before = region - 1;
  if (!atomic_compare_exchange_strong(&owner->taken, &before, region)) return;
  int code = run_tasks(pool.body, pool.data, owner->index, pool.started + 1, pool.tasks);
  if (code != 0) atomic_store(&pool.failure, code);
  if (atomic_fetch_sub(&pool.pending, 1) == 1 && atomic_load(&pool.caller_sleeps)) {
    pthread_mutex_lock(&pool.door);
    pthread_cond_signal(&pool.done);
    pthread_mutex_unlock(&pool.door);
  }
}

static void *work(void *argument) {
  worker *self = argument;
  inside = 1;
  bind_to_core(self->index);
  for (;;) {
    self->seen = await_region(self->seen);
    if (atomic_load(&pool.stopping)) return NULL;
    run_share(self, self->seen);
  }
}

/* The caller sleeps where a worker was interrupted: that one may go on in the caller's place. */
static void await_shares(void) {
  for (int look = 0; look < SPIN; look++) {
    if (atomic_load_explicit(&pool.pending, memory_order_acquire) == 0) return;
    pause_briefly();
  }
  pthread_mutex_lock(&pool.door);
  atomic_store(&pool.caller_sleeps, 1);
  while (atomic_load(&pool.pending) > 0) pthread_cond_wait(&pool.done, &pool.door);
  atomic_store(&pool.caller_sleeps, 0);
  pthread_mutex_unlock(&pool.door);
}

static void announce(void) {
  atomic_fetch_add(&pool.generation, 1);
  if (atomic_load(&pool.sleepers) > 0) {
    pthread_mutex_lock(&pool.door);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.door);
  }
}

static void stop_workers(void) {
  atomic_store(&pool.stopping, 1);
  announce();
  for (int i = 0; i < pool.started; i++) pthread_join(pool.workers[i].thread, NULL);
  pool.started = 0;
  atomic_store(&pool.stopping, 0);
}

/* In the child of a fork no worker runs: forget them, the next region starts new ones. */
static void forget_workers(void) {
  pthread_mutex_init(&pool.region, NULL);
  pthread_mutex_init(&pool.door, NULL);
  pthread_cond_init(&pool.wake, NULL);
  pthread_cond_init(&pool.done, NULL);
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.caller_sleeps, 0);
  pool.started = 0;
  inside = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

static int usable_cores(void) {
#if defined(__linux__) && defined(CPU_COUNT)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : (int)cores;
}

int tvmx_threads(void) {
  int wanted = atomic_load(&pool.wanted);
  if (wanted == 0) {
    int given = setting("TVMX_THREADS", 0);
    wanted = given > 0 ? given : usable_cores();
    atomic_store(&pool.wanted, wanted);
  }
  return wanted > MAX_WORKERS + 1 ? MAX_WORKERS + 1 : wanted;
}

int tvmx_set_threads(int count) {
  if (count < 0) return -1;
  atomic_store(&pool.wanted, count);
  return 0;
}

void tvmx_set_spin(int looks) { atomic_store(&pool.spin, looks < 0 ? 0 : looks); }

#ifdef CPU_SETSIZE
#define MAX_CORE CPU_SETSIZE
#else
#define MAX_CORE 1024
#endif

/* The caller holds the region. */
static int give_cores(const int *cores, size_t count) {
  if (count > MAX_WORKERS + 1) count = MAX_WORKERS + 1;
  for (size_t k = 0; k < count; k++)
    if (cores[k] < 0 || cores[k] >= MAX_CORE) return -1;
  if (count > 0) memcpy(pool.cores, cores, count * sizeof *cores);
  atomic_store(&pool.affine, (int)count);
  pool.moved = 1;
  return 0;
}

int tvmx_set_affinity(const int *cores, size_t count) {
  if (inside || (!cores && count > 0)) return -1;
  pthread_mutex_lock(&pool.region);
  int result = give_cores(cores, count);
  pthread_mutex_unlock(&pool.region);
  return result;
}

/* TVMX_AFFINITY: numbers and ranges, as in 0-3,8. The caller holds the region. */
static void read_affinity(void) {
  int cores[MAX_WORKERS + 1];
  size_t count = 0;
  const char *end = NULL;
  const char *text = getenv("TVMX_AFFINITY");
  atomic_store(&pool.affine, 0);
  while (text && count <= MAX_WORKERS) {
    int first = number(text, &end);
    int last = first >= 0 && *end == '-' ? number(end + 1, &end) : first;
    if (first < 0 || last < first) return;
    for (int core = first; core <= last && count <= MAX_WORKERS; core++) cores[count++] = core;
    if (*end && *end != ',') return;
    text = *end ? end + 1 : NULL;
  }
  give_cores(cores, count);
}

/* As many workers as are wanted, or fewer where the system refuses more threads. */
static void resize_pool(int workers) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  stop_workers();
  pool.moved = 0;
  atomic_store(&pool.bound, 0);
  while (pool.started < workers) {
    worker *next = &pool.workers[pool.started];
    next->index = pool.started + 1;
    next->seen = atomic_load(&pool.generation);
    atomic_store(&next->taken, next->seen);
    if (pthread_create(&next->thread, NULL, work, next) != 0) {
      atomic_store(&pool.wanted, pool.started + 1); /* do not ask again */
      break;
    }
    pool.started++;
  }
  if (atomic_load(&pool.affine) > 0)
    while (atomic_load(&pool.bound) < pool.started) sched_yield();
}

/* Before the code that workers run is unmapped. */
__attribute__((destructor)) static void finish(void) {
  if (pthread_mutex_trylock(&pool.region) != 0) return;
  stop_workers();
  pthread_mutex_unlock(&pool.region);
}

static int launch(region_body body, void *data, int tasks) {
  int threads = tvmx_threads();
  if (inside || threads == 1 || pthread_mutex_trylock(&pool.region) != 0)
    return run_tasks(body, data, 0, 1, tasks > 0 ? tasks : 1);
  if (atomic_load_explicit(&pool.affine, memory_order_relaxed) < 0) read_affinity();
  if (pool.started != threads - 1 || pool.moved) resize_pool(threads - 1);
  pool.body = body;
  pool.data = data;
  pool.tasks = tasks > 0 ? tasks : pool.started + 1;
  atomic_store(&pool.failure, 0);
  atomic_store(&pool.pending, pool.started);
  announce();
  inside = 1;
  int result = run_tasks(body, data, 0, pool.started + 1, pool.tasks);
  /* What no worker has begun, asleep or interrupted as it is, is quicker done than awaited. */
  unsigned region = atomic_load(&pool.generation);
  for (int i = 0; i < pool.started; i++) run_share(&pool.workers[i], region);
  inside = 0;
  await_shares();
  if (result == 0) result = atomic_load(&pool.failure);
  pthread_mutex_unlock(&pool.region);
  return result;
}

static int nothing(int task, void *group, void *data) {
  (void)task, (void)group, (void)data;
  return 0;
}

void tvmx_start(void) { tvmx_get_launcher()(nothing, NULL, 1); }

#endif

/* Scratch memory of kernels, where none is lent: each thread keeps what it asked for once. */
#define BLOCKS 16
#define ALIGNMENT 64

typedef struct {
  void *address;
  size_t bytes;
  int used;
} block;

static THREAD_LOCAL block blocks[BLOCKS];

#ifndef TVMX_SINGLE_THREAD
static pthread_key_t exit_key;
static void make_exit_key(void);

static void release_blocks(void *own) {
  block *all = own;
  for (int i = 0; i < BLOCKS; i++) free(all[i].address);
  memset(all, 0, sizeof(block) * BLOCKS);
}

static void make_exit_key(void) { pthread_key_create(&exit_key, release_blocks); }

static void release_at_thread_exit(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_exit_key);
  pthread_setspecific(exit_key, blocks);
}
#endif

static void *acquire(int device_type, int device, uint64_t bytes, int code, int bits) {
  (void)device_type, (void)device, (void)code, (void)bits;
  size_t size = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (share.next && size <= (size_t)(share.end - share.next)) {
    share.next += size;
    return share.next - size;
  }
  block *best = NULL, *spare = NULL;
  for (block *b = blocks; b < blocks + BLOCKS; b++) {
    if (b->used) continue;
    if (b->bytes >= bytes && b->address && (!best || b->bytes < best->bytes)) best = b;
    if (!spare || b->bytes < spare->bytes) spare = b;
  }
  if (!best) {
    if (!spare) return NULL;
    free(spare->address);
    spare->address = aligned_alloc(ALIGNMENT, size ? size : ALIGNMENT);
    spare->bytes = spare->address ? size : 0;
    if (!spare->address) return NULL;
    release_at_thread_exit();
    best = spare;
  }
  best->used = 1;
  return best->address;
}

static int release(int device_type, int device, void *address) {
  (void)device_type, (void)device;
  for (block *b = blocks; b < blocks + BLOCKS; b++)
    if (b->address == address) {
      b->used = 0;
      return 0;
    }
  /* Of a share: what a scope took is given back together, in any order. */
  if ((unsigned char *)address < share.next) share.next = address;
  return 0;
}

static tvmx_launcher used_launcher = launch;

static THREAD_LOCAL int alone;

int tvmx_alone(int yes) {
  alone = yes;
  return 0;
}

static int enter_region(region_body body, void *data, int tasks) {
  if (alone) {
    alone = 0;
    return run_tasks(body, data, 0, 1, 1);
  }
  region whole = {body, data, lent};
  return used_launcher(in_share, &whole, tasks);
}

/* An argument as TVM's functions take them. */
typedef struct {
  int32_t type;
  uint32_t none;
  int64_t number;
} packed;

int tvmx_packed_alone(void *self, const void *arguments, int32_t count, void *result) {
  (void)self, (void)count, (void)result;
  return tvmx_alone((int)((const packed *)arguments)->number);
}

tvmx_launcher tvmx_get_region(void) { return enter_region; }

void *__TVMBackendParallelLaunch = (void *)enter_region;
void *__TVMBackendAllocWorkspace = (void *)acquire;
void *__TVMBackendFreeWorkspace = (void *)release;

tvmx_launcher tvmx_get_launcher(void) { return used_launcher; }
void tvmx_set_launcher(tvmx_launcher launcher) { used_launcher = launcher; }
