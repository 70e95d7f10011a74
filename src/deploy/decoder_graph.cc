#include "deploy/decoder_graph.h"

#include <cmath>
#include <utility>
#include <vector>

#include "model/adapter.h"

namespace pith {

namespace {

class DecoderGraph {
 public:
  DecoderGraph(const ModelConfig& config, const GraphPart& part, const DecoderGraphOptions& options,
               const ExternalPlaces& places)
      : config_(config), part_(part), options_(options), places_(places), build_(&graph_) {
    graph_.name = GraphName(part, options.tokens, options.context);
    graph_.opset = options.opset;
  }

  OnnxGraph Build() {
    const int64_t s = options_.tokens;
    std::string x;
    if (part_.embedding) {
      const std::string ids = build_.Input("input_ids", OnnxType::kInt32, {1, s});
      const std::string table = Weight("model.embed_tokens.weight", {config_.vocab, config_.hidden});
      x = build_.Node("Gather", "embedding", {table, ids}, {1, s, config_.hidden}, {{"axis", int64_t{0}}});
    } else {
      x = build_.Input("hidden_" + std::to_string(part_.index - 1), OnnxType::kFloat, {1, s, config_.hidden});
    }
    if (part_.end > part_.begin) {
      mask_ = build_.Input("attention_mask", OnnxType::kFloat, {1, 1, s, options_.context});
      cos_ = build_.Input("position_ids_cos", OnnxType::kFloat, {1, 1, s, config_.head_dim / 2});
      sin_ = build_.Input("position_ids_sin", OnnxType::kFloat, {1, 1, s, config_.head_dim / 2});
    }
    if (UsesAdapter()) alpha_ = build_.Input("lora_alpha", OnnxType::kFloat, {1});
    if (part_.end > part_.begin || part_.head) x = build_.Reshape("hidden.rows", x, Rows(config_.hidden));
    for (int64_t layer = part_.begin; layer < part_.end; ++layer) x = Layer(layer, x);
    if (part_.head) {
      Head(x);
    } else {
      const std::string name = "hidden_" + std::to_string(part_.index);
      if (part_.end > part_.begin) {
        build_.Reshape(name, x, {1, s, config_.hidden});
      } else {
        build_.Unary("Identity", name, x);
      }
      build_.Output(name);
    }
    return std::move(graph_);
  }

 private:
  // The shape of one row of `width` values per token.
  std::vector<int64_t> Rows(int64_t width) const {
    if (options_.convolutions) return {1, 1, options_.tokens, width};
    return {options_.tokens, width};
  }

  bool UsesAdapter() const {
    for (const auto& [module, rank] : options_.lora_ranks) {
      if (module == "lm_head" ? part_.head : InThisPart(module)) return true;
    }
    return false;
  }
  bool InThisPart(const std::string& module) const {
    for (int64_t layer = part_.begin; layer < part_.end; ++layer) {
      if (module.starts_with("model.layers." + std::to_string(layer) + ".")) return true;
    }
    return false;
  }

  std::string Weight(const std::string& name, std::vector<int64_t> shape) {
    const ExternalPlace& place = places_.at(name);
    return build_.External(name, OnnxType::kFloat, std::move(shape), place.file, place.offset);
  }
  // Rows [begin, begin + count) of a constant with `row_elements` per row, as a constant of their own in the same
  // bytes.
  std::string WeightRows(const std::string& name, int64_t begin, int64_t count, int64_t total, int64_t row_elements,
                         std::vector<int64_t> shape) {
    if (count == total) return Weight(name, std::move(shape));
    const ExternalPlace& place = places_.at(name);
    const auto offset = place.offset + OnnxBytes(OnnxType::kFloat, begin * row_elements);
    return build_.External(name + ".rows" + std::to_string(begin), OnnxType::kFloat, std::move(shape), place.file,
                           offset);
  }

