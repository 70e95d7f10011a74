#include "train/decoder.h"

#include <algorithm>

namespace pith::train {

using at::Tensor;

void Decoder::ForEachTensor(const std::function<void(Tensor&)>& visit) {
  const auto visit_projection = [&visit](Projection& p) {
    for (Tensor* tensor : {&p.weight, &p.bias, &p.a, &p.b}) visit(*tensor);
  };
  for (DecoderLayer& layer : layers) {
    for (Tensor* tensor : {&layer.attention_norm, &layer.mlp_norm, &layer.q_norm, &layer.k_norm}) visit(*tensor);
    for (Projection* p : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      visit_projection(*p);
    }
  }
  for (Tensor* tensor : {&embedding, &final_norm, &head_weight}) visit(*tensor);
  visit_projection(head_lora);
}

void Decoder::Link() {
  for (DecoderLayer& layer : layers) {
    layer.qkv = {&layer.q, &layer.k, &layer.v};
    layer.output = {&layer.o};
    layer.gate_up = {&layer.gate, &layer.up};
    layer.down_only = {&layer.down};
  }
  if (head_weight.defined()) {
    head.weight = head_weight.data_ptr<float>();
    head.weight_gradient = head_weight.grad().data_ptr<float>();
  }
  if (head_lora.a.defined()) {
    head.rank = head_lora.a.size(0);
    head.scaling = head_lora.scaling;
    head.a = head_lora.a.data_ptr<float>();
    head.b = head_lora.b.data_ptr<float>();
    head.a_gradient = head_lora.a.grad().data_ptr<float>();
    head.b_gradient = head_lora.b.grad().data_ptr<float>();
  }
}

Tensor Decoder::Embed(const std::vector<int32_t>& tokens, ThreadPool& pool) const {
  const int64_t hidden = config.hidden;
  Tensor x = at::empty({static_cast<int64_t>(tokens.size()), hidden}, at::kFloat);
  float* rows = x.data_ptr<float>();
  const float* table = embedding.defined() ? embedding.data_ptr<float>() : nullptr;
  pool.Run(static_cast<int64_t>(tokens.size()), [&](int64_t r, int) {
    const int32_t token = tokens[static_cast<size_t>(r)];
    if (table != nullptr) {
      std::copy_n(table + token * hidden, hidden, rows + r * hidden);
    } else {
      embedding_table->Row(token, rows + r * hidden);
    }
  });
  return x;
}

Decoder::Heads Decoder::QueriesKeysValues(int64_t index, const Tensor& x, const Pass& pass) const {
  const DecoderLayer& layer = layers[static_cast<size_t>(index)];
  const Tensor normed = RmsNormOp(pass, x, layer.attention_norm, config.rms_eps);
  const auto qkv = ProjectOp(pass, layer.qkv, normed);
  Heads heads{qkv[0], qkv[1], qkv[2]};
  if (config.qk_norm) {
    const int64_t d = config.head_dim;
    heads.q = RmsNormOp(pass, heads.q.view({-1, d}), layer.q_norm, config.rms_eps).view_as(heads.q);
    heads.k = RmsNormOp(pass, heads.k.view({-1, d}), layer.k_norm, config.rms_eps).view_as(heads.k);
  }
  return heads;
}

Tensor Decoder::Layer(int64_t index, const Tensor& x, const Pass& pass) const {
  const DecoderLayer& layer = layers[static_cast<size_t>(index)];
  const Heads heads = QueriesKeysValues(index, x, pass);
  const Tensor mixed = AttentionOp(pass, index, heads.q, heads.k, heads.v);
  const Tensor middle = x + ProjectOp(pass, layer.output, mixed)[0];
  const Tensor normed = RmsNormOp(pass, middle, layer.mlp_norm, config.rms_eps);
  const auto gate_up = ProjectOp(pass, layer.gate_up, normed);
  const Tensor active = SwiGluOp(pass, gate_up[0], gate_up[1]);
  return middle + ProjectOp(pass, layer.down_only, active)[0];
}

void Decoder::KeysValuesOnly(int64_t index, const Tensor& x, const Pass& pass) const {
  const Heads heads = QueriesKeysValues(index, x, pass);
  KeepKeysValues(pass, index, heads.k, heads.v);
}

namespace {

struct LayerFunction : torch::autograd::Function<LayerFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Decoder* decoder, int64_t index,
                        const Pass* pass, const Tensor& x) {
    context->save_for_backward({x});
    context->saved_data["index"] = index;
    context->saved_data["decoder"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(decoder));
    context->saved_data["pass"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(pass));
    return decoder->Layer(index, x, *pass);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto pointer = [&](const char* name) { return static_cast<intptr_t>(context->saved_data[name].toInt()); };
    const auto& decoder = *reinterpret_cast<const Decoder*>(pointer("decoder"));
    const auto& pass = *reinterpret_cast<const Pass*>(pointer("pass"));
    const at::AutoGradMode with_graph(true);
    Tensor x = context->get_saved_variables()[0].detach();
    x.set_requires_grad(true);
    decoder.Layer(context->saved_data["index"].toInt(), x, pass).backward(gradients[0]);
    return {Tensor(), Tensor(), Tensor(), x.grad()};
  }
};

}  // namespace

Tensor Decoder::CheckpointedLayer(int64_t index, const Tensor& x, const Pass& pass) const {
  return LayerFunction::apply(this, index, &pass, x);
}

}  // namespace pith::train
