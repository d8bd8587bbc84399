// Lanes: who takes which chunks in which order, what a thread may fetch ahead, and how a linear layer is dealt to them.
#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "executor/linear_share.h"
#include "executor/pool.h"
#include "tests/check.h"

using namespace tidemill;

namespace {

// While the worker is held in its first chunk, or does not run at all, the caller takes its own chunks from the front and
// then the worker's from the back.
void own_chunks_from_the_front_and_others_from_the_back() {
  constexpr int kChunks = 9;
  for (int repeat = 0; repeat < 200; ++repeat) {
    ThreadPool pool(2);
    std::vector<int> callers;
    std::atomic<int> ended{0};
    std::atomic<int> held{-1};
    pool.run(kChunks, [&](int chunk, int thread) {
      if (thread == 0) {
        callers.push_back(chunk);
      } else {
        held.store(chunk);
        while (ended.load() < kChunks - 1) std::this_thread::yield();
      }
      ended.fetch_add(1);
    });
    std::vector<int> expected = {0, 1, 2, 3, 4, 8, 7, 6, 5};  // the caller's lane is the longer one
    if (held.load() >= 0) {
      CHECK_CASE(held.load() == 5, "the worker began with chunk %d", held.load());
      expected.pop_back();
    }
    CHECK_CASE(callers == expected, "repeat %d, worker at %d", repeat, held.load());
  }
}

void lanes_hold_every_chunk_once() {
  for (int threads = 1; threads <= 7; ++threads) {
    for (const int chunks : {0, 1, 2, 3, 6, 7, 20, ThreadPool::kMaxChunks}) {
      CHECK(ThreadPool::lane_begin(chunks, 0, threads) == 0);
      CHECK(ThreadPool::lane_begin(chunks, threads, threads) == chunks);
      const int most = ThreadPool::lane_begin(chunks, 1, threads);
      for (int thread = 0; thread < threads; ++thread) {
        const int size = ThreadPool::lane_begin(chunks, thread + 1, threads) - ThreadPool::lane_begin(chunks, thread, threads);
        CHECK_CASE(size == most || size == most - 1, "%d threads, %d chunks: lane %d has %d", threads, chunks, thread, size);
      }
    }
  }
}

std::size_t calls_of(Fetcher fetcher) {
  std::size_t calls = 0;
  while (fetcher.some()) ++calls;
  return calls;
}

void a_thread_fetches_its_own_bytes_and_not_too_many() {
  std::vector<std::uint8_t> bytes(3 * Ahead::kMost);
  const Ahead ahead({{{bytes.data(), 1000}, {bytes.data() + 5000, 64}}, {}, {{bytes.data(), Ahead::kMost - 64}, {bytes.data(), bytes.size()}}});
  CHECK(ahead.of(0).size() == 2 && ahead.of(0)[1].data == bytes.data() + 5000);
  CHECK(calls_of(Fetcher(ahead.of(0))) == 2 + 1);  // of 512 bytes each
  CHECK(calls_of(Fetcher(ahead.of(1))) == 0);
  CHECK(ahead.of(2)[1].size == 64);
  CHECK(calls_of(Fetcher(ahead.of(2))) == Ahead::kMost / 512 + 1);
}

// Threads that wait read what the caller puts there meanwhile, and addresses that nothing is at any more.
void fetching_ahead_disturbs_nothing() {
  ThreadPool pool(3);
  std::vector<std::uint8_t> bytes(1 << 16);
  const Ahead* near = pool.keep(Ahead({{{bytes.data(), bytes.size()}}, {{bytes.data(), bytes.size()}}, {}}));
  const auto* nowhere = reinterpret_cast<const std::uint8_t*>(std::uintptr_t{1} << 40);
  for (int region = 0; region < 3000; ++region) {
    if (region % 3 == 0) pool.set_ahead(near);
    if (region % 3 == 1) pool.set_ahead(pool.keep(Ahead({{{nowhere, 4096}}, {{nowhere, 4096}}, {{nowhere, 4096}}})));
    if (region % 3 == 2) pool.set_ahead(nullptr);
    std::vector<int> ran(7);
    pool.run(7, [&](int chunk, int) { ++ran[static_cast<std::size_t>(chunk)]; });
    CHECK_CASE(std::accumulate(ran.begin(), ran.end(), 0) == 7, "region %d", region);
  }
}

// Three weights side by side: chunks hold every tile of each once, and lanes every byte.
void a_linear_layer_is_dealt_out_whole() {
  std::vector<std::uint8_t> packed(4 << 20);
  Weights weights;
  LinearOp op{0, kNone, RowsOf::kTokens, 64, 1, 0, kNone, {}};
  for (const std::int32_t outputs : {1000, 16, 300}) {
    op.parts.push_back({weights.use_matrices(FileFormat::kF32, 1, outputs, 64, packed.data()), op.out_width, kNone, false});
    op.out_width += outputs;
  }
  for (const std::int32_t rows : {1, 4, 5, 300, 512, 1111}) {
    for (const int threads : {1, 2, 3, 8}) {
      const LinearShare share(op, weights, rows, threads);
      std::vector<std::vector<int>> cells(3);  // [tile][row]
      for (std::size_t part = 0; part < 3; ++part) {
        cells[part].resize(static_cast<std::size_t>(weights.matrix(op.parts[part].matrix).tiles() * rows));
      }
      for (int index = 0; index < share.chunks(); ++index) {
        const LinearChunk chunk = share.chunk(index);
        CHECK(chunk.row_begin < chunk.row_end && chunk.tile_begin < chunk.tile_end);
        CHECK(chunk.row_begin % 16 == 0 && chunk.pass < share.passes());
        share.for_parts(chunk.tile_begin, chunk.tile_end, [&](const LinearPart& part, std::int32_t begin, std::int32_t end) {
          for (std::int32_t cell = begin * rows; cell < end * rows; ++cell) {
            const bool inside = cell % rows >= chunk.row_begin && cell % rows < chunk.row_end;
            cells[static_cast<std::size_t>(&part - op.parts.data())][static_cast<std::size_t>(cell)] += inside;
          }
        });
      }
      for (const std::vector<int>& part : cells) {
        for (const int times : part) CHECK_CASE(times == 1, "%d rows, %d threads: %d times", rows, threads, times);
      }
      if (share.by_rows()) continue;
      std::size_t bytes = 0;
      for (int thread = 0; thread < threads; ++thread) {
        for (const ByteSpan& span : share.lane(thread)) bytes += span.size;
      }
      CHECK_CASE(bytes == weights.packed_bytes(), "%d rows, %d threads: lanes of %zu bytes", rows, threads, bytes);
    }
  }
}

}  // namespace

int main() {
  own_chunks_from_the_front_and_others_from_the_back();
  lanes_hold_every_chunk_once();
  a_thread_fetches_its_own_bytes_and_not_too_many();
  fetching_ahead_disturbs_nothing();
  a_linear_layer_is_dealt_out_whole();
  return tidemill::test::finish("lanes");
}
