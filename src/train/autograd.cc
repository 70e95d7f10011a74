#include "train/autograd.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "kernels/backward.h"
#include "kernels/elementwise.h"
#include "train/blas.h"
#include "train/runtime_rounding.h"

namespace pith::train {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kRowsPerTask = 16;

template <class Body>
void ForRows(ThreadPool& pool, int64_t rows, const Body& body) {
  pool.Run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t r = task * kRowsPerTask; r < end; ++r) body(r);
  });
}

Tensor NewRows(int64_t rows, int64_t width) { return at::empty({rows, width}, at::kFloat); }

// Gradients may come as views or not at all.
Tensor Dense(const Tensor& gradient, int64_t rows, int64_t width) {
  return gradient.defined() ? gradient.contiguous() : at::zeros({rows, width}, at::kFloat);
}

// Pointers travel through the context as integers.
template <class T>
void Remember(AutogradContext* context, const char* name, const T* pointer) {
  context->saved_data[name] = static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer));
}
template <class T>
const T& Recall(AutogradContext* context, const char* name) {
  return *reinterpret_cast<const T*>(static_cast<intptr_t>(context->saved_data[name].toInt()));
}

struct RmsNormFunction : Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Pass* pass, const Tensor& x, const Tensor& weight, double eps) {
    const int64_t width = x.size(-1);
    Tensor y = at::empty_like(x);
    const float* from = x.data_ptr<float>();
    const float* w = weight.data_ptr<float>();
    float* to = y.data_ptr<float>();
    ForRows(*pass->pool, x.numel() / width,
            [&](int64_t r) { RmsNorm(from + r * width, w, width, static_cast<float>(eps), to + r * width); });
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    context->saved_data["weight"] = weight.requires_grad();
    Remember(context, "pass", pass);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& pass = Recall<Pass>(context, "pass");
    const variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const int64_t width = x.size(-1);
    const int64_t rows = x.numel() / width;
    const auto eps = static_cast<float>(context->saved_data["eps"].toDouble());
    const bool train = context->saved_data["weight"].toBool();
    const Tensor dy = gradients[0].contiguous();
    Tensor dx = at::empty_like(x);
    const float* x_rows = x.data_ptr<float>();
    const float* dy_rows = dy.data_ptr<float>();
    const float* w = saved[1].data_ptr<float>();
    float* dx_rows = dx.data_ptr<float>();
    // Each task sums its share of dweight in a row of its own, so that the order of sums is fixed.
    const int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
    Tensor shares = train ? at::zeros({tasks, width}, at::kFloat) : Tensor();
    float* share_rows = train ? shares.data_ptr<float>() : nullptr;
    ForRows(*pass.pool, rows, [&](int64_t r) {
      RmsNormBackward(x_rows + r * width, w, dy_rows + r * width, width, eps, dx_rows + r * width,
                      train ? share_rows + r / kRowsPerTask * width : nullptr);
    });
    Tensor dweight;
    if (train) {
      dweight = at::zeros({width}, at::kFloat);
      for (int64_t t = 0; t < tasks; ++t) AddInPlace(dweight.data_ptr<float>(), share_rows + t * width, width);
    }
    return {Tensor(), dx, dweight, Tensor()};
  }
};

struct SwiGluFunction : Function<SwiGluFunction> {
  static Tensor forward(AutogradContext* context, const Pass* pass, const Tensor& gate, const Tensor& up) {
    const int64_t width = gate.size(1);
    Tensor y = at::empty_like(gate);
    const float* g = gate.data_ptr<float>();
    const float* u = up.data_ptr<float>();
    float* to = y.data_ptr<float>();
    ForRows(*pass->pool, gate.size(0), [&](int64_t r) { SwiGlu(g + r * width, u + r * width, width, to + r * width); });
    context->save_for_backward({gate, up});
    Remember(context, "pass", pass);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& pass = Recall<Pass>(context, "pass");
    const variable_list saved = context->get_saved_variables();
    const int64_t width = saved[0].size(1);
    const Tensor dy = gradients[0].contiguous();
    Tensor dgate = at::empty_like(saved[0]);
    Tensor dup = at::empty_like(saved[1]);
    const float* g = saved[0].data_ptr<float>();
    const float* u = saved[1].data_ptr<float>();
    const float* from = dy.data_ptr<float>();
    float* to_gate = dgate.data_ptr<float>();
    float* to_up = dup.data_ptr<float>();
    ForRows(*pass.pool, dy.size(0), [&](int64_t r) {
      SwiGluBackward(g + r * width, u + r * width, from + r * width, width, to_gate + r * width, to_up + r * width);
    });
    return {Tensor(), dgate, dup};
  }
};

