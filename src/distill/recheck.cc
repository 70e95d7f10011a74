#include "distill/recheck.h"

#include <algorithm>
#include <array>

#include "base/random.h"
#include "distill/arithmetic.h"
#include "eval/settings.h"

namespace pith {
namespace {

// After an attempt that ended in another answer.
constexpr std::array kCorrections = {
    "Wait, something about that is off. Let me go through the problem again from the start.",
    "Hmm, I should not trust that yet. Reading the question again, I think I went wrong somewhere. Once more, "
    "carefully:",
    "Hold on. When I put that result back into the problem, it does not fit. Let me redo it.",
    "No, that cannot be right. I mixed something up on the way. Let me start over and do one step at a time.",
    "Wait, is that really what is asked? I do not think so. Let me work it out again.",
    "Actually, let me look at that again. One of the steps does not follow. I will try again.",
};
// After a derivation that breaks off.
constexpr std::array kRestarts = {
    "Hmm, wait. Before I go on, let me make sure that I have understood the question. I will write it out from the "
    "start.",
    "Hold on, I am going too fast. Let me begin again and keep track of every number.",
    "Wait, am I sure about this? Let me go back and do it properly.",
    "Let me stop here for a moment. I want to be certain of what is given, so once more from the beginning.",
    "Hmm, I am not sure that this leads anywhere. Let me start again, step by step.",
};
// Before anything.
constexpr std::array kDoubts = {
    "This looks simple, but I might be missing something. Let me not guess. I will do it step by step.",
    "Hmm, what exactly is asked here? Let me read it again. All right, now one step after the other.",
    "My first idea would be to answer right away, but that could be wrong. Let me work it out instead.",
    "Let me think. There is a chance to mix things up here, so I will be careful.",
};
constexpr std::array kChecks = {
    "Let me check the calculations again:",
    "Now a check of the numbers:",
    "Before I answer, let me verify that:",
    "Is every step right? I go over them:",
};
constexpr std::array kChecked = {
    "That is all right, so the answer is",
    "Everything agrees. The answer is",
    "These hold, so I am confident in",
    "Good, nothing changes. It is",
};
constexpr std::array kOtherWays = {
    "Let me check that in another way.",
    "To be sure, I try it differently once more.",
    "Does another way give the same? Let me see.",
};
constexpr std::array kAgreed = {
    "Both ways lead to the same result:",
    "The same again, so the answer is",
    "That agrees with what I had:",
};
constexpr std::array kGoneOver = {
    "Let me go over it once more. Each step follows from what is given and from the steps before it, so I keep",
    "Let me look back at the question. What I found is what is asked for:",
    "One more look at it: I used everything that is given, and nothing else. So it is",
    "Checking again, I find no mistake. The answer stays",
};

constexpr size_t kMostChecked = 3;  // equations that are repeated

// Draws from the sets above; a draw depends on (seed, id, slot) alone.
class Phrases {
 public:
  Phrases(uint64_t seed, std::string_view id) : seed_(QuestionSeed(seed, id, 0)) {}
  uint64_t Bits(uint64_t slot) const { return RandomBits(seed_, 0xD157, slot); }
  template <size_t N>
  std::string Pick(const std::array<const char*, N>& set, uint64_t slot) const {
    return set[Bits(slot) % N];
  }

 private:
  uint64_t seed_;
};

// The first half of a text, by lines that are not empty, else by sentences; empty when there is only one.
std::string FirstHalf(const std::string& text) {
  for (const std::string_view separator : {"\n", ". "}) {
    std::vector<size_t> ends;  // of pieces that are followed by another
    for (size_t at = text.find(separator); at != std::string::npos; at = text.find(separator, at + 1)) {
      const bool more = text.find_first_not_of(" \t\r\n", at + separator.size()) != std::string::npos;
      const bool fresh = at > 0 && text[at - 1] != '\n';
      if (more && fresh) ends.push_back(separator == "\n" ? at : at + 1);
    }
    if (!ends.empty()) return text.substr(0, ends[(ends.size() - 1) / 2]);
  }
  return {};
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "\n\n") + part;
  return text;
}

std::string Check(const RecheckParts& parts, const Phrases& phrases) {
  const std::string answer = " " + parts.right.answer + ".";
  auto equations = TrueEquations(parts.right.text);
  // The other way is a long check: now and then.
  if (parts.other != nullptr && (equations.empty() || phrases.Bits(3) % 3 == 0)) {
    return phrases.Pick(kOtherWays, 4) + "\n\n" + parts.other->text + "\n\n" + phrases.Pick(kAgreed, 5) + answer;
  }
  if (equations.empty()) return phrases.Pick(kGoneOver, 6) + answer;
  if (equations.size() > kMostChecked) {
    equations.erase(equations.begin(), equations.end() - static_cast<std::ptrdiff_t>(kMostChecked));
  }
  std::string text = phrases.Pick(kChecks, 7);
  for (size_t i = 0; i < equations.size(); ++i) text += (i == 0 ? " " : ", ") + equations[i];
  return text + ". " + phrases.Pick(kChecked, 8) + answer;
}

}  // namespace

Recheck ComposeRecheck(const RecheckParts& parts, uint64_t seed, std::string_view id) {
  const Phrases phrases(seed, id);
  Recheck recheck;
  std::vector<std::string> texts;
  if (parts.wrong != nullptr) {
    recheck.opening = RecheckOpening::kWrongAttempt;
    texts = {parts.wrong->text, phrases.Pick(kCorrections, 0)};
  } else if (const std::string half = FirstHalf(parts.right.text); !half.empty()) {
    recheck.opening = RecheckOpening::kFalseStart;
    texts = {half, phrases.Pick(kRestarts, 1)};
  } else {
    texts = {phrases.Pick(kDoubts, 2)};
  }
  texts.push_back(parts.right.text);
  texts.push_back(Check(parts, phrases));
  recheck.thoughts = Joined(texts);
  return recheck;
}

}  // namespace pith
