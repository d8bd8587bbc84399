// How the AMX kernels make floats of integer sums.
//
// While tiles are in use the processor multiplies floats with one of its two units only, and conversions belong to that
// one too. Adding integers does not: with kRaise added, the bits of a sum below 2^22 are those of the float kRaised + sum.
#pragma once

namespace tidemill {
namespace {

inline constexpr int kRaise = 0x4b400000;
inline constexpr float kRaised = 0x1.8p23f;

}  // namespace
}  // namespace tidemill
