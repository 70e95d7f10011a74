// The float model as a teacher: its states over a text, computed once and kept on disk, and its head.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/checkpoint.h"

namespace pith::quant {

// How the float model is run: train::TrainModelOptions.
struct TeacherOptions {
  int threads = 0;
  std::string device = "cpu";
};

// Windows of a text that see nothing of each other. What the teacher says about a position is head * state; the states
// (after the final norm) take hidden x 2 bytes a token, and the float model itself is in memory only while they are
// made. So the student has the memory to itself, and a second pass over the text costs the head alone.
class Teacher {
 public:
  // Cuts the tokens into windows of `window`; what is left over is dropped. Makes what is missing in `folder`, a part
  // of 16 windows after the other, so that an interrupted call goes on. kInvalidArgument: fewer tokens than a window.
  static Result<std::unique_ptr<Teacher>> Make(const std::shared_ptr<const Checkpoint>& checkpoint,
                                               std::span<const int32_t> tokens, int64_t window,
                                               const std::string& folder, const TeacherOptions& options,
                                               const std::function<void(int64_t done, int64_t total)>& on_window = {});

  int64_t windows() const { return static_cast<int64_t>(tokens_.size()) / window_; }
  int64_t window() const { return window_; }
  std::vector<int32_t> Tokens(int64_t window) const;
  // [window, hidden].
  Result<std::vector<float>> States(int64_t window) const;
  // logits[rows, vocab] of states[rows, hidden]; on the calling thread when the pool is null.
  void Logits(const float* states, int64_t rows, float* logits, ThreadPool* pool) const;
  int64_t vocab() const { return vocab_; }
  int64_t hidden() const { return hidden_; }

 private:
  std::string PartPath(int64_t part) const;
  Status MakeStates(const std::shared_ptr<const Checkpoint>& checkpoint, const TeacherOptions& options,
                    const std::function<void(int64_t done, int64_t total)>& on_window) const;

  std::vector<int32_t> tokens_;
  int64_t window_ = 0, vocab_ = 0, hidden_ = 0;
  std::string folder_;
  std::vector<float> head_;  // [vocab, hidden]
};

}  // namespace pith::quant
