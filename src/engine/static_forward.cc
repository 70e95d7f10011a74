// A layer value by value, as an exported graph computes it (deploy/decoder_graph.h): for static activations, which are
// rounded wherever the quantized graph rounds, and for measuring their ranges.
#include <algorithm>
#include <cmath>

#include "engine/forward.h"
#include "engine/static_activations.h"
#include "kernels/elementwise.h"

namespace pith {

using Site = ActivationSite;

void Engine::Forward::Visit(int64_t layer, ActivationSite site, std::span<float> values) {
  if (engine_.observer_) return engine_.observer_(layer, site, values);
  const StaticQuantizer& quantizer = engine_.static_->At(layer, site);
  constexpr int64_t kValuesPerTask = 16384;
  const auto n = static_cast<int64_t>(values.size());
  pool_.Run((n + kValuesPerTask - 1) / kValuesPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(n, (task + 1) * kValuesPerTask);
    for (int64_t i = task * kValuesPerTask; i < end; ++i) {
      values[static_cast<size_t>(i)] = quantizer.Round(values[static_cast<size_t>(i)]);
    }
  });
}

// x[rows, heads, head_dim] by RoPE, in place; `sites`: the four products and the result.
void Engine::Forward::RotateStatic(int64_t layer, std::vector<float>* x, int64_t heads, const Site (&sites)[5]) {
  const int64_t half = config_.head_dim / 2;
  const int64_t pairs = rows_ * heads * half;
  for (auto& products : rope_products_) products.resize(static_cast<size_t>(pairs));
  const auto each = [&](const auto& body) {
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t j = i % half, head = i / half;
      body(static_cast<size_t>(i), static_cast<size_t>(head / heads * half + j),
           (*x)[static_cast<size_t>(head * 2 * half + j)], (*x)[static_cast<size_t>(head * 2 * half + half + j)]);
    }
  };
  auto& [low_cos, high_sin, high_cos, low_sin] = rope_products_;
  each([&](size_t i, size_t at, const float& low, const float& high) {
    low_cos[i] = low * rope_cos_[at];
    high_sin[i] = high * rope_sin_[at];
    high_cos[i] = high * rope_cos_[at];
    low_sin[i] = low * rope_sin_[at];
  });
  for (size_t i = 0; i < rope_products_.size(); ++i) Visit(layer, sites[i], rope_products_[i]);
  each([&](size_t i, size_t, float& low, float& high) {
    low = low_cos[i] - high_sin[i];
    high = high_cos[i] + low_sin[i];
  });
  Visit(layer, sites[4], *x);
}

// One query head of a row over its own past, into out[head_dim].
void Engine::Forward::AttendStatic(int64_t layer, int64_t row, int64_t head, float* out) {
  const int64_t d = config_.head_dim;
  const int64_t kv_head = head / (config_.heads / config_.kv_heads);
  const float* q = q_.data() + (row * config_.heads + head) * d;
  const int64_t length = positions_[static_cast<size_t>(row)] + 1;
  const auto& blocks = sequences_[static_cast<size_t>(row)]->blocks();
  const auto view_of = [&](int64_t block) {
    return std::as_const(*blocks[static_cast<size_t>(block)]).At(layer, kv_head);
  };
  const auto value = [](const KvBlockView& view, const void* data, const float* scale, int64_t at, int64_t t) {
    return view.type == KvType::kInt8 ? static_cast<float>(static_cast<const int8_t*>(data)[at]) * scale[t]
                                      : static_cast<const float*>(data)[at];
  };
  std::vector<float> weights(static_cast<size_t>(length));
  for (int64_t begin = 0; begin < length; begin += kKvBlockTokens) {
    const KvBlockView view = view_of(begin / kKvBlockTokens);
    const int64_t count = std::min(kKvBlockTokens, length - begin);
    for (int64_t j = 0; j < d; ++j) {
      for (int64_t t = 0; t < count; ++t) {
        weights[static_cast<size_t>(begin + t)] += q[j] * value(view, view.k, view.k_scale, j * kKvBlockTokens + t, t);
      }
    }
  }
  if (engine_.observer_) {
    engine_.observer_(layer, Site::kScores, weights);
    Softmax(weights.data(), length);
  } else {
    const StaticQuantizer &scores = engine_.static_->At(layer, Site::kScores),
                          &masked = engine_.static_->At(layer, Site::kMasked), &softmax = engine_.static_->softmax();
    for (float& x : weights) x = masked.Round(scores.Round(x));
    Softmax(weights.data(), length);
    for (float& x : weights) x = softmax.Round(x);
  }
  std::fill_n(out, d, 0.0F);
  for (int64_t t = 0; t < length; ++t) {
    const KvBlockView view = view_of(t / kKvBlockTokens);
    const int64_t place = t % kKvBlockTokens;
    const float weight = weights[static_cast<size_t>(t)];
    for (int64_t j = 0; j < d; ++j) out[j] += weight * value(view, view.v, view.v_scale, place * d + j, place);
  }
}

