// The one way a subcommand writes its JSON. Include only in .cc files (see base/json.h).
#pragma once

#include <cstdio>
#include <string>

#include "base/json.h"

namespace pith {

// One line on standard output. Text that is not UTF-8 (it can come from a file) is written with U+FFFD.
inline void PrintJson(const OrderedJson& json) {
  const std::string line = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace pith
