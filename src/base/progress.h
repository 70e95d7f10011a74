// A progress bar with an estimate of the time left, on standard error, only when that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace pith {

enum class ProgressUnit { kBytes, kItems };

// Where no terminal is there (or TERM is "dumb") nothing at all is written, so scripts and logs stay clean. Not
// thread-safe. The destructor ends the line.
class ProgressBar {
 public:
  // `total` of 0 means unknown: the amount and the rate are shown without a bar.
  ProgressBar(std::string label, uint64_t total, ProgressUnit unit = ProgressUnit::kBytes);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // The amount done so far (not an increment). Redraws at most ten times a second.
  void Update(uint64_t done);
  void SetTotal(uint64_t total) { total_ = total; }
  // Shown from the next redrawing on.
  void SetLabel(std::string label) { label_ = std::move(label); }
  // Removes the bar from the screen, so that a message can be printed in its place. A later Update draws it again.
  void Clear();

 private:
  void Draw(uint64_t done);
  std::string label_;
  uint64_t total_;
  ProgressUnit unit_;
  bool visible_;
  bool drawn_ = false;
  uint64_t first_ = 0;  // amount at the first update: a resumed transfer does not count what was there before
  bool started_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

// The text of the bar for a given state, `width` columns at most; exposed for tests. `seconds` is the time spent on
// `done - first`.
std::string ProgressLine(const std::string& label, uint64_t done, uint64_t first, uint64_t total, double seconds,
                         ProgressUnit unit, int width);

// "468.6 MiB", "1.04 GiB", "12 B".
std::string HumanBytes(uint64_t bytes);
// "7 s", "3 min 20 s", "2 h 5 min".
std::string HumanSeconds(double seconds);

}  // namespace pith
