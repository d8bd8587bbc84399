#include "program.h"

#include <algorithm>

namespace tidemill {

std::int32_t Program::panel_width() const {
  std::int32_t width = 0;
  for (const Slot& slot : slots) width = std::max(width, slot.quantized_width);
  return width;
}

std::int32_t Program::largest_head_dim() const {
  std::int32_t dim = 0;
  for (const KvShape& group : groups) dim = std::max(dim, group.head_dim);
  return dim;
}

}  // namespace tidemill
