#include "engine/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/static_activations.h"
#include "kernels/elementwise.h"

namespace pith {

using kernels::QuantProduct;

namespace {

// Rows that one task of an elementwise loop handles: few rows stay on the calling thread.
constexpr int64_t kRowsPerTask = 8;

template <class Body>
void ForRows(ThreadPool& pool, int64_t rows, const Body& body) {
  if (rows <= kRowsPerTask) {
    for (int64_t r = 0; r < rows; ++r) body(r);
    return;
  }
  pool.Run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t r = task * kRowsPerTask; r < end; ++r) body(r);
  });
}

}  // namespace

Engine::Forward::Forward(Engine& engine)
    : engine_(engine),
      weights_(*engine.weights_),
      config_(weights_.config),
      pool_(engine.pool_),
      attention_(engine.kv_pool_->shape(), config_.heads, engine.pool_) {}

void Engine::Forward::Resize(int64_t rows) {
  rows_ = rows;
  const auto n = static_cast<size_t>(rows);
  const auto at = [&](int64_t width) { return n * static_cast<size_t>(width); };
  x_.resize(at(config_.hidden));
  normed_.resize(at(config_.hidden));
  projected_.resize(at(config_.hidden));
  q_.resize(at(config_.heads * config_.head_dim));
  mixed_.resize(at(config_.heads * config_.head_dim));
  k_.resize(at(config_.kv_heads * config_.head_dim));
  v_.resize(at(config_.kv_heads * config_.head_dim));
  gate_.resize(at(config_.intermediate));
  up_.resize(at(config_.intermediate));
  rope_cos_.resize(at(config_.head_dim / 2));
  rope_sin_.resize(at(config_.head_dim / 2));
}

void Engine::Forward::Embed(std::span<const StepItem> items) {
  std::vector<int32_t> tokens;
  for (const StepItem& item : items) tokens.insert(tokens.end(), item.tokens.begin(), item.tokens.end());
  ForRows(pool_, rows_,
          [&](int64_t r) { weights_.embedding.Row(tokens[static_cast<size_t>(r)], x_.data() + r * config_.hidden); });
}

void Engine::Forward::ComputeRope(std::span<const StepItem> items) {
  positions_.clear();
  sequences_.clear();
  for (const StepItem& item : items) {
    const int64_t first = item.sequence->length() - static_cast<int64_t>(item.tokens.size());
    for (size_t i = 0; i < item.tokens.size(); ++i) {
      positions_.push_back(first + static_cast<int64_t>(i));
      sequences_.push_back(item.sequence);
    }
  }
  // Angles in float, as transformers computes them: checkpoints were trained with their rounding.
  const int64_t half = config_.head_dim / 2;
  const auto factor = static_cast<float>(engine_.rope_.attention_factor);
  ForRows(pool_, rows_, [&](int64_t r) {
    const auto position = static_cast<float>(positions_[static_cast<size_t>(r)]);
    for (int64_t j = 0; j < half; ++j) {
      const float angle = position * static_cast<float>(engine_.rope_.inv_freq[static_cast<size_t>(j)]);
      rope_cos_[static_cast<size_t>(r * half + j)] = std::cos(angle) * factor;
      rope_sin_[static_cast<size_t>(r * half + j)] = std::sin(angle) * factor;
    }
    if (engine_.static_ == nullptr) return;
    for (int64_t i = r * half; i < (r + 1) * half; ++i) {
      rope_cos_[static_cast<size_t>(i)] = engine_.static_->rope().Round(rope_cos_[static_cast<size_t>(i)]);
      rope_sin_[static_cast<size_t>(i)] = engine_.static_->rope().Round(rope_sin_[static_cast<size_t>(i)]);
    }
  });
}

void Engine::Forward::NormRows(const float* x, const std::vector<float>& weight, float* out) {
  const auto eps = static_cast<float>(config_.rms_eps);
  ForRows(pool_, rows_, [&](int64_t r) {
    RmsNorm(x + r * config_.hidden, weight.data(), config_.hidden, eps, out + r * config_.hidden);
  });
}

