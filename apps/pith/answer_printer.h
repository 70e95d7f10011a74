// Shows an answer on the terminal as it comes: one response as text, its thoughts dim; several as a line of progress,
// then the chosen one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "reason/answer.h"

namespace pith {

class AnswerPrinter {
 public:
  // Sets the callbacks of the options; it must outlive the answer. `quiet`: nothing is shown (--json).
  AnswerPrinter(AnswerOptions& options, bool quiet);
  AnswerPrinter(const AnswerPrinter&) = delete;
  AnswerPrinter& operator=(const AnswerPrinter&) = delete;

  // The rest of the answer and the end of the line; the vote on standard error when that is a terminal.
  void Finish(const AnswerResult& answer);

 private:
  void Text(std::string_view text, bool thought);
  void Progress(std::span<const StreamProgress> streams);
  void ClearProgress();

  bool quiet_;
  int64_t budget_;
  bool color_;
  bool terminal_;  // standard error is one
  bool dim_ = false;
  bool drawn_ = false;
  bool show_text_ = false;  // there is one response: it is shown as it comes
  bool printed_ = false;
  double last_draw_ = 0;
};

// "3 of 8 done | 512 tokens each: 120 512. 88t ...": `t` thinks, `.` is done. At most `width` columns.
std::string StreamsLine(std::span<const StreamProgress> streams, int64_t budget, size_t width);

// "4 of 8 for 18 (weight 3.1), 2 for 20, 1 without an answer".
std::string VoteLine(const AnswerResult& answer);

}  // namespace pith
