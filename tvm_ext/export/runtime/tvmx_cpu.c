/* What the CPU that a program runs on can do, by the names that LLVM gives instruction sets. */
#include "tvmx_model.h"

#include <string.h>

/* A bit of one of the words in which the CPU, or the system for it, lists what it has, and the
 * registers that the system must save for it. */
typedef struct {
  const char *name;
  unsigned char word, bit, registers;
} feature;

#if defined(__x86_64__) || defined(__i386__)

#include <cpuid.h>

enum { BASIC, EXTENDED, EXTENDED_C, EXTENDED_D, NEWER, OLDER, WORDS };
enum { XMM, YMM, ZMM, TILES };

static const feature FEATURES[] = {
    {"sse3", BASIC, 0, XMM},
    {"ssse3", BASIC, 9, XMM},
    {"fma", BASIC, 12, YMM},
    {"sse4.1", BASIC, 19, XMM},
    {"sse4.2", BASIC, 20, XMM},
    {"movbe", BASIC, 22, XMM},
    {"popcnt", BASIC, 23, XMM},
    {"avx", BASIC, 28, YMM},
    {"f16c", BASIC, 29, YMM},
    {"bmi", EXTENDED, 3, XMM},
    {"avx2", EXTENDED, 5, YMM},
    {"bmi2", EXTENDED, 8, XMM},
    {"avx512f", EXTENDED, 16, ZMM},
    {"avx512dq", EXTENDED, 17, ZMM},
    {"avx512ifma", EXTENDED, 21, ZMM},
    {"avx512cd", EXTENDED, 28, ZMM},
    {"avx512bw", EXTENDED, 30, ZMM},
    {"avx512vl", EXTENDED, 31, ZMM},
    {"avx512vbmi", EXTENDED_C, 1, ZMM},
    {"avx512vbmi2", EXTENDED_C, 6, ZMM},
    {"gfni", EXTENDED_C, 8, XMM},
    {"avx512vnni", EXTENDED_C, 11, ZMM},
    {"avx512bitalg", EXTENDED_C, 12, ZMM},
    {"avx512vpopcntdq", EXTENDED_C, 14, ZMM},
    {"avx512vp2intersect", EXTENDED_D, 8, ZMM},
    {"amx-bf16", EXTENDED_D, 22, TILES},
    {"avx512fp16", EXTENDED_D, 23, ZMM},
    {"amx-tile", EXTENDED_D, 24, TILES},
    {"amx-int8", EXTENDED_D, 25, TILES},
    {"avxvnni", NEWER, 4, YMM},
    {"avx512bf16", NEWER, 5, ZMM},
    {"lzcnt", OLDER, 5, XMM},
    {"sse4a", OLDER, 6, XMM},
    {"xop", OLDER, 11, YMM},
    {"fma4", OLDER, 16, YMM},
    {"tbm", OLDER, 21, XMM},
};

static int read_words(unsigned words[WORDS]) {
  unsigned a, b, c, d, saved = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) words[BASIC] = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    words[EXTENDED] = b, words[EXTENDED_C] = c, words[EXTENDED_D] = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) words[NEWER] = a;
  }
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) words[OLDER] = c;
  if (words[BASIC] >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  if ((saved & 0x600e6) == 0x600e6) return TILES;
  return (saved & 0xe6) == 0xe6 ? ZMM : (saved & 0x06) == 0x06 ? YMM : XMM;
}

#elif defined(__linux__) && (defined(__aarch64__) || defined(__arm__) || defined(__riscv))

#include <sys/auxv.h>

enum { FIRST, SECOND, WORDS };

#if defined(__aarch64__)
static const feature FEATURES[] = {
    {"fp-armv8", FIRST, 0, 0},  {"neon", FIRST, 1, 0},     {"lse", FIRST, 8, 0},
    {"fullfp16", FIRST, 10, 0}, {"dotprod", FIRST, 20, 0}, {"sve", FIRST, 22, 0},
    {"sve2", SECOND, 1, 0},     {"i8mm", SECOND, 13, 0},   {"bf16", SECOND, 14, 0},
};
#elif defined(__arm__)
static const feature FEATURES[] = {
    {"neon", FIRST, 12, 0}, {"vfp3", FIRST, 13, 0}, {"vfp4", FIRST, 16, 0}, {"d32", FIRST, 19, 0},
};
#else
static const feature FEATURES[] = {
    {"a", FIRST, 'a' - 'a', 0}, {"c", FIRST, 'c' - 'a', 0}, {"d", FIRST, 'd' - 'a', 0},
    {"f", FIRST, 'f' - 'a', 0}, {"m", FIRST, 'm' - 'a', 0}, {"v", FIRST, 'v' - 'a', 0},
};
#endif

static int read_words(unsigned words[WORDS]) {
  words[FIRST] = (unsigned)getauxval(AT_HWCAP);
  words[SECOND] = (unsigned)getauxval(AT_HWCAP2);
  return 0;
}

#else /* WebAssembly is checked by what compiles it; of other systems nothing is known */

enum { WORDS = 1 };
static const feature FEATURES[] = {{"", 0, 0, 0}};
static int read_words(unsigned words[WORDS]) { return words[0] = 0; }

#endif

const char *tvmx_cpu_lacks(const char *const *needs) {
  unsigned words[WORDS] = {0};
  int saved = read_words(words);
  for (; *needs; needs++)
    for (size_t k = 0; k < sizeof FEATURES / sizeof *FEATURES; k++) {
      const feature *known = &FEATURES[k];
      int there = (words[known->word] >> known->bit & 1) && known->registers <= saved;
      if (!strcmp(known->name, *needs) && !there) return *needs;
    }
  return NULL;
}
