#include "quant/gptq.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/blas.h"

namespace pith::quant {

namespace {

// In eight partial sums, so that it vectorizes; a fixed order.
float Dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float total = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

}  // namespace

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