  std::string RmsNorm(const std::string& name, const std::string& x, const std::string& weight, int64_t size) {
    const std::string mean = build_.MeanOfSquares(name + ".mean", x);
    const std::string sum =
        build_.Binary("Add", name + ".sum", mean, build_.Scalar(static_cast<float>(config_.rms_eps)));
    const std::string root = build_.Unary("Sqrt", name + ".root", sum);
    const std::string normed = build_.Binary("Div", name + ".normed", x, root);
    return build_.Binary("Mul", name, normed, Weight(weight, {size}));
  }

  // x with its channels in the second place, for convolutions.
  std::string Channels(const std::string& x) {
    const std::string name = x + ".channels";
    return build_.Has(name) ? name : build_.Transpose(name, x, {0, 3, 1, 2});
  }

  // x W^T + b with plain constants or values for W and b; the result has a row per token.
  std::string Product(const std::string& name, const std::string& x, const std::string& weight, const std::string& bias,
                      int64_t out) {
    if (options_.convolutions) {
      std::vector<std::string> inputs = {Channels(x), weight};
      if (!bias.empty()) inputs.push_back(bias);
      const std::string product = build_.Node("Conv", name + ".conv", inputs, {1, out, 1, options_.tokens},
                                              {{"kernel_shape", std::vector<int64_t>{1, 1}}});
      return build_.Transpose(name, product, {0, 2, 3, 1});
    }
    std::vector<std::string> inputs = {x, weight};
    if (!bias.empty()) inputs.push_back(bias);
    return build_.Node("Gemm", name, inputs, {options_.tokens, out}, {{"transB", int64_t{1}}});
  }

  std::vector<int64_t> MatrixShape(int64_t out, int64_t in) const {
    if (options_.convolutions) return {out, in, 1, 1};
    return {out, in};
  }

  // A factor of the adapter.
  std::string Factor(const std::string& name, int64_t rows, int64_t cols) {
    if (build_.Has(name)) return name;
    Weight(name, MatrixShape(rows, cols));
    if (options_.lora_inputs) graph_.inputs.push_back(build_.At(name));
    return name;
  }

  // Rows [begin, begin + count) of a linear with its branch of the adapter, called `name`.
  std::string Linear(const std::string& name, const std::string& module, const std::string& x, bool bias,
                     int64_t begin = 0, int64_t count = -1) {
    const auto [out, in] = ShapeOfModule(module);
    if (count < 0) count = out;
    const std::string stored =
        module == "lm_head" && !places_.contains("lm_head.weight") ? "model.embed_tokens" : module;
    // A convolution wants four dimensions, the embedding has two: the same bytes under the head's own name.
    const bool shared = stored != module && options_.convolutions && build_.Has(stored + ".weight");
    const ExternalPlace* place = shared ? &places_.at(stored + ".weight") : nullptr;
    const std::string weight =
        shared ? build_.External(module + ".weight", OnnxType::kFloat, MatrixShape(out, in), place->file, place->offset)
               : WeightRows(stored + ".weight", begin, count, out, in, MatrixShape(count, in));
    const std::string added = bias ? WeightRows(module + ".bias", begin, count, out, 1, {count}) : "";
    const auto rank = options_.lora_ranks.find(module);
    if (rank == options_.lora_ranks.end()) return Product(name, x, weight, added, count);
    const std::string base = Product(name + ".base", x, weight, added, count);
    const std::string scaled = module + ".lora.scaled";
    if (!build_.Has(scaled)) {
      const std::string middle =
          Product(module + ".lora.middle", x, Factor(module + ".lora_A", rank->second, in), "", rank->second);
      build_.Binary("Mul", scaled, middle, alpha_);
    }
    std::string b = Factor(module + ".lora_B", out, rank->second);
    if (count != out) b = build_.Slice(name + ".lora_B", b, 0, begin, begin + count);
    return build_.Binary("Add", name, base, Product(name + ".lora", scaled, b, "", count));
  }

  std::pair<int64_t, int64_t> ShapeOfModule(const std::string& module) const {
    for (const LinearKind kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO, LinearKind::kGate,
                                  LinearKind::kUp, LinearKind::kDown}) {
      if (!module.ends_with(std::string(".") + LinearKindName(kind))) continue;
      const LinearShape shape = ShapeOf(config_, kind);
      return {shape.out, shape.in};
    }
    return {config_.vocab, config_.hidden};
  }

