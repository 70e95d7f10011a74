#include "train/reward.h"

#include <string>

#include "base/random.h"

namespace pith::train {

namespace {

constexpr uint64_t kBudgetStream = 0x6275646765740000ULL;  // "budget"

}  // namespace

Status CheckBudgetWindow(const BudgetWindow& window) {
  const auto share = [](double value, const char* name) -> Status {
    if (value >= 0 && value <= 1) return {};  // false for NaN
    return Error{ErrorCode::kInvalidArgument, std::string("the ") + name + " must be 0 to 1"};
  };
  PITH_RETURN_IF_ERROR(share(window.half_width, "half-width of the budget window"));
  return share(window.floor, "reward above the budget window");
}

double BudgetBarrier(int64_t length, int64_t budget, const BudgetWindow& window) {
  const auto used = static_cast<double>(length);
  const double low = (1.0 - window.half_width) * static_cast<double>(budget);
  const double high = (1.0 + window.half_width) * static_cast<double>(budget);
  if (used <= low) return 1.0;
  if (used > high) return window.floor;
  // From the floor up, so that rounding never goes below it.
  return window.floor + (1.0 - window.floor) * ((high - used) / (high - low));
}

std::optional<double> BudgetReward(Verdict verdict, int64_t length, int64_t budget, const BudgetWindow& window) {
  if (verdict == Verdict::kTooHard) return std::nullopt;
  return verdict == Verdict::kEqual ? BudgetBarrier(length, budget, window) : 0.0;
}

int64_t DrawBudget(const std::vector<int64_t>& budgets, uint64_t seed, uint64_t position) {
  return budgets[RandomBits(seed, kBudgetStream, position) % budgets.size()];
}

}  // namespace pith::train
