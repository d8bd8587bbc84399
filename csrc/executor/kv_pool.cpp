#include "kv_pool.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace tidemill {

KvPool::KvPool(KvShape shape, std::int32_t num_blocks, std::int32_t block_size, KvFormat format)
    : shape_(shape), num_blocks_(num_blocks), block_size_(block_size), format_(format) {
  if (block_size != 16 && block_size != 32 && block_size != 64) {
    throw std::invalid_argument("block_size must be 16, 32 or 64, not " + std::to_string(block_size));
  }
  if (num_blocks < 1) throw std::invalid_argument("num_blocks must be at least 1, not " + std::to_string(num_blocks));
  memory_ = PagedMemory(block_bytes() * static_cast<std::size_t>(num_blocks));
}

KvLayer KvPool::layer(std::int32_t index) const {
  KvLayer layer{memory_.data(), block_size_, shape_.kv_heads, shape_.head_dim, format_};
  layer.base += layer.block_bytes() * static_cast<std::size_t>(num_blocks_) * static_cast<std::size_t>(index);
  return layer;
}

void KvPool::copy(std::int32_t source, std::int32_t destination) {
  for (std::int32_t i = 0; i < shape_.layers; ++i) {
    const KvLayer at = layer(i);
    std::memmove(at.keys(destination, 0), at.keys(source, 0), at.block_bytes());
  }
}

void KvPool::read(std::int32_t block, std::uint8_t* out) const {
  for (std::int32_t i = 0; i < shape_.layers; ++i) {
    const KvLayer at = layer(i);
    std::memcpy(out, at.keys(block, 0), at.block_bytes());
    out += at.block_bytes();
  }
}

void KvPool::write(std::int32_t block, const std::uint8_t* in) {
  for (std::int32_t i = 0; i < shape_.layers; ++i) {
    const KvLayer at = layer(i);
    std::memcpy(at.keys(block, 0), in, at.block_bytes());
    in += at.block_bytes();
  }
}

}  // namespace tidemill
