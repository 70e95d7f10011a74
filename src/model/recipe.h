// What to make of a model when it is packed: the formats of its matrices and how their scales are found.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/quantize.h"

namespace pith {

// The format of one kind of matrix: low-bit integers, floats, or whatever holds the source without loss.
struct MatrixFormat {
  enum class Kind {
    kQuantized,
    kFloat,  // stored as `float_type`
    kKeep,   // block-quantized sources as they are where an exact form exists, else 8 bits in groups of 32
  };
  Kind kind = Kind::kQuantized;
  QuantFormat quant;                // kQuantized; its scale_type comes from the recipe
  DType float_type = DType::kBF16;  // kFloat: kBF16, kF16 or kF32

  bool operator==(const MatrixFormat&) const = default;
};

// "w4", "w8": one scale per row. "w4g32", "w8g64", "w4g128": one per group of inputs. A final "z" adds integer zero
// points ("w4g32z"), "m" float minimums. "bf16", "f16", "f32": floats. "keep": see MatrixFormat. kInvalidArgument.
Result<MatrixFormat> ParseMatrixFormat(std::string_view text);
std::string MatrixFormatText(const MatrixFormat& format);

struct PackRecipe {
  MatrixFormat linear;     // the linears of all layers
  MatrixFormat head;       // the LM head
  MatrixFormat embedding;  // the token embedding table
  QuantMethod method = QuantMethod::kMinMax;
  double p = 2.0;             // of kLp and kBest
  bool weigh_inputs = false;  // errors count by the second moments of their inputs, measured on the calibration text
  DType scale_type = DType::kF16;
  std::optional<int> kv_bits = 8;  // noted in config.json; independent of the weights

  bool operator==(const PackRecipe&) const = default;

  // One spelling per recipe, all fields named: "w4,head=w8,embed=w8,method=best,p=2,weigh=inputs,scales=f16,kv=8". It
  // parses back, and is a file name: the key of the cache.
  std::string Canonical() const;
};

// The recipe that `pith` uses when none is given: the best point of perplexity, speed and bytes (docs/results.md).
PackRecipe DefaultRecipe();

// A matrix format for the linears, then any of head=, embed=, method=minmax|lp|best, p=, weigh=inputs|none,
// scales=f16|f32, kv=8|none, separated by commas; "same" stands for the format of the linears. What is not given
// follows from the linears (DefaultHead, DefaultEmbedding, DefaultMethod); lp and best weigh inputs when there are
// weights of 4 bits. kInvalidArgument names the field.
Result<PackRecipe> ParseRecipe(std::string_view text);

// The head and the embedding table that go with linears of a format when the recipe does not say.
MatrixFormat DefaultHead(const MatrixFormat& linear);
MatrixFormat DefaultEmbedding(const MatrixFormat& linear);
// How scales are found when the recipe does not say, by measured perplexity (docs/results.md).
QuantMethod DefaultMethod(const MatrixFormat& linear);

}  // namespace pith