void Engine::Forward::Multiply(std::span<const Target> targets, const float* x, int64_t rows, int64_t layer,
                               std::span<const AdapterRun> runs) {
  const int64_t cols = targets[0].linear->cols;
  if (engine_.input_sums_ != nullptr && targets[0].kind != LinearKind::kLmHead) {
    for (const Target& t : targets) engine_.input_sums_->Add(LinearName(layer, t.kind), x, rows, cols);
  }
  // All packed targets and the A factors of packed adapters go in one loop; activations are quantized once for each
  // weight width and scale kind.
  std::vector<QuantProduct> products;
  for (const int wide : {0, 1}) {
    for (const auto kind : {kernels::ActivationScale::kPerToken, kernels::ActivationScale::kPerBlock}) {
      auto& activations = activations_[wide][kind == kernels::ActivationScale::kPerBlock ? 1 : 0];
      const int bits = wide == 0 ? 4 : 8;
      bool quantized = false;
      for (const Target& t : targets) {
        const auto* packed = t.linear->packed.get();
        if (packed == nullptr || packed->bits() != bits) continue;
        if (kernels::ScaleKindFor(*packed, engine_.options_.activations) != kind) continue;
        if (!quantized) activations.Quantize(x, rows, cols, cols, engine_.options_.activations, kind, bits, &pool_);
        quantized = true;
        products.push_back({packed, &activations, t.out, t.linear->rows});
      }
    }
  }
  PlanPackedLora(targets, x, cols, layer, runs, &products);
  if (!products.empty()) kernels::QuantMatMul(products, pool_);
  // Float targets: tasks of some rows of W each.
  struct Task {
    const Target* target;
    int64_t begin, end;
  };
  std::vector<Task> tasks;
  for (const Target& t : targets) {
    if (t.linear->packed != nullptr) continue;
    const int64_t chunk = std::max<int64_t>(16, 65536 / std::max<int64_t>(1, cols));
    for (int64_t n = 0; n < t.linear->rows; n += chunk) tasks.push_back({&t, n, std::min(n + chunk, t.linear->rows)});
  }
  pool_.Run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
    const Task& task = tasks[static_cast<size_t>(i)];
    FloatMatmul(x, cols, rows, task.target->linear->matrix, task.begin, task.end, 1.0F, false, task.target->out,
                task.target->linear->rows);
  });
  for (const Target& t : targets) {
    if (t.linear->bias.empty()) continue;
    ForRows(pool_, rows,
            [&](int64_t r) { AddInPlace(t.out + r * t.linear->rows, t.linear->bias.data(), t.linear->rows); });
  }
  if (runs.empty()) return;
  AddPackedLora();
  AddFloatLora(targets, x, layer, runs);
}

void Engine::Forward::PlanPackedLora(std::span<const Target> targets, const float* x, int64_t cols, int64_t layer,
                                     std::span<const AdapterRun> runs, std::vector<QuantProduct>* products) {
  packed_lora_.clear();
  int64_t floats = 0;
  for (const AdapterRun& run : runs) {
    for (const Target& t : targets) {
      const LoraFactors* factors = run.adapter->Find(layer, t.kind);
      if (factors == nullptr || !factors->packed()) continue;
      const int64_t rows = run.end - run.begin;
      packed_lora_.push_back({&t, factors, &run, floats, floats + rows * factors->a8->rows()});
      floats += rows * (factors->a8->rows() + factors->b8->rows());
    }
  }
  if (packed_lora_.empty()) return;
  if (static_cast<int64_t>(lora_.size()) < floats) lora_.resize(static_cast<size_t>(floats));
  if (lora_inputs_.size() < runs.size()) lora_inputs_.resize(runs.size());
  const AdapterRun* quantized = nullptr;
  for (const PackedLora& part : packed_lora_) {
    auto& input = lora_inputs_[static_cast<size_t>(part.run - runs.data())];
    if (part.run != quantized) {
      // Adapters always meet 16-bit activations: their products are thin.
      input.Quantize(x + part.run->begin * cols, part.run->end - part.run->begin, cols, cols,
                     kernels::ActivationBits::k16, kernels::ActivationScale::kPerToken, 8, &pool_);
      quantized = part.run;
    }
    products->push_back({part.factors->a8.get(), &input, lora_.data() + part.middle, part.factors->a8->rows()});
  }
}

void Engine::Forward::AddPackedLora() {
  if (packed_lora_.empty()) return;
  if (lora_middles_.size() < packed_lora_.size()) lora_middles_.resize(packed_lora_.size());
  std::vector<QuantProduct> products;
  for (size_t i = 0; i < packed_lora_.size(); ++i) {
    const PackedLora& part = packed_lora_[i];
    const int64_t rank = part.factors->a8->rows();
    lora_middles_[i].Quantize(lora_.data() + part.middle, part.run->end - part.run->begin, rank, rank,
                              kernels::ActivationBits::k16, kernels::ActivationScale::kPerToken, 8, &pool_);
    products.push_back(
        {part.factors->b8.get(), &lora_middles_[i], lora_.data() + part.delta, part.factors->b8->rows()});
  }
  kernels::QuantMatMul(products, pool_);
  for (const PackedLora& part : packed_lora_) {
    const int64_t out = part.target->linear->rows;
    ForRows(pool_, part.run->end - part.run->begin, [&](int64_t r) {
      float* delta = lora_.data() + part.delta + r * out;
      ScaleInPlace(delta, part.factors->scaling, out);
      AddInPlace(part.target->out + (part.run->begin + r) * out, delta, out);
    });
  }
}

