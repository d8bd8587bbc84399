#include "ahead.h"

#include <algorithm>
#include <utility>

namespace tidemill {

Ahead::Ahead(std::vector<std::vector<ByteSpan>> of_thread) : of_thread_(std::move(of_thread)) {
  for (std::vector<ByteSpan>& spans : of_thread_) {
    std::size_t left = kMost;
    for (ByteSpan& span : spans) {
      span.size = std::min(span.size, left);
      left -= span.size;
    }
    std::erase_if(spans, [](const ByteSpan& span) { return span.size == 0; });
  }
}

}  // namespace tidemill