  // RoPE on [.., S, head_dim].
  std::string Rope(const std::string& name, const std::string& x) {
    const auto axis = static_cast<int64_t>(build_.Shape(x).size()) - 1;
    const int64_t half = config_.head_dim / 2;
    const std::string low = build_.Slice(name + ".low", x, axis, 0, half);
    const std::string high = build_.Slice(name + ".high", x, axis, half, 2 * half);
    const std::string a = build_.Binary("Sub", name + ".a", build_.Binary("Mul", name + ".low_cos", low, cos_),
                                        build_.Binary("Mul", name + ".high_sin", high, sin_));
    const std::string b = build_.Binary("Add", name + ".b", build_.Binary("Mul", name + ".high_cos", high, cos_),
                                        build_.Binary("Mul", name + ".low_sin", low, sin_));
    return build_.Concat(name, {a, b}, axis);
  }

  float KeyScale() const { return 1.0F / std::sqrt(static_cast<float>(config_.head_dim)); }

  // One linear of the layer, split into `heads` heads: [1, heads, S, head_dim].
  std::string Heads(const std::string& name, const std::string& projected, int64_t heads) {
    const std::string split = build_.Reshape(name + ".split", projected, {1, options_.tokens, heads, config_.head_dim});
    return build_.Transpose(name + ".heads", split, {0, 2, 1, 3});
  }

  std::string MaybeNorm(const std::string& name, const std::string& x, const std::string& weight) {
    return config_.qk_norm ? RmsNorm(name, x, weight, config_.head_dim) : x;
  }

  std::string Attention(const std::string& prefix, const std::string& module, int64_t layer, const std::string& x) {
    const int64_t s = options_.tokens, c = options_.context, d = config_.head_dim;
    const int64_t kv = config_.kv_heads, group = config_.heads / config_.kv_heads;
    const std::string number = std::to_string(layer);
    const std::string past_key = build_.Input("past_key_" + number + "_in", OnnxType::kFloat, {kv, 1, d, c - s});
    const std::string past_value = build_.Input("past_value_" + number + "_in", OnnxType::kFloat, {kv, 1, c - s, d});

    std::string k = Heads(prefix + "k", Linear(prefix + "k_proj", module + "k_proj", x, config_.attention_bias), kv);
    k = Rope(prefix + "k.rope", MaybeNorm(prefix + "k.norm", k, module + "k_norm.weight"));
    k = build_.Binary("Mul", prefix + "k.scaled", k, build_.Scalar(KeyScale()));
    const std::string key = build_.Transpose("past_key_" + number + "_out", k, {1, 0, 3, 2});
    const std::string v =
        Heads(prefix + "v", Linear(prefix + "v_proj", module + "v_proj", x, config_.attention_bias), kv);
    const std::string value = build_.Transpose("past_value_" + number + "_out", v, {1, 0, 2, 3});
    build_.Output(key);
    build_.Output(value);
    const std::string keys = build_.Concat(prefix + "keys", {past_key, key}, 3);
    const std::string values = build_.Concat(prefix + "values", {past_value, value}, 2);

    std::string q =
        Heads(prefix + "q", Linear(prefix + "q_proj", module + "q_proj", x, config_.attention_bias), config_.heads);
    q = Rope(prefix + "q.rope", MaybeNorm(prefix + "q.norm", q, module + "q_norm.weight"));
    q = build_.Reshape(prefix + "q.groups", q, {kv, group, s, d});
    const std::string scores = build_.MatMul(prefix + "scores", q, keys);
    const std::string masked = build_.Binary("Add", prefix + "masked", scores, mask_);
    const std::string mixed = build_.MatMul(prefix + "mixed", build_.Softmax(prefix + "attention", masked), values);
    const std::string heads = build_.Reshape(prefix + "mixed.heads", mixed, {1, config_.heads, s, d});
    const std::string turned = build_.Transpose(prefix + "mixed.tokens", heads, {0, 2, 1, 3});
    return build_.Reshape(prefix + "mixed.rows", turned, Rows(config_.heads * d));
  }

