#include "kernels/qmatmul.h"

#include <algorithm>
#include <cassert>

#include "base/thread_pool.h"
#include "kernels/qmatmul_tiles.h"

namespace pith::kernels {

void QuantMatMul(std::span<const QuantProduct> products, ThreadPool& pool) {
  // Tasks of about equal bytes: enough for balance, large enough to be worth claiming. Even numbers of tiles pair up.
  int64_t all_bytes = 0;
  int64_t scratch_bytes = 0;
  for (const QuantProduct& product : products) {
    const QuantMatrix& w = *product.weights;
    assert(w.cols() == product.x->cols() && w.bits() == product.x->weight_bits());
    assert(ScaleKindFor(w, product.x->bits()) == product.x->scale_kind());
    all_bytes += w.tiles() * kTileRows * w.row_bytes();
    if (product.x->digits() != ActivationDigits::kSigned) {
      scratch_bytes = std::max({scratch_bytes, ManyScratchBytes(w.cols(), w.bits()), WordScratchBytes(w.cols())});
    }
  }
  const int64_t wanted_bytes = std::max<int64_t>(16384, all_bytes / (static_cast<int64_t>(pool.threads()) * 8));
  struct Task {
    const QuantProduct* product;
    int64_t begin, end;
  };
  std::vector<Task> tasks;
  for (const QuantProduct& product : products) {
    if (product.x->rows() == 0) continue;
    const int64_t tiles = product.weights->tiles();
    int64_t chunk = std::max<int64_t>(1, wanted_bytes / (kTileRows * product.weights->row_bytes()));
    chunk += chunk % 2;
    for (int64_t begin = 0; begin < tiles; begin += chunk)
      tasks.push_back({&product, begin, std::min(begin + chunk, tiles)});
  }
  std::vector<std::vector<uint8_t>> scratch(static_cast<size_t>(pool.threads()));
  pool.Run(static_cast<int64_t>(tasks.size()), [&](int64_t index, int thread) {
    const Task& task = tasks[static_cast<size_t>(index)];
    const QuantActivations& x = *task.product->x;
    if (x.rows() == 1) {
      MultiplyOne(*task.product, 0, task.begin, task.end);
    } else if (x.digits() == ActivationDigits::kSigned) {
      MultiplyFew(*task.product, task.begin, task.end);
    } else {
      auto& buffer = scratch[static_cast<size_t>(thread)];
      if (buffer.empty()) buffer.resize(static_cast<size_t>(scratch_bytes) + 64);
      uint8_t* aligned = buffer.data() + (64 - reinterpret_cast<uintptr_t>(buffer.data()) % 64) % 64;
      if (x.digits() == ActivationDigits::kWords) {
        MultiplyWords(*task.product, task.begin, task.end, aligned);
      } else {
        MultiplyMany(*task.product, task.begin, task.end, aligned);
      }
    }
  });
}

}  // namespace pith::kernels
