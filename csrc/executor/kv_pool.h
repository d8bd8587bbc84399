// The KV memory of one group: [layer][block], a block as attention.h draws it.
#pragma once
#include <cstdint>
#include <span>
#include <utility>

#include "../kernels/attention.h"
#include "memory.h"

namespace tidemill {

struct KvShape {
  std::int32_t layers;
  std::int32_t kv_heads;
  std::int32_t head_dim;
  std::int32_t window;  // positions that its layers look back on, the current one included; 0: all
};

class KvPool {
 public:
  KvPool() = default;
  KvPool(KvShape shape, std::int32_t num_blocks, std::int32_t block_size, KvFormat format);

  std::int32_t num_blocks() const { return num_blocks_; }
  std::int32_t block_size() const { return block_size_; }
  std::int32_t window() const { return shape_.window; }
  KvFormat format() const { return format_; }
  KvLayer layer(std::int32_t index) const;

  // Bytes of one block over all layers, as read and write move them.
  std::size_t block_bytes() const { return layer(0).block_bytes() * static_cast<std::size_t>(shape_.layers); }
  void copy(std::int32_t source, std::int32_t destination);
  void read(std::int32_t block, std::uint8_t* out) const;
  void write(std::int32_t block, const std::uint8_t* in);

 private:
  KvShape shape_{};
  std::int32_t num_blocks_ = 0;
  std::int32_t block_size_ = 0;
  KvFormat format_ = KvFormat::kF16;
  PagedMemory memory_;
};

}  // namespace tidemill
