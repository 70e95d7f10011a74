#include "model/stop_strings.h"

#include <algorithm>
#include <utility>

namespace pith {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (auto& text : stops) {
    if (text.empty()) continue;
    Stop stop;
    stop.text = std::move(text);
    stop.border.assign(stop.text.size(), 0);
    for (size_t i = 1, length = 0; i < stop.text.size(); ++i) {
      while (length > 0 && stop.text[i] != stop.text[length]) length = stop.border[length - 1];
      if (stop.text[i] == stop.text[length]) ++length;
      stop.border[i] = length;
    }
    stops_.push_back(std::move(stop));
  }
}

std::string StopMatcher::Push(std::string_view piece) {
  if (stopped_) return {};
  for (const char c : piece) {
    held_ += c;
    // Of stop strings that complete at the same byte, the longest hides the most.
    size_t found = 0;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != c) stop.matched = stop.border[stop.matched - 1];
      if (stop.text[stop.matched] == c) ++stop.matched;
      if (stop.matched != stop.text.size()) continue;
      if (stop.matched > found) {
        found = stop.matched;
        stop_ = stop.text;
      }
      stop.matched = stop.border[stop.matched - 1];
    }
    if (found > 0) {
      stopped_ = true;
      held_.resize(held_.size() - found);
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.matched);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace pith