void Engine::Forward::AddFloatLora(std::span<const Target> targets, const float* x, int64_t layer,
                                   std::span<const AdapterRun> runs) {
  struct Part {
    const Target* target;
    const LoraFactors* factors;
    const AdapterRun* run;
    int64_t offset;  // of A x in lora_
  };
  std::vector<Part> parts;
  int64_t floats = 0;
  for (const AdapterRun& run : runs) {
    for (const Target& t : targets) {
      const LoraFactors* factors = run.adapter->Find(layer, t.kind);
      if (factors == nullptr || factors->packed()) continue;
      parts.push_back({&t, factors, &run, floats});
      floats += (run.end - run.begin) * factors->a.rows;
    }
  }
  if (parts.empty()) return;
  if (static_cast<int64_t>(lora_.size()) < floats) lora_.resize(static_cast<size_t>(floats));
  const auto chunked = [&](bool down) {
    struct Task {
      const Part* part;
      int64_t begin, end;
    };
    std::vector<Task> tasks;
    for (const Part& part : parts) {
      const FloatMatrix& m = down ? part.factors->a : part.factors->b;
      const int64_t chunk = std::max<int64_t>(8, 32768 / std::max<int64_t>(1, m.cols));
      for (int64_t n = 0; n < m.rows; n += chunk) tasks.push_back({&part, n, std::min(n + chunk, m.rows)});
    }
    pool_.Run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
      const Task& task = tasks[static_cast<size_t>(i)];
      const Part& part = *task.part;
      const int64_t rows = part.run->end - part.run->begin;
      const int64_t rank = part.factors->a.rows;
      float* middle = lora_.data() + part.offset;
      if (down) {
        const int64_t cols = part.factors->a.cols;
        FloatMatmul(x + part.run->begin * cols, cols, rows, part.factors->a, task.begin, task.end, 1.0F, false, middle,
                    rank);
      } else {
        const int64_t out_cols = part.target->linear->rows;
        FloatMatmul(middle, rank, rows, part.factors->b, task.begin, task.end, part.factors->scaling, true,
                    part.target->out + part.run->begin * out_cols, out_cols);
      }
    });
  };
  chunked(true);
  chunked(false);
}

void Engine::Forward::RunLayer(int64_t index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const int64_t hidden = config_.hidden;
  const int64_t d = config_.head_dim;
  const int64_t q_width = config_.heads * d;
  const int64_t kv_width = config_.kv_heads * d;

  NormRows(x_.data(), layer.attention_norm, normed_.data());
  const Target qkv[] = {{&layer.q, LinearKind::kQ, q_.data()},
                        {&layer.k, LinearKind::kK, k_.data()},
                        {&layer.v, LinearKind::kV, v_.data()}};
  Multiply(qkv, normed_.data(), rows_, index, runs_);

  const auto eps = static_cast<float>(config_.rms_eps);
  ForRows(pool_, rows_, [&](int64_t r) {
    float* q = q_.data() + r * q_width;
    float* k = k_.data() + r * kv_width;
    const float* v = v_.data() + r * kv_width;
    if (config_.qk_norm) {
      RmsNormHeads(q, layer.q_norm.data(), config_.heads, d, eps);
      RmsNormHeads(k, layer.k_norm.data(), config_.kv_heads, d, eps);
    }
    const float* cos = rope_cos_.data() + r * d / 2;
    const float* sin = rope_sin_.data() + r * d / 2;
    ApplyRope(q, config_.heads, d, cos, sin);
    ApplyRope(k, config_.kv_heads, d, cos, sin);
    MultiplyInPlace(q, layer.query_scale.data(), q_width);
    MultiplyInPlace(k, layer.key_scale.data(), kv_width);
    const int64_t group_width = q_width / config_.kv_heads;
    const int64_t position = positions_[static_cast<size_t>(r)];
    KvBlock& block = *sequences_[static_cast<size_t>(r)]->blocks()[static_cast<size_t>(position / kKvBlockTokens)];
    for (int64_t h = 0; h < config_.kv_heads; ++h) {
      std::memcpy(attention_.Query(r, h), q + h * group_width, static_cast<size_t>(group_width) * sizeof(float));
      StoreKv(k + h * d, v + h * d, d, position % kKvBlockTokens, block.At(index, h), layer.k_static_scale,
              layer.v_static_scale);
    }
  });
  attention_.Run(index, mixed_.data());

  const Target output[] = {{&layer.o, LinearKind::kO, projected_.data()}};
  Multiply(output, mixed_.data(), rows_, index, runs_);
  ForRows(pool_, rows_, [&](int64_t r) { AddInPlace(x_.data() + r * hidden, projected_.data() + r * hidden, hidden); });

  NormRows(x_.data(), layer.mlp_norm, normed_.data());
  const Target gate_up[] = {{&layer.gate, LinearKind::kGate, gate_.data()}, {&layer.up, LinearKind::kUp, up_.data()}};
  Multiply(gate_up, normed_.data(), rows_, index, runs_);
  const int64_t wide = config_.intermediate;
  ForRows(pool_, rows_,
          [&](int64_t r) { SwiGlu(gate_.data() + r * wide, up_.data() + r * wide, wide, gate_.data() + r * wide); });
  const Target down[] = {{&layer.down, LinearKind::kDown, projected_.data()}};
  Multiply(down, gate_.data(), rows_, index, runs_);
  ForRows(pool_, rows_, [&](int64_t r) { AddInPlace(x_.data() + r * hidden, projected_.data() + r * hidden, hidden); });
}

