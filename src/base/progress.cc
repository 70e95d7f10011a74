#include "base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace pith {

namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr const char* kEraseLine = "\r\x1b[K";

bool TerminalOnStderr() {
  if (::isatty(STDERR_FILENO) == 0) return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::strcmp(term, "dumb") != 0;
}

int TerminalWidth() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

template <class... Args>
std::string Format(const char* format, Args... args) {
  char buffer[96];
  std::snprintf(buffer, sizeof(buffer), format, args...);
  return buffer;
}

std::string Amount(uint64_t amount, ProgressUnit unit) {
  return unit == ProgressUnit::kBytes ? HumanBytes(amount) : std::to_string(amount);
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return Format(value < 10 ? "%.2f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  constexpr double kLongest = 1e7;  // beyond this an estimate means nothing
  const auto total = static_cast<int64_t>(std::clamp(seconds, 0.0, kLongest) + 0.5);
  if (total < 60) return std::to_string(total) + " s";
  if (total < 3600) return std::to_string(total / 60) + " min " + std::to_string(total % 60) + " s";
  return std::to_string(total / 3600) + " h " + std::to_string(total / 60 % 60) + " min";
}

std::string ProgressLine(const std::string& label, uint64_t done, uint64_t first, uint64_t total, double seconds,
                         ProgressUnit unit, int width) {
  const double rate = seconds > 0 && done > first ? static_cast<double>(done - first) / seconds : 0;
  std::string right;
  if (total > 0) {
    const uint64_t shown = std::min(done, total);
    const double fraction = static_cast<double>(shown) / static_cast<double>(total);
    right = Format(" %3d %%  ", static_cast<int>(fraction * 100)) + Amount(done, unit) + " of " + Amount(total, unit);
    if (rate > 0 && shown < total) right += ", " + HumanSeconds(static_cast<double>(total - shown) / rate) + " left";
    // The bar takes what is left of the line, 10 to 40 columns; without that room it is dropped.
    const int room = width - 1 - static_cast<int>(label.size() + right.size()) - 3;
    if (room >= 10) {
      const int columns = std::min(room, 40);
      const int filled = static_cast<int>(fraction * columns);
      right = " [" + std::string(static_cast<size_t>(filled), '#') +
              std::string(static_cast<size_t>(columns - filled), '.') + "]" + right;
    }
  } else {
    right = " " + Amount(done, unit);
    if (rate > 0 && unit == ProgressUnit::kBytes) right += ", " + HumanBytes(static_cast<uint64_t>(rate)) + "/s";
  }
  std::string line = label + right;
  if (width > 1 && line.size() > static_cast<size_t>(width - 1)) line.resize(static_cast<size_t>(width - 1));
  return line;
}

ProgressBar::ProgressBar(std::string label, uint64_t total, ProgressUnit unit)
    : label_(std::move(label)), total_(total), unit_(unit), visible_(TerminalOnStderr()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputc('\n', stderr);
}

void ProgressBar::Clear() {
  if (drawn_) std::fputs(kEraseLine, stderr);
  drawn_ = false;
}

void ProgressBar::Update(uint64_t done) {
  if (!visible_) return;
  const auto now = std::chrono::steady_clock::now();
  if (!started_) {
    started_ = true;
    first_ = done;
    start_ = now;
  } else if (now - last_draw_ < kRedrawInterval && done != total_) {
    return;
  }
  last_draw_ = now;
  Draw(done);
}

void ProgressBar::Draw(uint64_t done) {
  const double seconds = std::chrono::duration<double>(last_draw_ - start_).count();
  const std::string line = ProgressLine(label_, done, first_, total_, seconds, unit_, TerminalWidth());
  std::fputs(kEraseLine, stderr);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace pith