  // The same head by head: each query head is a small attention of its own.
  std::string SplitAttention(const std::string& prefix, const std::string& module, int64_t layer,
                             const std::string& x) {
    const int64_t s = options_.tokens, c = options_.context, d = config_.head_dim;
    const int64_t kv = config_.kv_heads, group = config_.heads / config_.kv_heads;
    const std::string number = std::to_string(layer);
    const std::string past_key = build_.Input("past_key_" + number + "_in", OnnxType::kFloat, {kv, 1, d, c - s});
    const std::string past_value = build_.Input("past_value_" + number + "_in", OnnxType::kFloat, {kv, 1, c - s, d});
    // One head of a linear: [1, 1, S, head_dim].
    const auto project = [&](const std::string& name, const std::string& linear, int64_t head) {
      const std::string rows = Linear(name, module + linear, x, config_.attention_bias, head * d, d);
      return options_.convolutions ? rows : build_.Reshape(name + ".head", rows, {1, 1, s, d});
    };
    std::vector<std::string> new_keys, new_values, mixed;
    for (int64_t h = 0; h < kv; ++h) {
      const std::string name = std::to_string(h);
      std::string k = project(prefix + "k_proj." + name, "k_proj", h);
      k = Rope(prefix + "k.rope." + name, MaybeNorm(prefix + "k.norm." + name, k, module + "k_norm.weight"));
      k = build_.Binary("Mul", prefix + "k.scaled." + name, k, build_.Scalar(KeyScale()));
      const std::string key = build_.Transpose(prefix + "k.turned." + name, k, {0, 1, 3, 2});
      const std::string value = project(prefix + "v_proj." + name, "v_proj", h);
      new_keys.push_back(key);
      new_values.push_back(value);
      const std::string old_key = build_.Slice(prefix + "past_key." + name, past_key, 0, h, h + 1);
      const std::string old_value = build_.Slice(prefix + "past_value." + name, past_value, 0, h, h + 1);
      const std::string keys = build_.Concat(prefix + "keys." + name, {old_key, key}, 3);
      const std::string values = build_.Concat(prefix + "values." + name, {old_value, value}, 2);
      for (int64_t head = h * group; head < (h + 1) * group; ++head) {
        const std::string of = std::to_string(head);
        std::string q = project(prefix + "q_proj." + of, "q_proj", head);
        q = Rope(prefix + "q.rope." + of, MaybeNorm(prefix + "q.norm." + of, q, module + "q_norm.weight"));
        const std::string scores = build_.MatMul(prefix + "scores." + of, q, keys);
        const std::string masked = build_.Binary("Add", prefix + "masked." + of, scores, mask_);
        mixed.push_back(
            build_.MatMul(prefix + "mixed." + of, build_.Softmax(prefix + "attention." + of, masked), values));
      }
    }
    build_.Concat("past_key_" + number + "_out", new_keys, 0);
    build_.Concat("past_value_" + number + "_out", new_values, 0);
    build_.Output("past_key_" + number + "_out");
    build_.Output("past_value_" + number + "_out");
    const std::string heads = build_.Concat(prefix + "mixed.heads", mixed, 3);
    return options_.convolutions ? heads : build_.Reshape(prefix + "mixed.rows", heads, Rows(config_.heads * d));
  }

