// A test is a function; a failed CHECK prints where and what, and main returns 1. No framework.
#pragma once
#include <cstdio>
#include <cstdlib>

namespace tidemill::test {

inline int failures = 0;

inline void fail(const char* file, int line, const char* what) {
  if (++failures <= 20) std::printf("%s:%d: CHECK(%s) failed\n", file, line, what);
}

inline int finish(const char* name) {
  std::printf("%s: %s (%d failed checks)\n", name, failures == 0 ? "ok" : "FAILED", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace tidemill::test

#define CHECK(condition) \
  do { \
    if (!(condition)) ::tidemill::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)

// As CHECK, with a printf message that names the case.
#define CHECK_CASE(condition, ...) \
  do { \
    if (!(condition)) { \
      ::tidemill::test::fail(__FILE__, __LINE__, #condition); \
      if (::tidemill::test::failures <= 20) { \
        std::printf("    "); \
        std::printf(__VA_ARGS__); \
        std::printf("\n"); \
      } \
    } \
  } while (false)
