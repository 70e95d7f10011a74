#include "train/comm.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#ifdef PITH_GLOO
#include "train/comm_gloo.h"
#endif

namespace pith::train {

namespace {

class Single : public Comm {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllReduceSum(std::span<float> /*values*/) override { return {}; }
  Status Barrier() override { return {}; }
};

// An environment variable as a number in [low, high].
Result<int> Number(const char* name, int low, int high) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return Error{ErrorCode::kInvalidArgument, std::string("WORLD_SIZE is set, but ") + name + " is not"};
  }
  const std::string digits = text;
  const bool plain =
      !digits.empty() && digits.size() <= 6 && digits.find_first_not_of("0123456789") == std::string::npos;
  const int value = plain ? std::stoi(digits) : -1;
  if (value < low || value > high) {
    return Error{ErrorCode::kInvalidArgument, std::string(name) + " is '" + digits + "', not a number from " +
                                                  std::to_string(low) + " to " + std::to_string(high)};
  }
  return value;
}

}  // namespace

std::unique_ptr<Comm> SingleProcess() { return std::make_unique<Single>(); }

Result<std::unique_ptr<Comm>> CommFromEnvironment() {
  if (std::getenv("WORLD_SIZE") == nullptr) return SingleProcess();
  PITH_ASSIGN(const int size, Number("WORLD_SIZE", 1, 65535));
  if (size == 1) return SingleProcess();
  PITH_ASSIGN(const int rank, Number("RANK", 0, size - 1));
  PITH_ASSIGN(const int port, Number("MASTER_PORT", 1, 65535));
  const char* host = std::getenv("MASTER_ADDR");
  if (host == nullptr) return Error{ErrorCode::kInvalidArgument, "WORLD_SIZE is set, but MASTER_ADDR is not"};
#ifdef PITH_GLOO
  GlooAddress address;
  address.rank = rank;
  address.size = size;
  address.host = host;
  address.port = static_cast<uint16_t>(port);
  // Ranks that meet on this machine's loopback interface talk over it.
  if (address.host == "127.0.0.1" || address.host == "localhost") address.interface_host = address.host;
  return ConnectGloo(address);
#else
  return Error{ErrorCode::kUnsupported, "rank " + std::to_string(rank) + " of " + std::to_string(size) + " at " + host +
                                            ":" + std::to_string(port) +
                                            ": this program was built without gloo (libgloo-dev)"};
#endif
}

}  // namespace pith::train