void RotateRows(const Pass& pass, const float* x, float* y, int64_t heads, const std::vector<float>& sin) {
  const int64_t d = pass.shape.head_dim;
  const int64_t half = d / 2;
  ForRows(*pass.pool, pass.rows, [&](int64_t r) {
    if (x != y) std::copy_n(x + r * heads * d, heads * d, y + r * heads * d);
    ApplyRope(y + r * heads * d, heads, d, pass.cos.data() + r * half, sin.data() + r * half);
  });
}

AttentionInputs InputsOf(const Pass& pass, int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
  AttentionInputs in;
  in.shape = pass.shape;
  in.spans = &pass.spans;
  in.rows = pass.rows;
  in.q = q.data_ptr<float>();
  in.k = k.data_ptr<float>();
  in.v = v.data_ptr<float>();
  if (pass.prefix != nullptr) {
    const KeysValues& prefix = (*pass.prefix)[static_cast<size_t>(layer)];
    in.prefix_k = prefix.first.data_ptr<float>();
    in.prefix_v = prefix.second.data_ptr<float>();
  }
  return in;
}

// Keys after RoPE, and values, as the cache holds them.
KeysValues CachedKeysValues(const Pass& pass, int64_t layer, const Tensor& k, const Tensor& v) {
  Tensor rotated_k = at::empty_like(k);
  RotateRows(pass, k.data_ptr<float>(), rotated_k.data_ptr<float>(), pass.shape.kv_heads, pass.sin);
  if (!pass.round_cache) return {rotated_k, v};
  static const std::vector<float> kNone;
  const AttentionShape& shape = pass.shape;
  const bool equalized = pass.key_equalizers != nullptr && !pass.key_equalizers->empty();
  RoundCached(rotated_k.data_ptr<float>(), pass.rows, shape.kv_heads, shape.head_dim,
              equalized ? (*pass.key_equalizers)[static_cast<size_t>(layer)] : kNone, rotated_k.data_ptr<float>(),
              *pass.pool);
  Tensor rounded_v = at::empty_like(v);
  RoundCached(v.data_ptr<float>(), pass.rows, shape.kv_heads, shape.head_dim, kNone, rounded_v.data_ptr<float>(),
              *pass.pool);
  return {rotated_k, rounded_v};
}

struct AttentionFunction : Function<AttentionFunction> {
  static Tensor forward(AutogradContext* context, const Pass* pass, int64_t layer, const Tensor& q, const Tensor& k,
                        const Tensor& v) {
    Tensor rotated_q = at::empty_like(q);
    RotateRows(*pass, q.data_ptr<float>(), rotated_q.data_ptr<float>(), pass->shape.heads, pass->sin);
    const auto [rotated_k, used_v] = CachedKeysValues(*pass, layer, k, v);
    Tensor out = at::empty_like(q);
    Tensor log_sums = NewRows(pass->shape.heads, pass->rows);
    AttentionForward(InputsOf(*pass, layer, rotated_q, rotated_k, used_v), out.data_ptr<float>(),
                     log_sums.data_ptr<float>(), *pass->pool);
    if (pass->keep != nullptr) pass->keep->emplace_back(rotated_k, used_v);
    context->save_for_backward({rotated_q, rotated_k, used_v, out, log_sums});
    context->saved_data["layer"] = layer;
    Remember(context, "pass", pass);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& pass = Recall<Pass>(context, "pass");
    const variable_list saved = context->get_saved_variables();
    const Tensor dout = gradients[0].contiguous();
    Tensor dq = at::empty_like(saved[0]);
    Tensor dk = at::empty_like(saved[1]);
    Tensor dv = at::empty_like(saved[2]);
    AttentionBackward(InputsOf(pass, context->saved_data["layer"].toInt(), saved[0], saved[1], saved[2]),
                      saved[3].data_ptr<float>(), saved[4].data_ptr<float>(), dout.data_ptr<float>(),
                      dq.data_ptr<float>(), dk.data_ptr<float>(), dv.data_ptr<float>(), *pass.pool);
    RotateRows(pass, dq.data_ptr<float>(), dq.data_ptr<float>(), pass.shape.heads, pass.negative_sin);
    RotateRows(pass, dk.data_ptr<float>(), dk.data_ptr<float>(), pass.shape.kv_heads, pass.negative_sin);
    return {Tensor(), Tensor(), dq, dk, dv};
  }
};

using Projections = std::vector<const Projection*>;

// The input of A: x with masked rows and dropped elements at zero. x itself when there is nothing to change.
const float* AdapterInput(const Pass& pass, const Projection& projection, const float* x, std::vector<float>* copy) {
  if (pass.adapter_rows.empty() && pass.dropout == 0) return x;
  const int64_t width = projection.in;
  copy->resize(static_cast<size_t>(pass.rows * width));
  std::copy_n(x, pass.rows * width, copy->data());
  for (size_t r = 0; r < pass.adapter_rows.size(); ++r) {
    if (pass.adapter_rows[r] == 0) std::fill_n(copy->data() + r * static_cast<size_t>(width), width, 0.0F);
  }
  if (pass.dropout > 0) ApplyDropout(pass, projection.Stream(), copy->data(), width);
  return copy->data();
}

