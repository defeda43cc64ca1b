/* The processor, and how many of it this process may keep busy.

   Source of the bits: Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E. Of control groups: the
   kernel's `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/scheduler/sched-bwc.rst`. */
#include <cpuid.h>

#include "internal.h"

typedef enum vm_needs { VM_ALWAYS, VM_YMM, VM_ZMM } vm_needs;

/* Names as LLVM has them: leaf, subleaf, register (a, b, c, d as 0 to 3), bit, and what the system
   must keep for it. */
static const struct {
  const char *name;
  uint32_t leaf, subleaf;
  int where, bit;
  vm_needs needs;
} VM_FEATURES[] = {
    {"sse3", 1, 0, 2, 0, VM_ALWAYS},           {"pclmul", 1, 0, 2, 1, VM_ALWAYS},
    {"ssse3", 1, 0, 2, 9, VM_ALWAYS},          {"fma", 1, 0, 2, 12, VM_YMM},
    {"cx16", 1, 0, 2, 13, VM_ALWAYS},          {"sse4.1", 1, 0, 2, 19, VM_ALWAYS},
    {"sse4.2", 1, 0, 2, 20, VM_ALWAYS},        {"movbe", 1, 0, 2, 22, VM_ALWAYS},
    {"popcnt", 1, 0, 2, 23, VM_ALWAYS},        {"aes", 1, 0, 2, 25, VM_ALWAYS},
    {"avx", 1, 0, 2, 28, VM_YMM},              {"f16c", 1, 0, 2, 29, VM_YMM},
    {"bmi", 7, 0, 1, 3, VM_ALWAYS},            {"avx2", 7, 0, 1, 5, VM_YMM},
    {"bmi2", 7, 0, 1, 8, VM_ALWAYS},           {"avx512f", 7, 0, 1, 16, VM_ZMM},
    {"avx512dq", 7, 0, 1, 17, VM_ZMM},         {"adx", 7, 0, 1, 19, VM_ALWAYS},
    {"avx512ifma", 7, 0, 1, 21, VM_ZMM},       {"avx512cd", 7, 0, 1, 28, VM_ZMM},
    {"sha", 7, 0, 1, 29, VM_ALWAYS},           {"avx512bw", 7, 0, 1, 30, VM_ZMM},
    {"avx512vl", 7, 0, 1, 31, VM_ZMM},         {"avx512vbmi", 7, 0, 2, 1, VM_ZMM},
    {"avx512vbmi2", 7, 0, 2, 6, VM_ZMM},       {"gfni", 7, 0, 2, 8, VM_ALWAYS},
    {"vaes", 7, 0, 2, 9, VM_YMM},              {"vpclmulqdq", 7, 0, 2, 10, VM_YMM},
    {"avx512vnni", 7, 0, 2, 11, VM_ZMM},       {"avx512bitalg", 7, 0, 2, 12, VM_ZMM},
    {"avx512vpopcntdq", 7, 0, 2, 14, VM_ZMM},  {"avxvnni", 7, 1, 0, 4, VM_YMM},
    {"avx512bf16", 7, 1, 0, 5, VM_ZMM},        {"lzcnt", 0x80000001, 0, 2, 5, VM_ALWAYS},
    {"sse4a", 0x80000001, 0, 2, 6, VM_ALWAYS},
};
#define VM_FEATURE_COUNT (sizeof VM_FEATURES / sizeof *VM_FEATURES)

/* Which of the table's rows the processor has; asked once. */
static uint64_t vm_features(void) {
  static _Atomic uint64_t known;
  uint64_t found = atomic_load(&known);
  if (found) return found;
  uint32_t registers[4] = {0}, low = 0, high = 0;
  bool keeps_ymm = false, keeps_zmm = false;
  if (__get_cpuid(1, registers, registers + 1, registers + 2, registers + 3) && registers[2] >> 27 & 1) {
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    keeps_ymm = (low & 0x6) == 0x6;
    keeps_zmm = (low & 0xE6) == 0xE6;
  }
  for (size_t i = 0; i < VM_FEATURE_COUNT; i++) {
    if ((VM_FEATURES[i].needs == VM_YMM && !keeps_ymm) || (VM_FEATURES[i].needs == VM_ZMM && !keeps_zmm))
      continue;
    if (!__get_cpuid_count(VM_FEATURES[i].leaf, VM_FEATURES[i].subleaf, registers, registers + 1,
                           registers + 2, registers + 3))
      continue;
    if (registers[VM_FEATURES[i].where] >> VM_FEATURES[i].bit & 1) found |= (uint64_t)1 << i;
  }
  atomic_store(&known, found | (uint64_t)1 << 63);
  return found;
}

