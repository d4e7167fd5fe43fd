"""The C runtime by itself: parallel regions, threads, scratch memory, forks."""

import os
import shutil
import subprocess

import pytest

from tvm_ext.executors.toolchain import RUNTIME, compiler

MAIN = r"""
#include "tvmx.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { void *sync; int32_t tasks; } group;
extern void *__TVMBackendParallelLaunch, *__TVMBackendAllocWorkspace, *__TVMBackendFreeWorkspace;
typedef void *(*allocator)(int, int, uint64_t, int, int);
typedef int (*releaser)(int, int, void *);

static int mark(int task, void *g, void *data) {
  allocator acquire = (allocator)__TVMBackendAllocWorkspace;
  releaser release = (releaser)__TVMBackendFreeWorkspace;
  char *a = acquire(1, 0, 1000 + 100 * task, 2, 32), *b = acquire(1, 0, 10, 2, 32);
  if (!a || !b || a == b || (size_t)a % 64 || (size_t)b % 64) return -1;
  memset(a, 1, 1000 + 100 * task), memset(b, 2, 10);
  release(1, 0, b), release(1, 0, a);
  atomic_int *marks = data;
  int tasks = ((group *)g)->tasks;
  for (int i = task; i < 64; i += tasks) atomic_fetch_add(&marks[i], 1);
  return 0;
}

static int nested(int task, void *g, void *data) {
  (void)task, (void)g;
  return tvmx_get_launcher()(mark, data, 0);
}

static void expect(int condition, const char *what) {
  if (!condition) { printf("wrong: %s\n", what); exit(1); }
}

static char room[4][256] __attribute__((aligned(64)));

/* What a kernel allocates is in the share of its task, where there is a loan. */
static int borrows(int task, void *g, void *loan) {
  (void)g;
  char *a = ((allocator)__TVMBackendAllocWorkspace)(1, 0, 100, 2, 32);
  if (a) memset(a, 1, 100);
  int lent = a >= room[task] + (task ? 0 : 64) && a <= room[task] + 128;
  ((releaser)__TVMBackendFreeWorkspace)(1, 0, a);
  return lent == (loan != NULL) ? 0 : 5;
}

/* As that of another library, on whose threads this one runs. */
static int foreign(int (*body)(int, void *, void *), void *data, int tasks) {
  int code = 0;
  for (int task = 0; task < tasks; task++) code |= body(task, &(group){NULL, tasks}, data);
  return code;
}

static void borrow(tvmx_launcher launcher) {
  tvmx_launcher own = tvmx_get_launcher(), launch = (tvmx_launcher)__TVMBackendParallelLaunch;
  tvmx_set_launcher(launcher);
  tvmx_lend(room, sizeof room[0], 4);
  char *first = ((allocator)__TVMBackendAllocWorkspace)(1, 0, 10, 2, 32);
  expect(first == room[0], "the caller's share");
  for (int k = 0; k < 100; k++) expect(launch(borrows, room, 4) == 0, "shares");
  ((releaser)__TVMBackendFreeWorkspace)(1, 0, first);
  tvmx_lend(NULL, 0, 0);
  expect(launch(borrows, NULL, 4) == 0, "no loan");
  tvmx_set_launcher(own);
}

static int fails(int task, void *g, void *data) { (void)g, (void)data; return task == 1 ? 7 : 0; }

static int counts(int task, void *g, void *data) {
  (void)task;
  atomic_store((atomic_int *)data, ((group *)g)->tasks);
  return 0;
}

/* One loop of this thread, and no other one. */
static void run_alone(void) {
  tvmx_launcher launch = (tvmx_launcher)__TVMBackendParallelLaunch;
  int tasks[] = {3, 1, 3};
  atomic_int seen;
  tvmx_set_threads(3);
  for (int k = 0; k < 3; k++) {
    if (k < 2) tvmx_alone(k);
    expect(launch(counts, &seen, 0) == 0 && seen == tasks[k], "alone");
  }
  struct { int32_t type; uint32_t none; int64_t number; } yes = {1, 0, 1};
  expect(tvmx_packed_alone(NULL, &yes, 1, NULL) == 0, "packed");
  expect(tvmx_get_region()(counts, &seen, 0) == 0 && seen == 1, "alone, as TVM says it");
}

static void *many(void *unused) {
  for (int k = 0; k < 2000; k++) {
    atomic_int marks[64] = {0};
    expect(tvmx_get_launcher()(mark, marks, 0) == 0, "code");
    for (int i = 0; i < 64; i++) expect(marks[i] == 1, "every task once");
  }
  return unused;
}

#ifndef SANITIZED
static int in_child(void) {
  pid_t child = fork();
  if (child == 0) { many(NULL); _exit(0); }
  int status;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
#endif

int main(void) {
  expect(tvmx_set_threads(-1) == -1, "no negative count");
  for (int threads = 1; threads <= 5; threads += 2) {
    tvmx_set_threads(threads), tvmx_set_spin(threads == 3 ? 0 : 100);
    expect(tvmx_threads() == threads, "count");
    many(NULL);
  }
  borrow(tvmx_get_launcher()), borrow(foreign);
  run_alone();
  expect(tvmx_get_launcher()(fails, NULL, 3) == 7, "a worker's code");
  atomic_int marks[64] = {0};
  expect(tvmx_get_launcher()(nested, marks, 3) == 0 && marks[5] == 3, "nested regions");
  pthread_t callers[4];
  for (int i = 0; i < 4; i++) pthread_create(&callers[i], NULL, many, NULL);
  for (int i = 0; i < 4; i++) pthread_join(callers[i], NULL);
#ifndef SANITIZED
  expect(in_child(), "a forked child");
#endif
  puts("fine");
  return 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["", "thread", "address,undefined"])
def test_regions_on_many_threads(tmp_path, sanitizer):
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text(MAIN)
    flags = [f"-fsanitize={sanitizer}", "-DSANITIZED"] if sanitizer else ["-O2"]
    flags += ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME}"]
    command = [*compiler(), *flags, source, RUNTIME / "tvmx.c", "-lpthread", "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    if sanitizer and "cannot find" in built.stderr:
        pytest.skip("this compiler has no sanitizer runtime")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "fine\n", ran.stdout + ran.stderr
    assert ran.stderr == ""


def test_a_build_without_threads(tmp_path):
    object_ = tmp_path / "tvmx.o"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-DTVMX_SINGLE_THREAD", "-c"]
    subprocess.run([*compiler(), *flags, RUNTIME / "tvmx.c", "-o", object_], check=True)
    if shutil.which("nm"):
        names = subprocess.run(["nm", object_], capture_output=True, text=True, check=True).stdout
        assert "pthread" not in names


AFFINITY = r"""
#define _GNU_SOURCE
#include "tvmx.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cpu_set_t masks[4];
static atomic_int met;