StepOutput Engine::Forward::Run(std::span<const StepItem> items) {
  int64_t rows = 0;
  runs_.clear();
  std::vector<SequenceRows> sequence_rows;
  for (const StepItem& item : items) {
    const auto n = static_cast<int64_t>(item.tokens.size());
    if (item.adapter != nullptr) {
      if (!runs_.empty() && runs_.back().adapter == item.adapter && runs_.back().end == rows) {
        runs_.back().end += n;
      } else {
        runs_.push_back({item.adapter, rows, rows + n});
      }
    }
    sequence_rows.push_back({item.sequence, n});
    rows += n;
  }
  Resize(rows);
  Embed(items);
  ComputeRope(items);
  const bool by_value = value_by_value();
  if (by_value) {
    Visit(0, ActivationSite::kEmbedding, x_);
    for (int64_t layer = 0; layer < config_.layers; ++layer) RunStaticLayer(layer);
  } else {
    attention_.Plan(sequence_rows);
    for (int64_t layer = 0; layer < config_.layers; ++layer) RunLayer(layer);
  }

  // Final norm of the rows whose states or logits are wanted; the LM head on those whose logits are.
  StepOutput output;
  output.vocab = config_.vocab;
  output.hidden = config_.hidden;
  const auto eps = static_cast<float>(config_.rms_eps);
  const int64_t hidden = config_.hidden;
  std::vector<int64_t> state_rows;
  std::vector<int64_t> logit_rows;
  std::vector<AdapterRun> head_runs;
  int64_t row = 0;
  for (const StepItem& item : items) {
    const auto n = static_cast<int64_t>(item.tokens.size());
    const auto wanted = [&](Rows which, std::vector<int64_t>* list) {
      const int64_t from = which == Rows::kAll ? 0 : which == Rows::kLast ? n - 1 : n;
      for (int64_t r = from; r < n; ++r) list->push_back(row + r);
      return n - from;
    };
    wanted(item.states, &state_rows);
    const auto before = static_cast<int64_t>(logit_rows.size());
    const int64_t count = wanted(item.logits, &logit_rows);
    if (item.adapter != nullptr && count > 0) head_runs.push_back({item.adapter, before, before + count});
    row += n;
  }
  const auto norm_into = [&](const std::vector<int64_t>& list, std::vector<float>* out) {
    out->resize(list.size() * static_cast<size_t>(hidden));
    ForRows(pool_, static_cast<int64_t>(list.size()), [&](int64_t i) {
      RmsNorm(x_.data() + list[static_cast<size_t>(i)] * hidden, weights_.final_norm.data(), hidden, eps,
              out->data() + i * hidden);
    });
    if (by_value) Visit(0, ActivationSite::kFinalNorm, *out);
  };
  norm_into(state_rows, &states_);
  output.states = states_;
  if (!logit_rows.empty()) {
    norm_into(logit_rows, &head_input_);
    logits_.resize(logit_rows.size() * static_cast<size_t>(config_.vocab));
    const Target head[] = {{&weights_.lm_head, LinearKind::kLmHead, logits_.data()}};
    Multiply(head, head_input_.data(), static_cast<int64_t>(logit_rows.size()), 0, head_runs);
    if (by_value) Visit(0, ActivationSite::kLogits, logits_);
    output.logits = logits_;
  }
  return output;
}

}  // namespace pith