static bool vm_has_sha(void) {
  static _Atomic int known;
  int answer = atomic_load(&known);
  if (!answer) {
    uint64_t has = vm_features();
    int wanted = 0;
    for (size_t i = 0; i < VM_FEATURE_COUNT; i++)
      if (has >> i & 1 && (!strcmp(VM_FEATURES[i].name, "sha") || !strcmp(VM_FEATURES[i].name, "sse4.1")))
        wanted++;
    answer = wanted == 2 ? 2 : 1;
    atomic_store(&known, answer);
  }
  return answer == 2;
}

/* Say whether `name` stands in a list of names with `separator` between. */
static bool vm_is_listed(const char *list, const char *name, char separator) {
  size_t length = strlen(name);
  for (const char *at = list; at && *at; at = strchr(at, separator), at += at ? 1 : 0)
    if (!strncmp(at, name, length) && (!at[length] || at[length] == separator)) return true;
  return false;
}

static bool vm_has_feature(const char *name) {
  const char *hidden = getenv("VERMILION_HIDE_FEATURES");
  uint64_t has = vm_features();
  for (size_t i = 0; i < VM_FEATURE_COUNT; i++)
    if (!strcmp(VM_FEATURES[i].name, name))
      return has >> i & 1 && !(hidden && vm_is_listed(hidden, name, ','));
  return false;
}

VERMILION_API const char *vermilion_cpu_features(void) {
  /* Threads that ask first write the same bytes. */
  static char text[512];
  char found[512] = "", *at = found;
  for (size_t i = 0; i < VM_FEATURE_COUNT; i++)
    if (vm_has_feature(VM_FEATURES[i].name))
      at += sprintf(at, "%s%s", at == found ? "" : " ", VM_FEATURES[i].name);
  if (strcmp(text, found)) memcpy(text, found, sizeof found);
  return text;
}

/* ---- processors ---- */

#ifdef _WIN32
VERMILION_API int32_t vermilion_usable_cores(void) {
  DWORD_PTR mine, all;
  int count = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all))
    for (; mine; mine &= mine - 1) count++;
  return count ? count : 1;
}
#else
/* Read a small file; false where there is none. */
static bool vm_read_small(const char *path, char *text, size_t room) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t got = read(file, text, room - 1);
  close(file);
  text[got < 0 ? 0 : got] = 0;
  return got >= 0;
}

/* Processors that a control group's folder leaves a process, 0 where it says nothing of it. */
static double vm_quota_of(const char *folder) {
  char path[PATH_MAX + 32], text[128];
  long long quota, period;
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  if (vm_read_small(path, text, sizeof text))
    return sscanf(text, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0
               ? (double)quota / (double)period
               : 0;
  snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
  if (!vm_read_small(path, text, sizeof text) || sscanf(text, "%lld", &quota) != 1 || quota <= 0) return 0;
  snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
  if (!vm_read_small(path, text, sizeof text) || sscanf(text, "%lld", &period) != 1 || period <= 0) return 0;
  return (double)quota / (double)period;
}

/* The least quota of the process's groups and those above them, 0 where there is none. A group whose
   folder is not shown here (in a container) counts as the root of what is. */
static double vm_cpu_quota(void) {
  char groups[4096], folder[PATH_MAX];
  double least = 0;
  if (!vm_read_small("/proc/self/cgroup", groups, sizeof groups)) return 0;
  for (char *line = groups, *next; line && *line; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = 0;
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) continue;
    *path++ = 0;
    const char *root = !controllers[1]                              ? "/sys/fs/cgroup"
                       : vm_is_listed(controllers + 1, "cpu", ',') ? "/sys/fs/cgroup/cpu"
                                                                    : NULL;
    if (!root || (size_t)snprintf(folder, sizeof folder, "%s%s", root, path) >= sizeof folder) continue;
    for (;;) {
      double quota = vm_quota_of(folder);
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
      char *last = strrchr(folder, '/');
      if (!last || (size_t)(last - folder) < strlen(root)) break;
      *last = 0;
    }
  }
  return least;
}

VERMILION_API int32_t vermilion_usable_cores(void) {
  cpu_set_t allowed;
  int count = sched_getaffinity(0, sizeof allowed, &allowed) ? (int)sysconf(_SC_NPROCESSORS_ONLN)
                                                             : CPU_COUNT(&allowed);
  double quota = vm_cpu_quota();
  if (quota > 0 && quota < count) {
    int whole = (int)quota;
    count = whole + (quota > whole);
  }
  return count < 1 ? 1 : count;
}
#endif