bool HasLora(const Pass& pass, const Projection& projection) { return pass.adapter && projection.a.defined(); }

// Parameters as the function's arguments: of each projection weight and bias when trained, then A and B.
variable_list ParametersOf(const Pass& pass, const Projections& projections) {
  variable_list parameters;
  for (const Projection* p : projections) {
    if (p->frozen == nullptr) {
      parameters.push_back(p->weight);
      if (p->bias.defined()) parameters.push_back(p->bias);
    }
    if (HasLora(pass, *p)) {
      parameters.push_back(p->a);
      parameters.push_back(p->b);
    }
  }
  return parameters;
}

struct ProjectFunction : Function<ProjectFunction> {
  static variable_list forward(AutogradContext* context, const Pass* pass, const Projections* list, const Tensor& given,
                               at::TensorList /*parameters*/) {
    const Projections& projections = *list;
    const int64_t rows = given.size(0);
    Tensor x = given;
    if (pass->round_activations) {
      x = at::empty_like(given);
      RoundActivations(given.data_ptr<float>(), rows, given.size(1), x.data_ptr<float>(), *pass->pool);
    }
    const float* input = x.data_ptr<float>();
    variable_list outputs;
    std::vector<const FrozenLinear*> frozen;
    std::vector<float*> frozen_outputs;
    for (const Projection* p : projections) {
      outputs.push_back(NewRows(rows, p->out));
      float* y = outputs.back().data_ptr<float>();
      if (p->frozen != nullptr) {
        frozen.push_back(p->frozen);
        frozen_outputs.push_back(y);
        continue;
      }
      Gemm(*pass->pool, rows, p->out, p->in, 1.0F, {input, p->in},
           {p->weight.data_ptr<float>(), p->in, Op::kTransposed}, 0.0F, y, p->out);
      if (!p->bias.defined()) continue;
      for (int64_t r = 0; r < rows; ++r) AddInPlace(y + r * p->out, p->bias.data_ptr<float>(), p->out);
    }
    if (!frozen.empty()) FrozenForward(frozen, input, rows, frozen_outputs, *pass->pool);
    variable_list saved = {x};
    std::vector<float> copy;
    for (size_t i = 0; i < projections.size(); ++i) {
      const Projection& p = *projections[i];
      if (!HasLora(*pass, p)) continue;
      const int64_t rank = p.a.size(0);
      const float* adapted = AdapterInput(*pass, p, input, &copy);
      Tensor inner = NewRows(rows, rank);
      Gemm(*pass->pool, rows, rank, p.in, 1.0F, {adapted, p.in}, {p.a.data_ptr<float>(), p.in, Op::kTransposed}, 0.0F,
           inner.data_ptr<float>(), rank);
      Gemm(*pass->pool, rows, p.out, rank, p.scaling, {inner.data_ptr<float>(), rank},
           {p.b.data_ptr<float>(), rank, Op::kTransposed}, 1.0F, outputs[i].data_ptr<float>(), p.out);
      saved.push_back(inner);
    }
    context->save_for_backward(saved);
    context->saved_data["input"] = given.requires_grad();
    Remember(context, "pass", pass);
    Remember(context, "projections", list);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& pass = Recall<Pass>(context, "pass");
    const auto& projections = Recall<Projections>(context, "projections");
    ThreadPool& pool = *pass.pool;
    const variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const int64_t rows = x.size(0);
    const int64_t in = x.size(1);
    const float* input = x.data_ptr<float>();
    const bool wanted = context->saved_data["input"].toBool();
    Tensor dx = wanted ? NewRows(rows, in) : Tensor();
    float* to = wanted ? dx.data_ptr<float>() : nullptr;

    variable_list dense;  // holds the gradients that the pointers below point to
    std::vector<const FrozenLinear*> frozen;
    std::vector<const float*> frozen_gradients;
    for (size_t i = 0; i < projections.size(); ++i) {
      dense.push_back(Dense(gradients[i], rows, projections[i]->out));
      if (projections[i]->frozen == nullptr) continue;
      frozen.push_back(projections[i]->frozen);
      frozen_gradients.push_back(dense.back().data_ptr<float>());
    }
    bool written = false;
    if (wanted && !frozen.empty()) {
      FrozenBackward(frozen, frozen_gradients, rows, to, pool);
      written = true;
    }
    variable_list results = {Tensor(), Tensor(), dx};
    size_t next_inner = 1;
    std::vector<float> copy, dropped;
    for (size_t i = 0; i < projections.size(); ++i) {
      const Projection& p = *projections[i];
      const float* dy = dense[i].data_ptr<float>();
      if (p.frozen == nullptr) {
        if (wanted) {
          Gemm(pool, rows, in, p.out, 1.0F, {dy, p.out}, {p.weight.data_ptr<float>(), in}, written ? 1.0F : 0.0F, to,
               in);
          written = true;
        }
        Tensor dweight = NewRows(p.out, in);
        Gemm(pool, p.out, in, rows, 1.0F, {dy, p.out, Op::kTransposed}, {input, in}, 0.0F, dweight.data_ptr<float>(),
             in);
        results.push_back(dweight);
        if (p.bias.defined()) {
          Tensor dbias = at::zeros({p.out}, at::kFloat);
          for (int64_t r = 0; r < rows; ++r) AddInPlace(dbias.data_ptr<float>(), dy + r * p.out, p.out);
          results.push_back(dbias);
        }
      }
      if (!HasLora(pass, p)) continue;
      const int64_t rank = p.a.size(0);
      const Tensor& inner = saved[next_inner++];
      Tensor db = NewRows(p.out, rank);
      Gemm(pool, p.out, rank, rows, p.scaling, {dy, p.out, Op::kTransposed}, {inner.data_ptr<float>(), rank}, 0.0F,
           db.data_ptr<float>(), rank);
      Tensor dinner = NewRows(rows, rank);
      float* middle = dinner.data_ptr<float>();
      Gemm(pool, rows, rank, p.out, p.scaling, {dy, p.out}, {p.b.data_ptr<float>(), rank}, 0.0F, middle, rank);
      for (size_t r = 0; r < pass.adapter_rows.size(); ++r) {
        if (pass.adapter_rows[r] == 0) std::fill_n(middle + static_cast<int64_t>(r) * rank, rank, 0.0F);
      }
      const float* adapted = AdapterInput(pass, p, input, &copy);
      Tensor da = NewRows(rank, in);
      Gemm(pool, rank, in, rows, 1.0F, {middle, rank, Op::kTransposed}, {adapted, in}, 0.0F, da.data_ptr<float>(), in);
      results.push_back(da);
      results.push_back(db);
      if (!wanted) continue;
      const GemmInput a{p.a.data_ptr<float>(), in};
      if (pass.dropout == 0) {
        Gemm(pool, rows, in, rank, 1.0F, {middle, rank}, a, 1.0F, to, in);
      } else {
        dropped.resize(static_cast<size_t>(rows * in));
        Gemm(pool, rows, in, rank, 1.0F, {middle, rank}, a, 0.0F, dropped.data(), in);
        ApplyDropout(pass, p.Stream(), dropped.data(), in);
        AddInPlace(to, dropped.data(), rows * in);
      }
    }
    return results;
  }
};

}  // namespace

