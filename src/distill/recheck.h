// The long habit: a wrong turn or a doubt, a correction, the right derivation, and a check of it, all of it thoughts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "distill/select.h"

namespace pith {

struct RecheckParts {
  Derivation right;
  const Derivation* wrong = nullptr;  // an attempt with another answer; null = a doubt is voiced instead
  const Derivation* other = nullptr;  // another right one, for checking by another way; null = none
};

// What begins the thoughts, told apart for the counts.
enum class RecheckOpening { kWrongAttempt, kFalseStart, kDoubt };

struct Recheck {
  std::string thoughts;
  RecheckOpening opening = RecheckOpening::kDoubt;
};

// The sentences that connect the parts are chosen from small sets by (seed, id): the same trace for the same problem,
// whatever else is distilled. Without a wrong attempt the first half of a derivation breaks off, or where it has no
// halves a doubt comes first. The check repeats true equations of the derivation, takes the other way, or goes over the
// steps.
Recheck ComposeRecheck(const RecheckParts& parts, uint64_t seed, std::string_view id);

}  // namespace pith
