// Ranks over torch.distributed's gloo backend. Includes torch.
#include "train/comm_gloo.h"

#include <torch/csrc/autograd/custom_function.h>  // first: clang does not parse types.h without it
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

namespace pith::train {

namespace {

// Longer than any step: ranks wait for the slowest, and for rank 0 while it evaluates and writes.
constexpr std::chrono::minutes kTimeout{60};

class GlooComm : public Comm {
 public:
  GlooComm(const GlooAddress& address, c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : rank_(address.rank), size_(address.size), group_(std::move(group)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status AllReduceSum(std::span<float> values) override {
    return Try([&] {
      std::vector<at::Tensor> tensors = {
          at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat)};
      group_->allreduce(tensors)->wait();
    });
  }

  Status Barrier() override {
    return Try([&] { group_->barrier()->wait(); });
  }

 private:
  template <class Body>
  Status Try(const Body& body) const {
    try {
      body();
      return {};
    } catch (const std::exception& exception) {
      return Error{ErrorCode::kUnavailable, "rank " + std::to_string(rank_) + " lost the others: " + exception.what()};
    }
  }

  int rank_;
  int size_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

Result<std::unique_ptr<Comm>> ConnectGloo(const GlooAddress& address) {
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = address.port;
    store_options.isServer = address.rank == 0;
    store_options.numWorkers = static_cast<std::size_t>(address.size);
    store_options.timeout = std::chrono::seconds(address.connect_seconds);
    auto store = c10::make_intrusive<c10d::TCPStore>(address.host, store_options);
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->timeout = kTimeout;
    options->devices.push_back(address.interface_host.empty()
                                   ? c10d::ProcessGroupGloo::createDefaultDevice()
                                   : c10d::ProcessGroupGloo::createDeviceForHostname(address.interface_host));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, address.rank, address.size, options);
    return std::unique_ptr<Comm>(std::make_unique<GlooComm>(address, std::move(group)));
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kUnavailable, "rank " + std::to_string(address.rank) + " cannot reach the others at " +
                                              address.host + ":" + std::to_string(address.port) + ": " +
                                              exception.what()};
  }
}

}  // namespace pith::train
