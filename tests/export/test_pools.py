"""Packages beside each other in one process: pools of threads, versions of the runtime."""

import pytest
from onnx import parser

import tvm_ext
from tests.export.programs import compiled, ran

NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[64, 1000] x) => (float[64, 1000] y) { y = OPERATOR (x) }"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Two models, and one whose runtime is another."""
    folder = tmp_path_factory.mktemp("packages")
    models = [("neg", "Neg", False), ("root", "Sqrt", False), ("alone", "Abs", True)]
    for name, operator, alone in models:
        model = parser.parse_model(NET.replace("OPERATOR", operator))
        tvm_ext.export(model, folder / name, name=name, single_thread=alone)
    return folder


# Runs A and B from two threads at a time; prints how many threads the process has.
LINKED = r"""
#include "A.h"
#include "B.h"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static tvmx_model *a, *b;

static float run(int which, float value) {
  static _Thread_local float x[64000], y[64000];
  static _Thread_local _Alignas(64) char workspace[1 << 20];
  for (int k = 0; k < 64000; k++) x[k] = value;
  tvmx_input in = {x, sizeof x};
  tvmx_output out = {y, sizeof y};
  tvmx_status status = which ? B_run(b, &in, 1, &out, 1, workspace, sizeof workspace)
                             : A_run(a, &in, 1, &out, 1, workspace, sizeof workspace);
  if (status != TVMX_OK) exit(2);
  for (int k = 1; k < 64000; k++)
    if (y[k] != y[0]) exit(3);
  return y[0];
}

static void *many(void *which) {
  for (int k = 1; k < 200; k++)
    if (run(which != NULL, 4) != (which ? WANT_B : WANT_A)) exit(4);
  return NULL;
}

int main(void) {
  tvmx_set_threads(3);
  if (A_create(&a, NULL) != TVMX_OK) return 1;
  if (B_create(&b, NULL) != TVMX_OK) { puts(tvmx_error()); return 0; }
  pthread_t other;
  pthread_create(&other, NULL, many, &b);
  many(NULL);
  pthread_join(other, NULL);
  int count = -2; /* . and .. */
  for (DIR *tasks = opendir("/proc/self/task"); readdir(tasks);) count++;
  printf("%d threads\n", count);
  A_destroy(a), B_destroy(b);
  return 0;
}
"""
WANT = {"neg": -4, "root": 2, "alone": 4}


def program(packages, a, b, kind, *flags):
    text = LINKED.replace("WANT_A", str(WANT[a])).replace("WANT_B", str(WANT[b]))
    for letter, name in ("A", a), ("B", b):
        text = text.replace(f"{letter}.h", f"{name}.h").replace(f"{letter}_", f"{name}_")
    libraries = [packages / name / f"lib{name}.{kind}" for name in (a, b)]
    places = [f"-I{packages / name}" for name in (a, b)]
    made = compiled(packages / a, [text], *places, *flags, libraries=libraries)
    search = ":".join(str(packages / name) for name in (a, b))
    return ran(made, packages, LD_LIBRARY_PATH=search)


@pytest.mark.parametrize("kind", ["so", "a"])
def test_linked_packages_share_one_pool(packages, kind):
    assert program(packages, "neg", "root", kind) == "3 threads\n"


def test_shared_libraries_of_other_versions_keep_to_themselves(packages):
    assert program(packages, "root", "alone", "so") == "3 threads\n"
    assert program(packages, "alone", "root", "so").endswith(" threads\n")


def test_static_libraries_of_other_versions_are_told_at_the_start(packages):
    text = program(packages, "root", "alone", "a")
    assert text.startswith("alone: linked with the runtime of a package that another version")


OPENED = r"""
#include "tvmx_model.h"
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef tvmx_status runs(const tvmx_model *, const tvmx_input *, size_t, const tvmx_output *,
                         size_t, void *, size_t);

static void *function(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) exit(1);
  return found;
}

int main(int argc, char **argv) {
  static float x[64000] = {4}, y[64000];
  static _Alignas(64) char workspace[1 << 20];
  tvmx_input in = {x, sizeof x};
  tvmx_output out = {y, sizeof y};
  void *libraries[2] = {dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), dlopen(argv[3], RTLD_NOW)};
  if (argc < 4 || !libraries[0] || !libraries[1]) return 2;
  tvmx_launcher (*first)(void), (*second)(void);
  void (*give)(tvmx_launcher);
  *(void **)&first = function(libraries[0], "tvmx_get_launcher");
  *(void **)&second = function(libraries[1], "tvmx_get_launcher");
  *(void **)&give = function(libraries[1], "tvmx_set_launcher");
  if (first() == second()) return 3;
  if (!strcmp(argv[1], "shared")) give(first());
  const char *names[] = {"neg", "root"};
  for (int k = 0; k < 2; k++) {
    char name[32];
    tvmx_model *model;
    tvmx_status (*create)(tvmx_model **, const char *);
    runs *run;
    snprintf(name, sizeof name, "%s_create", names[k]);
    *(void **)&create = function(libraries[k], name);
    snprintf(name, sizeof name, "%s_run", names[k]);
    *(void **)&run = function(libraries[k], name);
    if (create(&model, NULL) != TVMX_OK) return 4;
    if (run(model, &in, 1, &out, 1, workspace, sizeof workspace) != TVMX_OK) return 5;
    if (y[0] != (k ? 2 : -4)) return 6;
  }
  int count = -2;
  for (DIR *tasks = opendir("/proc/self/task"); readdir(tasks);) count++;
  printf("%d\n", count);
  return 0;
}
"""


@pytest.mark.parametrize("how, threads", [("apart", 5), ("shared", 3)])
def test_opened_libraries_have_a_pool_each_or_are_given_one(packages, how, threads):
    made = compiled(packages / "neg", [OPENED], "-Wno-pedantic", "-ldl", libraries=())
    libraries = [packages / name / f"lib{name}.so" for name in ("neg", "root")]
    assert ran(made, packages, how, *libraries, TVMX_THREADS="3") == f"{threads}\n"
