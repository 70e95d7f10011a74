// Support for the tests of training: golden tensors, errors relative to a norm, batches of golden tokens.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "support/data.h"
#include "train/train_model.h"

namespace pith::train {

inline std::shared_ptr<const SafetensorsFile> Golden(const std::string& path) {
  auto file = SafetensorsFile::Open(testing::GoldenPath(path));
  EXPECT_TRUE(file.ok()) << file.error().message;
  return *file;
}

inline std::vector<float> Floats(const SafetensorsFile& file, const std::string& name) {
  const Tensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  auto values = ToFloats(*tensor);
  EXPECT_TRUE(values.ok());
  return *values;
}

inline std::vector<int32_t> Ints(const SafetensorsFile& file, const std::string& name) {
  const Tensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<int32_t> values(static_cast<size_t>(tensor->elements()));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

// L2 distance relative to the L2 norm of `want`.
inline double RelativeError(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  if (got.size() != want.size()) return 1e9;
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    error += difference * difference;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(error / norm);
}

inline std::unique_ptr<TrainModel> LoadModel(const std::string& path, const TrainModelOptions& options) {
  const auto checkpoint = Checkpoint::Open(path[0] == '/' ? path : testing::GoldenPath("models/" + path));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  auto model = TrainModel::Load(*checkpoint, options);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(*model);
}

// Rank 8, scaling 2: what the golden adapters have.
inline TrainModelOptions WithLora(double dropout = 0) {
  TrainModelOptions options;
  options.lora = LoraOptions{.rank = 8, .alpha = 16, .dropout = dropout};
  options.threads = 2;
  return options;
}

// A model of the golden ones with its adapter `all`.
inline std::unique_ptr<TrainModel> LoadAdapted(const std::string& name, TrainModelOptions options = WithLora()) {
  options.base = BaseFormat::kF32;
  auto model = LoadModel(name, options);
  const Status status = model->LoadAdapter(testing::GoldenPath("models/" + name + "/adapters/all"));
  EXPECT_TRUE(status.ok()) << status.error().message;
  return model;
}

// The golden tokens as one sample; the response begins at `response`.
inline Sample GoldenSample(const std::string& model, int64_t response = 27) {
  const auto ids = Ints(*Golden("models/" + model + "/golden.safetensors"), "input_ids");
  Sample sample;
  sample.tokens = ids;
  sample.response = response;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    sample.labels.push_back(static_cast<int64_t>(t) + 1 >= response ? ids[t + 1] : kNoLabel);
  }
  sample.labels.push_back(kNoLabel);
  return sample;
}

inline std::vector<float> Gradients(TrainModel& model) {
  std::vector<float> all;
  for (const Parameter& p : model.parameters()) all.insert(all.end(), p.gradient.begin(), p.gradient.end());
  return all;
}

// Accumulates the mean loss of a batch; returns the loss.
inline double MeanLoss(TrainModel& model, const TrainBatch& batch, uint64_t key = 0) {
  const auto labels = static_cast<size_t>(batch.Labels());
  const std::vector<float> weights(labels, 1.0F / static_cast<float>(labels));
  const auto scores = model.Accumulate(batch, weights, key);
  EXPECT_TRUE(scores.ok()) << scores.error().message;
  if (!scores.ok()) return std::nan("");
  double loss = 0;
  for (const float value : scores->log_probs) loss -= static_cast<double>(value);
  return loss / static_cast<double>(labels);
}

}  // namespace pith::train
