// Measuring how a model uses the inputs of its linears, for the quantizers (model/input_moments.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/engine.h"
#include "model/checkpoint.h"
#include "model/input_moments.h"

namespace pith {

// A page of prose, code, arithmetic and dialogue, written for this purpose: second moments settle within a few hundred
// tokens, and what matters is which inputs are large at all (docs/results.md).
std::string_view CalibrationText();

// Second moments of the inputs of all linears and of the LM head over `tokens`, which see each other as one text.
Result<InputMoments> MeasureInputMoments(Engine& engine, std::span<const int32_t> tokens,
                                         const std::function<void(int64_t done)>& on_tokens = {});

// The moments of an unpacked checkpoint over the calibration text. So that a model of any size can be run for it in
// little memory, it is first packed coarsely into `scratch_folder`, which is created and removed again: the moments are
// the same to a few percent. `on_progress` gets the work done, of how much, in units of its own. Errors of packing and
// running.
Result<InputMoments> MeasureMomentsForPacking(
    const Checkpoint& checkpoint, const std::string& scratch_folder, int threads,
    const std::function<void(uint64_t done, uint64_t total)>& on_progress = {});

}  // namespace pith
