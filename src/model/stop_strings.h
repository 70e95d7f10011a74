// Stop strings over streamed text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pith {

// Passes generated text on until a stop string appears. Only the longest end of the text that is a proper prefix of a
// stop string is held back, so no part of a stop string is ever shown and nothing else waits.
class StopMatcher {
 public:
  // Empty stop strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  // Takes the next piece; returns the text that may be shown now. After a stop string has been seen, nothing more
  // comes.
  std::string Push(std::string_view piece);
  // The end of the generation: what was held back, for no stop string can complete any more.
  std::string Flush();

  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // the stop string that was seen

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // Knuth-Morris-Pratt: longest proper prefix that ends at each byte
    size_t matched = 0;          // bytes of `text` that the end of the input matches
  };
  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
  std::string stop_;
};

}  // namespace pith
