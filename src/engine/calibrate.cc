#include "engine/calibrate.h"

#include <filesystem>
#include <vector>

#include "model/pack.h"
#include "model/tokenizer_file.h"

namespace pith {

std::string_view CalibrationText() {
  return R"(The ferry to the island leaves twice a day, at eight in the morning and again at a quarter past four. Most people take
the early one, because the harbour café opens when it arrives and the bread is still warm. In winter, however, the sea is
often too rough, and then letters, newspapers and visitors alike have to wait on the mainland. My grandfather, who kept the
lighthouse between 1931 and 1968, used to say that the island taught patience to everyone except the gulls.

History remembers the town for its printers. Between the two great fires, seven workshops stood along the river, and
their almanacs were read as far away as Lisbon, Cracow and Smyrna. "A page without an error," wrote one of the masters,
"is a page that nobody has read closely." Scholars still disagree about where the paper came from; the watermarks point
north, the account books point south, and the chemical analysis of 1997 did not settle the question.

def moving_average(values, window=3):
    """Average of the last `window` values, for each position."""
    result = []
    total = 0.0
    for i, value in enumerate(values):
        total += value
        if i >= window:
            total -= values[i - window]
        result.append(total / min(i + 1, window))
    return result

struct Point { double x, y; };
double Distance(const Point& a, const Point& b) {
  const double dx = a.x - b.x, dy = a.y - b.y;
  return std::sqrt(dx * dx + dy * dy);  // never negative
}

User: A farmer sells 48 baskets of apples at $12.50 each and pays 15% of the income for transport. How much is left?
Assistant: Let's go step by step. The income is 48 * 12.50 = 600 dollars. Transport costs 0.15 * 600 = 90 dollars. So
600 - 90 = 510 dollars are left. The answer is \boxed{510}.

Let f(x) = x^2 - 5x + 6. Setting f(x) = 0 gives (x - 2)(x - 3) = 0, hence x = 2 or x = 3. The minimum lies halfway between
the roots, at x = 5/2, where f(5/2) = -1/4. Therefore f(x) >= -1/4 for all real x.

1. Rinse the lentils and soak them for at least an hour.
2. Fry the onions slowly; they should be soft, not brown.
3. Add cumin, a bay leaf and 750 ml of water, then simmer for 25 minutes.

Plants take in carbon dioxide through small openings called stomata. When a leaf loses too much water, the guard cells
close these openings, and photosynthesis slows down. The trade-off between growth and thirst explains why desert species
open their stomata only at night. Can you think of another way to save water? Yes: smaller leaves, a waxy surface, or roots
that reach the groundwater.

Guten Morgen! Wie komme ich zum Bahnhof? -- ¿Dónde está la biblioteca? -- Il fait beau aujourd'hui, n'est-ce pas?

SELECT name, COUNT(*) AS orders FROM customers JOIN sales USING (customer_id) WHERE year = 2021 GROUP BY name;
{"id": 17, "tags": ["red", "round"], "price": 3.99, "in_stock": true}
)";
}

Result<InputMoments> MeasureInputMoments(Engine& engine, std::span<const int32_t> tokens,
                                         const std::function<void(int64_t done)>& on_tokens) {
  const auto used = static_cast<size_t>(std::min(engine.context(), static_cast<int64_t>(tokens.size())));
  InputSums sums;
  engine.SumInputs(&sums);
  Sequence sequence = engine.NewSequence();
  PrefillOptions options;
  options.logits = Rows::kNone;
  options.on_progress = on_tokens;
  // The head reads the states after the final norm; it need not be run to know them.
  options.on_states = [&](std::span<const float> states, int64_t rows) {
    sums.Add("lm_head", states.data(), rows, engine.config().hidden);
  };
  const Result<StepOutput> output = engine.Prefill(sequence, tokens.first(used), nullptr, options);
  engine.SumInputs(nullptr);
  PITH_RETURN_IF_ERROR(output);
  return sums.Moments();
}

Result<InputMoments> MeasureMomentsForPacking(const Checkpoint& checkpoint, const std::string& scratch_folder,
                                              int threads,
                                              const std::function<void(uint64_t done, uint64_t total)>& on_progress) {
  PITH_ASSIGN(const PackRecipe coarse, ParseRecipe("w4g32,head=w4g32,embed=w8g32,method=minmax,kv=none"));
  const auto tokenizer = CheckpointTokenizer(checkpoint);
  if (!tokenizer.ok()) {
    return tokenizer.error().Wrap("weighing errors by the inputs needs a tokenizer (weigh=none packs without)");
  }
  PITH_ASSIGN(const std::vector<int32_t> tokens, (*tokenizer)->Encode(CalibrationText(), {.add_bos = true}));
  PackOptions options;
  options.threads = threads;
  // Packing is the first half of the work, running the second.
  if (on_progress) options.on_progress = [&](uint64_t done, uint64_t total) { on_progress(done, 2 * total); };
  const auto measure = [&]() -> Result<InputMoments> {
    PITH_RETURN_IF_ERROR(PackCheckpoint(checkpoint, coarse, scratch_folder, options));
    PITH_ASSIGN(auto packed, Checkpoint::Open(scratch_folder));
    EngineOptions engine_options;
    engine_options.threads = threads;
    engine_options.kv = KvType::kF32;
    PITH_ASSIGN(const auto engine, Engine::Load(std::move(packed), engine_options));
    const auto on_tokens = [&](int64_t done) {
      if (on_progress) on_progress(tokens.size() + static_cast<uint64_t>(done), 2 * tokens.size());
    };
    return MeasureInputMoments(*engine, tokens, on_tokens);
  };
  Result<InputMoments> moments = measure();
  std::error_code ignored;
  std::filesystem::remove_all(scratch_folder, ignored);
  if (!moments.ok()) return moments.error().Wrap("calibration");
  return moments;
}

}  // namespace pith
