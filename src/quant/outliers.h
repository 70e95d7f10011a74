// How far single channels of a linear's inputs stand out. One channel that is much larger than the others takes the
// range of a quantizer for itself; rotations spread it (FPTQuant and QuaRot are judged by this).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/input_moments.h"

namespace pith::quant {

// Root mean square of the largest channel over that of all: 1 when all are alike, sqrt(channels) when one has
// everything. `moments`: E[x^2] of each channel; 1 when all are 0.
double OutlierRatio(std::span<const float> moments);

struct InputOutliers {
  std::string module;  // the linear; those that share an input are there once, under the first one's name
  double before = 1;   // of the source model
  double after = 1;    // of the model that was packed
};

// Of every module of `before` that `after` has too, in the order of layers.
std::vector<InputOutliers> CompareOutliers(const InputMoments& before, const InputMoments& after);

}  // namespace pith::quant
