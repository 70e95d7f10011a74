#include "quant/gptq.h"

#include <torch/csrc/autograd/custom_function.h>  // first: clang does not parse types.h without it
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/backward.h"
#include "quant/stored_scale.h"
#include "train/blas.h"

namespace pith::quant {

Result<std::shared_ptr<const ErrorFeedback>> ErrorFeedback::Make(const std::vector<float>& gram, int64_t n,
                                                                 double damping) {
  if (n < 1 || static_cast<int64_t>(gram.size()) != n * n) {
    return Error{ErrorCode::kInvalidArgument, "a Gram matrix of another size than the inputs"};
  }
  auto feedback = std::make_shared<ErrorFeedback>();
  feedback->n_ = n;
  std::vector<int32_t>& order = feedback->order_;
  order.resize(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto diagonal = [&](int32_t i) { return gram[static_cast<size_t>(i * n + i)]; };
  double mean = 0.0;
  for (const int32_t i : order) mean += static_cast<double>(diagonal(i)) / static_cast<double>(n);
  if (!(mean > 0.0) || !std::isfinite(mean)) {
    return Error{ErrorCode::kNumeric, "a Gram matrix without inputs, or not finite"};
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return diagonal(a) < diagonal(b); });
  at::Tensor matrix = at::empty({n, n}, at::kDouble);
  auto* values = matrix.data_ptr<double>();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<size_t>(order[static_cast<size_t>(i)] * n + order[static_cast<size_t>(j)]);
      values[i * n + j] = static_cast<double>(gram[at]);
    }
    values[i * n + i] += damping * mean;
  }
  const train::SerialBlas serial;
  const auto [factor, info] = at::linalg_cholesky_ex(matrix, /*upper=*/true);
  if (info.item<int>() != 0) return Error{ErrorCode::kNumeric, "a Gram matrix that is not positive definite"};
  const at::Tensor floats = factor.to(at::kFloat).contiguous();
  feedback->upper_.assign(floats.data_ptr<float>(), floats.data_ptr<float>() + n * n);
  return std::shared_ptr<const ErrorFeedback>(std::move(feedback));
}

void ErrorFeedback::Round(const QuantFormat& format, const float* row, const QuantizedRow& out, float* wanted) const {
  const int64_t group = format.group == 0 ? n_ : format.group;
  const auto levels = static_cast<float>((1 << format.bits) - 1);
  std::vector<float> errors(static_cast<size_t>(n_));
  for (int64_t place = n_ - 1; place >= 0; --place) {
    const int64_t input = order_[static_cast<size_t>(place)];
    const float* factor = upper_.data() + place * n_;
    const float carried = Dot(factor + place + 1, errors.data() + place + 1, n_ - 1 - place) / factor[place];
    const int64_t g = input / group;
    const float scale = out.scales[g];
    float zero = static_cast<float>(1 << (format.bits - 1));
    if (format.zero == ZeroForm::kZeroPoint) zero = static_cast<float>(out.zeros[g]);
    float minimum = 0.0f;
    if (format.zero == ZeroForm::kMinimum) {
      zero = 0.0f;
      minimum = out.minimums[g];
    }
    float code = static_cast<float>(out.codes[input]);
    float value = code;
    if (scale != 0.0f) {
      value = (row[input] + carried - minimum) / scale + zero;
      code = std::clamp(std::nearbyint(value), 0.0f, levels);
      out.codes[input] = static_cast<uint8_t>(code);
    }
    if (wanted != nullptr) wanted[input] = value;
    errors[static_cast<size_t>(place)] = row[input] - (scale * (code - zero) + minimum);
  }
}

int ErrorFeedback::Tries::best() const { return static_cast<int>(std::min_element(errors, errors + kTries) - errors); }

