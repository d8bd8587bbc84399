#include "isa.h"

#include <algorithm>
#include <stdexcept>

#include "tile_access.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tidemill {

#if defined(__aarch64__)
namespace {

bool has_dot_product() {
#if defined(__linux__)
  constexpr unsigned long kAsimdDotProduct = 1ul << 20;  // HWCAP_ASIMDDP of Linux's asm/hwcap.h
  return (getauxval(AT_HWCAP) & kAsimdDotProduct) != 0;
#else
  return false;  // no portable way to ask
#endif
}

}  // namespace
#endif

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // These also ask whether the system saves the registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx2 && avx512 && tile_access().granted()) names.emplace_back("amx");
  if (avx2 && avx512) names.emplace_back("avx512");
  if (avx2) names.emplace_back("avx2");
#elif defined(__aarch64__)
  if (has_dot_product()) names.emplace_back("neon-dot");
  names.emplace_back("neon");
#endif
  names.emplace_back("portable");
  return names;
}

std::vector<std::pair<std::string, std::string>> refused_isas() {
  std::vector<std::pair<std::string, std::string>> refused;
  if (tile_access().present && !tile_access().granted()) refused.emplace_back("amx", tile_access().refusal);
  return refused;
}

Kernels select_kernels(std::string_view isa) {
  const std::vector<std::string> supported = supported_isas();
  if (isa == "auto") isa = supported.front();
  if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
    std::string list;
    for (const std::string& name : supported) list += (list.empty() ? "" : ", ") + name;
    std::string reason;
    for (const auto& [name, why] : refused_isas()) reason += name == isa ? " (" + why + ")" : "";
    throw std::invalid_argument("instruction set '" + std::string(isa) + "' does not run here" + reason +
                                "; this machine runs: " + list);
  }
#if defined(__x86_64__)
  if (isa == "amx") return {&linear_kernels_amx(), &vector_kernels_avx512()};
  if (isa == "avx512") return {&linear_kernels_avx512(), &vector_kernels_avx512()};
  if (isa == "avx2") return {&linear_kernels_avx2(), &vector_kernels_avx2()};
#elif defined(__aarch64__)
  if (isa == "neon-dot") return {&linear_kernels_neon_dot(), &vector_kernels_neon()};
  if (isa == "neon") return {&linear_kernels_neon(), &vector_kernels_neon()};
#endif
  return {&linear_kernels_portable(), &vector_kernels_portable()};
}

}  // namespace tidemill