static int look(int task, void *group, void *data) {
  (void)group, (void)data;
  sched_getaffinity(0, sizeof masks[task], &masks[task]);
  int all = atomic_fetch_add(&met, 1) / 4 * 4 + 4;
  while (atomic_load(&met) < all) sched_yield(); /* or a quick thread would run a late one's task */
  return 0;
}

/* How many cores each of four threads may use, and which of them is the first. */
int main(int argc, char **argv) {
  int cores[8];
  size_t count = 0;
  for (int k = 2; k < argc; k++) cores[count++] = atoi(argv[k]);
  if (argv[1][0] == 'f') tvmx_set_threads(4);
  if (argv[1][0] == 'f' && tvmx_set_affinity(cores, count) != 0) return 1;
  int wrong[] = {0, -1};
  if (tvmx_set_affinity(wrong, 2) != -1 || tvmx_set_affinity(NULL, 1) != -1) return 2;
  tvmx_get_launcher()(look, NULL, 4);
  for (int k = 0; k < 4; k++) {
    int first = 0;
    while (!CPU_ISSET(first, &masks[k])) first++;
    printf("%d:%d ", CPU_COUNT(&masks[k]), first);
  }
  if (tvmx_set_affinity(NULL, 0) != 0) return 3;
  tvmx_get_launcher()(look, NULL, 4);
  printf("%d", CPU_COUNT(&masks[3]));
  return atomic_load(&met) == 8 ? 0 : 4;
}
"""


@pytest.fixture(scope="module")
def affinity(tmp_path_factory):
    source = tmp_path_factory.mktemp("affinity") / "main.c"
    source.write_text(AFFINITY)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME}"]
    program = source.with_suffix("")
    command = [*compiler(), *flags, source, RUNTIME / "tvmx.c", "-lpthread", "-o", program]
    subprocess.run(command, check=True)
    return program


def bound(program, *arguments, **variables):
    """Per thread, how many cores it may use and the first of them; then, of the last, when free."""
    environment = dict(os.environ) | variables
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done
    *threads, free = done.stdout.split()
    return [tuple(map(int, thread.split(":"))) for thread in threads], int(free)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux and two cores",
)
def test_threads_are_bound_to_cores_in_turn(affinity):
    usable = sorted(os.sched_getaffinity(0))
    a, b = usable[:2]
    anywhere, everywhere = len(usable), (len(usable), a)
    turns = [everywhere, (1, b), (1, a), (1, b)]  # the caller is where its owner put it
    assert bound(affinity, "f", a, b) == (turns, anywhere)
    four = {"TVMX_THREADS": "4"}
    assert bound(affinity, "e", TVMX_AFFINITY=f"{a},{b}", **four) == (turns, anywhere)
    one = [everywhere] + 3 * [(1, b)]
    assert bound(affinity, "e", TVMX_AFFINITY=f"{b}", **four) == (one, anywhere)
    assert bound(affinity, "e", TVMX_AFFINITY=f"{b}-{b}", **four) == (one, anywhere)
    for unreadable in "", "x", f"{a},", f"{b}-", "-1", "3-1", "99999", "1;2":
        got, _ = bound(affinity, "e", TVMX_AFFINITY=unreadable, **four)
        assert got == 4 * [everywhere], unreadable
    assert bound(affinity, "f", a, b, TVMX_AFFINITY=f"{a}") == (turns, anywhere)


@pytest.mark.parametrize("count, wanted", [("3", 3), ("", 0), ("0", 0), ("-2", 0), ("3x", 0)])
def test_the_number_of_threads_from_the_environment(tmp_path, count, wanted):
    source = tmp_path / "main.c"
    source.write_text('#include "tvmx.h"\nint main(void) { return tvmx_threads(); }\n')
    command = [*compiler(), source, RUNTIME / "tvmx.c", f"-I{RUNTIME}", "-lpthread"]
    subprocess.run([*command, "-o", tmp_path / "main"], check=True)
    done = subprocess.run([tmp_path / "main"], env=dict(os.environ) | {"TVMX_THREADS": count})
    assert done.returncode == (wanted or len(os.sched_getaffinity(0)))