void Engine::Forward::RunStaticLayer(int64_t index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const int64_t d = config_.head_dim;
  const int64_t q_width = config_.heads * d, kv_width = config_.kv_heads * d;
  const int64_t group = config_.heads / config_.kv_heads;
  const auto eps = static_cast<float>(config_.rms_eps);

  NormRows(x_.data(), layer.attention_norm, normed_.data());
  Visit(index, Site::kAttentionNorm, normed_);
  const Target qkv[] = {{&layer.q, LinearKind::kQ, q_.data()},
                        {&layer.k, LinearKind::kK, k_.data()},
                        {&layer.v, LinearKind::kV, v_.data()}};
  Multiply(qkv, normed_.data(), rows_, index, runs_);
  // The equalizer is folded into the graph's projections, or into the norms on the heads: powers of two.
  const auto equalize = [&] {
    for (int64_t r = 0; r < rows_; ++r) {
      MultiplyInPlace(k_.data() + r * kv_width, layer.key_scale.data(), kv_width);
      for (int64_t i = 0; i < q_width; ++i) {
        q_[static_cast<size_t>(r * q_width + i)] /= layer.key_scale[static_cast<size_t>(i / d / group * d + i % d)];
      }
    }
  };
  if (!config_.qk_norm) equalize();
  Visit(index, Site::kQProj, q_);
  Visit(index, Site::kKProj, k_);
  Visit(index, Site::kVProj, v_);
  if (config_.qk_norm) {
    for (int64_t r = 0; r < rows_; ++r) {
      RmsNormHeads(q_.data() + r * q_width, layer.q_norm.data(), config_.heads, d, eps);
      RmsNormHeads(k_.data() + r * kv_width, layer.k_norm.data(), config_.kv_heads, d, eps);
    }
    equalize();
    Visit(index, Site::kQNorm, q_);
    Visit(index, Site::kKNorm, k_);
  }
  RotateStatic(index, &q_, config_.heads,
               {Site::kQLowCos, Site::kQHighSin, Site::kQHighCos, Site::kQLowSin, Site::kQRope});
  RotateStatic(index, &k_, config_.kv_heads,
               {Site::kKLowCos, Site::kKHighSin, Site::kKHighCos, Site::kKLowSin, Site::kKRope});
  ScaleInPlace(k_.data(), 1.0F / std::sqrt(static_cast<float>(d)), rows_ * kv_width);
  Visit(index, Site::kKScaled, k_);
  // What is stored lies on the grid of the stored scales already.
  const bool rounded = !engine_.observer_;
  const float k_scale = rounded ? engine_.static_->At(index, Site::kKScaled).scale : 0.0F;
  const float v_scale = rounded ? engine_.static_->At(index, Site::kVProj).scale : 0.0F;
  for (int64_t r = 0; r < rows_; ++r) {
    const int64_t position = positions_[static_cast<size_t>(r)];
    KvBlock& block = *sequences_[static_cast<size_t>(r)]->blocks()[static_cast<size_t>(position / kKvBlockTokens)];
    for (int64_t h = 0; h < config_.kv_heads; ++h) {
      StoreKv(k_.data() + r * kv_width + h * d, v_.data() + r * kv_width + h * d, d, position % kKvBlockTokens,
              block.At(index, h), k_scale, v_scale);
    }
  }
  const auto attend = [&](int64_t task, int) {
    AttendStatic(index, task / config_.heads, task % config_.heads, mixed_.data() + task * d);
  };
  if (engine_.observer_) {
    for (int64_t task = 0; task < rows_ * config_.heads; ++task) attend(task, 0);  // it sees scores in order
  } else {
    pool_.Run(rows_ * config_.heads, attend);
  }
  Visit(index, Site::kMixed, mixed_);

  const auto add = [&] {
    for (size_t i = 0; i < x_.size(); ++i) x_[i] += projected_[i];
  };
  const Target output[] = {{&layer.o, LinearKind::kO, projected_.data()}};
  Multiply(output, mixed_.data(), rows_, index, runs_);
  Visit(index, Site::kOProj, projected_);
  add();
  Visit(index, Site::kAttentionSum, x_);

  NormRows(x_.data(), layer.mlp_norm, normed_.data());
  Visit(index, Site::kMlpNorm, normed_);
  const Target gate_up[] = {{&layer.gate, LinearKind::kGate, gate_.data()}, {&layer.up, LinearKind::kUp, up_.data()}};
  Multiply(gate_up, normed_.data(), rows_, index, runs_);
  Visit(index, Site::kGateProj, gate_);
  Visit(index, Site::kUpProj, up_);
  sigmoid_.resize(gate_.size());
  for (size_t i = 0; i < gate_.size(); ++i) sigmoid_[i] = 1.0F / (1.0F + std::exp(-gate_[i]));
  Visit(index, Site::kSigmoid, sigmoid_);
  for (size_t i = 0; i < gate_.size(); ++i) gate_[i] *= sigmoid_[i];
  Visit(index, Site::kSilu, gate_);
  for (size_t i = 0; i < gate_.size(); ++i) gate_[i] *= up_[i];
  Visit(index, Site::kGated, gate_);
  const Target down[] = {{&layer.down, LinearKind::kDown, projected_.data()}};
  Multiply(down, gate_.data(), rows_, index, runs_);
  Visit(index, Site::kDownProj, projected_);
  add();
  Visit(index, Site::kSum, x_);
}

}  // namespace pith
