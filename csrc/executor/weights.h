// The weights of a model in the forms the kernels read: packed matrices, float vectors, and tables of file rows.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "../kernels/linear.h"
#include "memory.h"
#include "pool.h"

namespace tidemill {

// Rows read one at a time straight from the file's bytes.
struct RowTable {
  FileFormat format;
  std::int32_t rows;
  std::int32_t columns;
  const std::uint8_t* data;  // not owned
  std::size_t row_bytes;
};

class Weights {
 public:
  // Packs `count` matrices [n, k] (one, or a layer's experts), whose file rows follow each other, tiles in parallel;
  // they are first .. first + count - 1. `mapped`: the rows are a read-only map of a file, whose pages are let go.
  std::int32_t add_matrices(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                            const std::uint8_t* rows, bool mapped, ThreadPool& pool);
  // The same matrices as add_matrices packed them, in memory that must outlive this object.
  std::int32_t use_matrices(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                            const std::uint8_t* packed);
  // Bytes that add_matrices packs so many matrices into.
  static std::size_t packed_bytes(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k);
  std::int32_t add_vector(const float* values, std::size_t count);
  // The bytes must outlive this object.
  std::int32_t add_table(FileFormat format, std::int32_t rows, std::int32_t columns, const std::uint8_t* data);

  const PackedMatrix& matrix(std::int32_t index) const { return matrices_[static_cast<std::size_t>(index)]; }
  const float* vector(std::int32_t index) const { return vectors_[static_cast<std::size_t>(index)].data(); }
  const RowTable& table(std::int32_t index) const { return tables_[static_cast<std::size_t>(index)]; }
  std::int32_t matrices() const { return static_cast<std::int32_t>(matrices_.size()); }
  std::size_t packed_bytes() const { return packed_bytes_; }

 private:
  std::int32_t append(PackedMatrix first, std::int32_t count);
  std::uint8_t* room(std::size_t bytes);

  std::vector<PackedMatrix> matrices_;
  std::vector<PagedMemory> memory_;  // matrices one after another, small ones too on huge pages
  std::size_t used_ = 0;             // of the last
  std::deque<std::vector<float>> vectors_;
  std::vector<RowTable> tables_;
  std::size_t packed_bytes_ = 0;
};

}  // namespace tidemill
