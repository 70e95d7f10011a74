// Ranks over torch.distributed's gloo backend (TCP). Internal; CommFromEnvironment is the way in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "train/comm.h"

namespace pith::train {

struct GlooAddress {
  int rank = 0;
  int size = 1;
  std::string host;  // of rank 0, where the others meet
  uint16_t port = 0;
  std::string interface_host;  // name or address of this machine's interface; empty = gloo's choice
  int connect_seconds = 300;   // how long to wait for the others
};

// kUnavailable when they do not come.
Result<std::unique_ptr<Comm>> ConnectGloo(const GlooAddress& address);

}  // namespace pith::train
