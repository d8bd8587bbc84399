// Pages of a file that is mapped read-only: read ahead of their use, let go after it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

// Maps what the page cache holds of these bytes in one call instead of a fault each; a hint.
void populate(const std::uint8_t* data, std::size_t bytes);

// Takes these bytes out of the process's resident memory; the page cache keeps them, and reading them again works.
// Only for read-only maps of files: of other memory the content would be lost.
void let_go(const std::uint8_t* data, std::size_t bytes);

}  // namespace tidemill