void ErrorFeedback::Try(const QuantFormat& format, const float* row, const float* scales, Tries* tries) const {
  const int64_t group = format.group == 0 ? n_ : format.group;
  const auto half = static_cast<float>(1 << (format.bits - 1));
  const auto levels = static_cast<float>((1 << format.bits) - 1);
  std::vector<float> scale_of(static_cast<size_t>(n_ / group * kTries));
  for (size_t i = 0; i < scale_of.size(); ++i) {
    scale_of[i] = StoredScale(scales[i / kTries] * tries->factors[i % kTries], format.scale_type);
  }
  std::vector<float> errors(static_cast<size_t>(n_ * kTries));
  tries->chosen.resize(errors.size());
  tries->wanted.resize(errors.size());
  std::fill_n(tries->errors, kTries, 0.0);
  for (int64_t place = n_ - 1; place >= 0; --place) {
    const int64_t input = order_[static_cast<size_t>(place)];
    const float* factor = upper_.data() + place * n_;
    float carried[kTries];
    DotColumns(factor + place + 1, errors.data() + (place + 1) * kTries, n_ - 1 - place, carried);
    for (int k = 0; k < kTries; ++k) {
      const auto at = static_cast<size_t>(input * kTries + k);
      const float carry = carried[k] / factor[place];
      const float scale = scale_of[static_cast<size_t>(input / group * kTries + k)];
      const float value = scale == 0.0f ? half : (row[input] + carry) / scale + half;
      const float code = k == 0 && tries->codes != nullptr ? static_cast<float>(tries->codes[input])
                                                           : std::clamp(std::nearbyint(value), 0.0f, levels);
      tries->chosen[at] = static_cast<uint8_t>(code);
      tries->wanted[at] = value;
      const float error = row[input] - scale * (code - half);
      errors[static_cast<size_t>(place * kTries + k)] = error;
      const auto component = static_cast<double>(factor[place] * (error + carry));
      tries->errors[k] += component * component;
    }
  }
}

double ErrorFeedback::Fit(const QuantFormat& format, const float* row, float scale, const uint8_t* codes) const {
  const auto half = static_cast<float>(1 << (format.bits - 1));
  std::vector<float> weights(static_cast<size_t>(n_)), approximation(static_cast<size_t>(n_));
  for (int64_t place = 0; place < n_; ++place) {
    const auto input = static_cast<size_t>(order_[static_cast<size_t>(place)]);
    weights[static_cast<size_t>(place)] = row[input];
    approximation[static_cast<size_t>(place)] = scale * (static_cast<float>(codes[input]) - half);
  }
  double both = 0.0, own = 0.0;
  for (int64_t place = 0; place < n_; ++place) {
    const float* factor = upper_.data() + place * n_ + place;
    const auto wanted = static_cast<double>(Dot(factor, weights.data() + place, n_ - place));
    const auto given = static_cast<double>(Dot(factor, approximation.data() + place, n_ - place));
    both += wanted * given;
    own += given * given;
  }
  return own > 0.0 && both > 0.0 ? both / own : 1.0;
}

void ErrorFeedback::RoundAndScale(const QuantFormat& format, const float* row, const QuantizedRow& out,
                                  float* wanted) const {
  if (format.zero != ZeroForm::kSymmetric) return Round(format, row, out, wanted);
  const int64_t groups = format.group == 0 ? 1 : n_ / format.group;
  const std::vector<float> scales(out.scales, out.scales + groups);
  std::vector<uint8_t> codes(static_cast<size_t>(n_));
  const auto take_codes = [&](const Tries& tries, int k) {
    for (int64_t i = 0; i < n_; ++i) codes[static_cast<size_t>(i)] = tries.chosen[static_cast<size_t>(i * kTries + k)];
  };
  // Wide apart first, then close around the best of them.
  Tries wide{{1.0f, 0.78f, 0.85f, 0.92f, 1.08f, 1.17f, 1.27f, 1.38f}};
  Try(format, row, scales.data(), &wide);
  const int first = wide.best();
  take_codes(wide, first);
  const float factor = wide.factors[first];
  const float fitted =
      groups > 1 ? factor : factor * static_cast<float>(Fit(format, row, scales[0] * factor, codes.data()));
  Tries close{{fitted, fitted, factor * 0.95f, factor * 0.967f, factor * 0.983f, factor * 1.017f, factor * 1.033f,
               factor * 1.05f},
              codes.data()};
  Try(format, row, scales.data(), &close);
  const int second = close.best();
  const bool refined = close.errors[second] < wide.errors[first];
  const Tries& tries = refined ? close : wide;
  const int k = refined ? second : first;
  for (int64_t g = 0; g < groups; ++g) {
    out.scales[g] = StoredScale(scales[static_cast<size_t>(g)] * tries.factors[k], format.scale_type);
  }
  for (int64_t i = 0; i < n_; ++i) {
    const auto at = static_cast<size_t>(i * kTries + k);
    out.codes[i] = tries.chosen[at];
    if (wanted != nullptr) wanted[i] = tries.wanted[at];
  }
}

double QuadraticError(const std::vector<float>& gram, int64_t n, const float* row, const float* approximation) {
  double total = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0.0;
    for (int64_t j = 0; j < n; ++j) {
      sum += static_cast<double>(gram[static_cast<size_t>(i * n + j)]) *
             (static_cast<double>(row[j]) - static_cast<double>(approximation[j]));
    }
    total += sum * (static_cast<double>(row[i]) - static_cast<double>(approximation[i]));
  }
  return total;
}

}  // namespace pith::quant