void ApplyDropout(const Pass& pass, uint64_t stream, float* x, int64_t width) {
  const auto threshold = static_cast<uint64_t>(std::lround(pass.dropout * 65536.0));
  const auto keep = static_cast<float>(1.0 / (1.0 - pass.dropout));
  const uint64_t key = Mix64(Mix64(pass.dropout_key) ^ stream);
  const int64_t draws = (width + 3) / 4;  // of a row: four elements take 16 bits each
  ForRows(*pass.pool, pass.rows, [&](int64_t r) {
    float* row = x + r * width;
    for (int64_t draw = 0; draw < draws; ++draw) {
      uint64_t bits = RandomBits(pass.seed, key, static_cast<uint64_t>((pass.first_row + r) * draws + draw));
      for (int64_t j = 4 * draw; j < std::min(width, 4 * draw + 4); ++j, bits >>= 16) {
        row[j] = (bits & 0xFFFF) < threshold ? 0.0F : row[j] * keep;
      }
    }
  });
}

Tensor RmsNormOp(const Pass& pass, const Tensor& x, const Tensor& weight, double eps) {
  return RmsNormFunction::apply(&pass, x, weight, eps);
}

std::vector<Tensor> ProjectOp(const Pass& pass, const Projections& projections, const Tensor& x) {
  // A TensorList: torch looks for arguments that need gradients in it, but not in a vector.
  const variable_list parameters = ParametersOf(pass, projections);
  return ProjectFunction::apply(&pass, &projections, x, at::TensorList(parameters));
}

Tensor AttentionOp(const Pass& pass, int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
  return AttentionFunction::apply(&pass, layer, q, k, v);
}

void KeepKeysValues(const Pass& pass, int64_t layer, const Tensor& k, const Tensor& v) {
  pass.keep->push_back(CachedKeysValues(pass, layer, k, v));
}

Tensor SwiGluOp(const Pass& pass, const Tensor& gate, const Tensor& up) {
  return SwiGluFunction::apply(&pass, gate, up);
}

}  // namespace pith::train
