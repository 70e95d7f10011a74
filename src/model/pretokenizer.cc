#include "model/pretokenizer.h"

#include <algorithm>

namespace pith {

namespace {

// Collects the matches and the gaps of one piece, in order, and joins them as the behavior says.
class PieceCollector {
 public:
  PieceCollector(SplitBehavior behavior, bool invert, std::vector<Piece>* out)
      : behavior_(behavior), invert_(invert), out_(out) {}

  void StartPiece() {
    first_ = out_->size();
    previous_match_ = false;
    any_ = false;
    pending_ = {};
  }

  void Add(uint32_t begin, uint32_t end, bool is_match) {
    const bool match = is_match != invert_;
    switch (behavior_) {
      case SplitBehavior::kIsolated: out_->push_back({begin, end}); break;
      case SplitBehavior::kRemoved:
        if (!match) out_->push_back({begin, end});
        break;
      case SplitBehavior::kContiguous:
        if (any_ && match == previous_match_) {
          out_->back().end = end;
        } else {
          out_->push_back({begin, end});
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (match && !previous_match_ && out_->size() > first_) {
          out_->back().end = end;
        } else {
          out_->push_back({begin, end});
        }
        break;
      case SplitBehavior::kMergedWithNext:
        // A match waits for the gap that follows; a match behind a match lets the earlier one go alone.
        if (match) {
          if (waiting()) out_->push_back(pending_);
          pending_ = {begin, end};
        } else {
          out_->push_back({waiting() ? pending_.begin : begin, end});
          pending_ = {};
        }
        break;
    }
    previous_match_ = match;
    any_ = true;
  }

  void FinishPiece() {
    if (waiting()) out_->push_back(pending_);
  }

 private:
  bool waiting() const { return pending_.end > pending_.begin; }

  SplitBehavior behavior_;
  bool invert_;
  std::vector<Piece>* out_;
  size_t first_ = 0;
  bool previous_match_ = false;
  bool any_ = false;
  Piece pending_;
};

// Puts a space in front of each piece that does not start with one.
std::string AddPrefixSpaces(std::string_view text, std::vector<Piece>* pieces) {
  std::string out;
  out.reserve(text.size() + pieces->size());
  for (Piece& piece : *pieces) {
    const auto begin = static_cast<uint32_t>(out.size());
    if (text[piece.begin] != ' ') out += ' ';
    out += text.substr(piece.begin, piece.end - piece.begin);
    piece = {begin, static_cast<uint32_t>(out.size())};
  }
  return out;
}

}  // namespace

void PreTokenizer::AddSplit(std::shared_ptr<const SplitRegex> regex, SplitBehavior behavior, bool invert) {
  steps_.push_back({std::move(regex), behavior, invert, false});
}

Status PreTokenizer::AddDigits(bool individual) {
  PITH_ASSIGN(auto regex, SplitRegex::Compile("\\p{N}"));
  AddSplit(std::move(regex), individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
  return {};
}

Status PreTokenizer::AddByteLevel(bool add_prefix_space, bool use_regex) {
  Step step;
  step.add_prefix_space = add_prefix_space;
  if (use_regex) {
    PITH_ASSIGN(step.regex, SplitRegex::Compile("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                                                "\\s+(?!\\S)|\\s+"));
  }
  steps_.push_back(std::move(step));
  return {};
}

Status PreTokenizer::Split(std::string_view* text, std::string* storage, std::vector<Piece>* pieces) const {
  pieces->clear();
  if (text->empty()) return {};
  if (text->size() > kMaxText) {
    return Error{ErrorCode::kInvalidArgument,
                 "a text of " + std::to_string(text->size()) + " bytes is too long to tokenize"};
  }
  pieces->push_back({0, static_cast<uint32_t>(text->size())});
  std::vector<Piece> split;
  for (const Step& step : steps_) {
    if (step.add_prefix_space) {
      std::string spaced = AddPrefixSpaces(*text, pieces);
      if (spaced.size() > 2 * kMaxText) return Error{ErrorCode::kInvalidArgument, "a text is too long to tokenize"};
      *storage = std::move(spaced);
      *text = *storage;
    }
    if (step.regex == nullptr) continue;
    split.clear();
    split.reserve(std::max(pieces->size(), text->size() / 4));
    SplitRegex::Searcher searcher(*step.regex, *text);
    PieceCollector collector(step.behavior, step.invert, &split);
    for (const Piece& piece : *pieces) {
      const std::string_view part = text->substr(piece.begin, piece.end - piece.begin);
      collector.StartPiece();
      size_t at = 0;
      while (at < part.size()) {
        size_t begin = 0;
        size_t end = 0;
        PITH_ASSIGN(const bool found, searcher.Find(part, at, &begin, &end));
        if (!found) begin = end = part.size();
        const auto place = [&](size_t offset) { return piece.begin + static_cast<uint32_t>(offset); };
        if (begin > at) collector.Add(place(at), place(begin), false);
        if (end > begin) collector.Add(place(begin), place(end), true);
        at = end;
      }
      collector.FinishPiece();
    }
    pieces->swap(split);
  }
  return {};
}

}  // namespace pith
