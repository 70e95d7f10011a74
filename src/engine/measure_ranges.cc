#include "engine/measure_ranges.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace pith {

namespace {

constexpr int64_t kWindow = 2048;
constexpr int64_t kChunk = 128;
constexpr int kCandidates = 100;
constexpr int kSide = 10;  // of the asymmetric grid

StaticQuantizer QuantizerOf(ActivationSite site, ValueRange range) {
  return IsCacheSite(site) ? StaticQuantizer::Cache(range) : StaticQuantizer::Activation(range);
}

// Candidate 0 is the whole range, so that the first of equals is the widest.
ValueRange Candidate(ActivationSite site, ValueRange whole, int index) {
  if (IsCacheSite(site)) {
    const float part = static_cast<float>(kCandidates - index) / kCandidates;
    return {whole.lowest * part, whole.highest * part};
  }
  const auto part = [](int i) { return 1.0F - 0.4F * static_cast<float>(i) / (kSide - 1); };
  return {whole.lowest * part(index / kSide), whole.highest * part(index % kSide)};
}

double SumOfErrors(const StaticQuantizer& quantizer, int power, std::span<const float> values) {
  double sum = 0;
  for (const float x : values) {
    const double error = std::fabs(static_cast<double>(quantizer.Round(x)) - static_cast<double>(x));
    double term = error;
    for (int i = 1; i < power; ++i) term *= error;
    sum += term;
  }
  return sum;
}

class RangeMeter {
 public:
  RangeMeter(Engine& engine, std::span<const int32_t> tokens, const MeasureRangesOptions& options)
      : engine_(engine), tokens_(tokens), options_(options) {
    const auto places = static_cast<size_t>(engine.config().layers * kActivationSites);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    whole_.assign(places, {kInfinity, -kInfinity});
    if (options.power > 0) errors_.resize(places);
  }

  Result<ActivationRanges> Run() {
    PITH_RETURN_IF_ERROR(Pass([this](int64_t layer, ActivationSite site, std::span<const float> values) {
      ValueRange& range = whole_[Place(layer, site)];
      // NaN fails every comparison; the engine reports it.
      for (const float x : values) {
        range.lowest = std::min(range.lowest, x);
        range.highest = std::max(range.highest, x);
      }
    }));
    if (options_.power > 0) {
      PITH_RETURN_IF_ERROR(Pass([this](int64_t layer, ActivationSite site, std::span<const float> values) {
        const size_t place = Place(layer, site);
        // Each candidate's sum is taken in one order, whichever thread does it.
        engine_.pool().Run(kCandidates, [&](int64_t i, int) {
          const ValueRange range = Candidate(site, whole_[place], static_cast<int>(i));
          errors_[place][static_cast<size_t>(i)] += SumOfErrors(QuantizerOf(site, range), options_.power, values);
        });
      }));
    }
    ActivationRanges ranges;
    ranges.method = options_.power == 0 ? "minmax" : "l" + std::to_string(options_.power);
    ranges.tokens = static_cast<int64_t>(tokens_.size());
    for (const ActivationSite site : ActivationSitesOf(engine_.config())) {
      const int64_t layers = static_cast<int>(site) < kLayerSites ? engine_.config().layers : 1;
      for (int64_t layer = 0; layer < layers; ++layer) ranges.values[ActivationName(site, layer)] = Best(layer, site);
    }
    PITH_RETURN_IF_ERROR(CheckActivationRanges(ranges, engine_.config()));
    return ranges;
  }

 private:
  size_t Place(int64_t layer, ActivationSite site) const {
    return static_cast<size_t>(layer * kActivationSites + static_cast<int>(site));
  }

  ValueRange Best(int64_t layer, ActivationSite site) const {
    if (site == ActivationSite::kMasked) {
      const ValueRange scores = Best(layer, ActivationSite::kScores);
      return {std::min(0.0F, scores.lowest) + kStaticMaskFloor, scores.highest};
    }
    const size_t place = Place(layer, site);
    if (options_.power == 0) return whole_[place];
    const auto& errors = errors_[place];
    const auto best = std::min_element(errors.begin(), errors.end()) - errors.begin();
    return Candidate(site, whole_[place], static_cast<int>(best));
  }

  Status Pass(ActivationObserver observer) {
    const auto total = static_cast<int64_t>(tokens_.size());
    const int64_t window = std::min(kWindow, engine_.context());
    engine_.ObserveActivations(std::move(observer));
    Status status;
    Sequence sequence = engine_.NewSequence();
    for (int64_t done = 0; done < total && status.ok();) {
      if (sequence.length() == window) sequence = engine_.NewSequence();
      const int64_t n = std::min({kChunk, total - done, window - sequence.length()});
      const StepItem item{&sequence, tokens_.subspan(static_cast<size_t>(done), static_cast<size_t>(n)), nullptr,
                          Rows::kAll, Rows::kNone};
      if (const Result<StepOutput> output = engine_.Step({&item, 1}); !output.ok()) status = output.error();
      done += n;
      const int64_t passes = options_.power > 0 ? 2 : 1;
      if (options_.on_tokens) options_.on_tokens(finished_ + done, passes * total);
    }
    finished_ += total;
    engine_.ObserveActivations({});
    return status;
  }

  Engine& engine_;
  std::span<const int32_t> tokens_;
  const MeasureRangesOptions& options_;
  int64_t finished_ = 0;  // tokens of earlier passes
  std::vector<ValueRange> whole_;
  std::vector<std::array<double, kCandidates>> errors_;
};

}  // namespace

Result<ActivationRanges> MeasureActivationRanges(std::shared_ptr<const Checkpoint> checkpoint,
                                                 std::span<const int32_t> tokens, const MeasureRangesOptions& options) {
  if (tokens.empty()) return Error{ErrorCode::kInvalidArgument, "the calibration text has no tokens"};
  if (options.power < 0 || options.power > 8) {
    return Error{ErrorCode::kInvalidArgument, "the power of the error must be 1 to 8, or 0 for none"};
  }
  EngineOptions engine_options;
  engine_options.weights = WeightFormat::kF32;
  engine_options.kv = KvType::kF32;
  engine_options.threads = options.threads;
  const std::string fingerprint = checkpoint->fingerprint();
  PITH_ASSIGN(const auto engine, Engine::Load(std::move(checkpoint), engine_options));
  PITH_ASSIGN(ActivationRanges ranges, RangeMeter(*engine, tokens, options).Run());
  ranges.model = fingerprint;
  return ranges;
}

}  // namespace pith
