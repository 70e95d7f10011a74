// Quantization encodings of a float graph, in the JSON forms that Qualcomm's converter reads: what a runtime needs to
// turn the float graph into one of integers.
//
//   x = (q + offset) * scale, q an unsigned integer of `bits` bits (QNN's Qnn_ScaleOffset_t)
//
// Versions: 0.6.1 (a dictionary, one entry per channel), 1.0.0 (lists of named entries), 2.0.0 (one list in ONNX's
// words: y_scale, y_zero_point = -offset). Only 1.0.0 has words for blocks of inputs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pith {

enum class EncodingVersion { k0_6_1, k1_0_0, k2_0_0 };
Result<EncodingVersion> ParseEncodingVersion(std::string_view text);
const char* EncodingVersionName(EncodingVersion version);

struct TensorEncoding {
  bool parameter = false;  // a constant of the graph; else a value that it computes or is given
  int bits = 16;           // 4, 8 or 16
  bool symmetric = false;  // offset -2^(bits-1): as signed integers -2^(bits-1) to 2^(bits-1) - 1 around zero
  int64_t block = 0;       // inputs per scale; 0 = all
  // One, or one per output channel (the first dimension), or with blocks one per channel and block, in that order.
  std::vector<float> scales;
  int32_t offset = 0;  // of all

  // The range that integers can stand for.
  double Lowest(size_t index) const;
  double Highest(size_t index) const;
};

// By name of the value in the graph.
using Encodings = std::map<std::string, TensorEncoding>;

// The encoding of a range, which is widened to hold 0.
TensorEncoding EncodeRange(float lowest, float highest, int bits, bool symmetric);

// kUnsupported names a tensor that the version has no words for (blocks).
Result<std::string> WriteEncodings(const Encodings& encodings, EncodingVersion version);

// What a graph has: the shape of every value, and whether it is a constant.
struct GraphTensor {
  std::vector<int64_t> shape;
  bool constant = false;
};

// Checks a file of any of the versions: its keys, their types, ranges of numbers, and that scales, offsets, minima and
// maxima agree with each other; with `tensors` also that every name is one of the graph's, a constant where parameters
// stand, with a scale per channel. kMalformed names the tensor and the field; kMismatch a disagreement with the graph.
Status ValidateEncodings(std::string_view json, const std::string& what,
                         const std::map<std::string, GraphTensor>* tensors = nullptr);

}  // namespace pith