  std::string Layer(int64_t layer, const std::string& x) {
    const std::string module = "model.layers." + std::to_string(layer) + ".";
    const std::string prefix = "layer" + std::to_string(layer) + ".";
    const std::string normed = RmsNorm(prefix + "attention_norm", x, module + "input_layernorm.weight", config_.hidden);
    const std::string mixed = options_.per_head ? SplitAttention(prefix, module + "self_attn.", layer, normed)
                                                : Attention(prefix, module + "self_attn.", layer, normed);
    const std::string projected =
        Linear(prefix + "o_proj", module + "self_attn.o_proj", mixed, config_.attention_out_bias);
    const std::string middle = build_.Binary("Add", prefix + "attention_sum", x, projected);
    const std::string mlp_in =
        RmsNorm(prefix + "mlp_norm", middle, module + "post_attention_layernorm.weight", config_.hidden);
    const std::string gate = Linear(prefix + "gate_proj", module + "mlp.gate_proj", mlp_in, config_.mlp_bias);
    const std::string up = Linear(prefix + "up_proj", module + "mlp.up_proj", mlp_in, config_.mlp_bias);
    const std::string silu =
        build_.Binary("Mul", prefix + "silu", gate, build_.Unary("Sigmoid", prefix + "sigmoid", gate));
    const std::string product = build_.Binary("Mul", prefix + "gated", silu, up);
    const std::string down = Linear(prefix + "down_proj", module + "mlp.down_proj", product, config_.mlp_bias);
    return build_.Binary("Add", prefix + "sum", middle, down);
  }

  void Head(const std::string& x) {
    const int64_t s = options_.tokens;
    const std::string states = RmsNorm("final_norm", x, "model.norm.weight", config_.hidden);
    build_.Reshape("logits", Linear("lm_head", "lm_head", states, false), {1, s, config_.vocab});
    build_.Output("logits");
    if (options_.verifier == nullptr && options_.switcher == nullptr) return;
    const std::string flat = build_.Reshape("states", states, {s, config_.hidden});
    if (options_.verifier != nullptr) {
      const std::string score = HeadProduct("verifier.sum", flat, "verifier", 1, config_.hidden);
      build_.Reshape("verifier_score", build_.Unary("Sigmoid", "verifier.sigmoid", score), {1, s});
      build_.Output("verifier_score");
    }
    if (options_.switcher == nullptr || options_.switcher->pooling.chunk != s) return;
    const std::string weights = build_.Input("switcher_weights", OnnxType::kFloat, {1, s});
    const std::string blend = build_.Input("switcher_blend", OnnxType::kFloat, {1});
    const std::string before = build_.Input("switcher_state_in", OnnxType::kFloat, {1, config_.hidden});
    const std::string mean = build_.MatMul("switcher.mean", weights, flat);
    const std::string change = build_.Binary("Sub", "switcher.change", mean, before);
    const std::string part = build_.Binary("Mul", "switcher.part", change, blend);
    build_.Binary("Add", "switcher_state_out", before, part);
    build_.Output("switcher_state_out");
    const int64_t inner = options_.switcher->inner;
    const std::string middle =
        HeadProduct("switcher.fc1.sum", "switcher_state_out", "switcher.fc1", inner, config_.hidden);
    const std::string last =
        HeadProduct("switcher.fc2.sum", build_.Unary("Relu", "switcher.relu", middle), "switcher.fc2", 1, inner);
    build_.Unary("Sigmoid", "switcher_score", last);
    build_.Output("switcher_score");
  }

  // A small product on [rows, in], always a Gemm.
  std::string HeadProduct(const std::string& name, const std::string& x, const std::string& constants, int64_t out,
                          int64_t in) {
    return build_.Node("Gemm", name, {x, Weight(constants + ".weight", {out, in}), Weight(constants + ".bias", {out})},
                       {build_.Shape(x)[0], out}, {{"transB", int64_t{1}}});
  }

  const ModelConfig& config_;
  const GraphPart& part_;
  const DecoderGraphOptions& options_;
  const ExternalPlaces& places_;
  OnnxGraph graph_;
  GraphBuilder build_;
  std::string mask_, cos_, sin_, alpha_;
};

}  // namespace

std::string GraphName(const GraphPart& part, int64_t tokens, int64_t context) {
  return (tokens == 1 ? "token_ar" : "prompt_ar") + std::to_string(tokens) + "_cl" + std::to_string(context) + "_" +
         std::to_string(part.index) + "_of_" + std::to_string(part.count);
}

OnnxGraph BuildDecoderGraph(const ModelConfig& config, const GraphPart& part, const DecoderGraphOptions& options,
                            const ExternalPlaces& places) {
  return DecoderGraph(config, part, options, places).Build();
}

}  // namespace pith
