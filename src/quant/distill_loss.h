// The loss of end-to-end training: how far the student's next-token distribution is from the teacher's.
#pragma once

#include <cstdint>

namespace pith::quant {

// Jensen-Shannon divergence in nats of P = softmax(teacher) and Q = softmax(student):
//   JSD = KL(P || M) / 2 + KL(Q || M) / 2, M = (P + Q) / 2, in [0, ln 2]
// `student` becomes weight * d JSD / d student: weight * Q_i (g_i - sum Q g) with g = ln(Q / M) / 2. `teacher` is
// overwritten. vocab >= 1. Not finite when an input is not.
double JensenShannon(float* teacher, float* student, int64_t vocab, float weight);

}  // namespace pith::quant
