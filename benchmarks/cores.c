/* Round trips of a cache line between two threads on two cores, one number of nanoseconds a line. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRIPS 2000

static _Alignas(128) atomic_int ball; /* odd: for the other thread */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

static void catch_and_throw(int wanted) {
  while (atomic_load_explicit(&ball, memory_order_acquire) != wanted) {}
  atomic_store_explicit(&ball, wanted + 1, memory_order_release);
}

static void *other(void *core) {
  stay_on(*(int *)core);
  for (int trip = 0; trip < TRIPS; trip++) catch_and_throw(2 * trip + 1);
  return NULL;
}

int main(int count, char **arguments) {
  if (count != 5) return 2; /* cores, repetitions, microseconds between them */
  int second = atoi(arguments[2]), repetitions = atoi(arguments[3]);
  long pause = atol(arguments[4]);
  stay_on(atoi(arguments[1]));
  for (int k = 0; k < repetitions; k++) {
    struct timespec rest = {pause / 1000000, pause % 1000000 * 1000};
    nanosleep(&rest, NULL);
    pthread_t thread;
    atomic_store(&ball, 0);
    if (pthread_create(&thread, NULL, other, &second) != 0) return 1;
    atomic_store(&ball, 1);
    catch_and_throw(2); /* the other thread runs */
    double start = now();
    for (int trip = 2; trip < TRIPS; trip++) catch_and_throw(2 * trip);
    double seconds = now() - start;
    pthread_join(thread, NULL);
    printf("%.0f\n", seconds / (TRIPS - 2) * 1e9);
    fflush(stdout);
  }
  return 0;
}
