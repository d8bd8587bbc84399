#include "tile_access.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace tidemill {

namespace {

#if defined(__x86_64__)

bool processor_has_tiles() {
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // CPUID 7.0, EDX
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTile) != 0 && (d & kInt8) != 0;
}

bool system_saves_tiles() {
  constexpr unsigned kSaved = 1u << 17 | 1u << 18;  // XCR0: shapes and contents
  unsigned a, b, c, d;
  constexpr unsigned kOsXsave = 1u << 27;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kSaved) == kSaved;
}

std::string ask_system() {
  if (!system_saves_tiles()) return "the system does not save them";
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of Linux 5.16
  if (syscall(SYS_arch_prctl, kRequest, kTileData) == 0) return "";
  return std::string("arch_prctl(ARCH_REQ_XCOMP_PERM): ") + std::strerror(errno);
#else
  return "no known way to ask this system";
#endif
}

TileAccess find_out() {
  if (!processor_has_tiles()) return {false, ""};
  return {true, ask_system()};
}

#else

TileAccess find_out() { return {false, ""}; }

#endif

}  // namespace

const TileAccess& tile_access() {
  static const TileAccess access = find_out();
  return access;
}

}  // namespace tidemill
