// Code that is compiled once per instruction set must never be shared by the linker, hence always inlined.
#pragma once

#define TIDEMILL_INLINE inline __attribute__((always_inline))
#define TIDEMILL_UNROLL _Pragma("GCC unroll 8")
