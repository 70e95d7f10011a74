// Reading a data file out of a Python wheel (a zip archive).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"

namespace pith {

// Streams the entry `entry` of the zip archive at `path` through `sink`, piece by piece. An entry that says it holds,
// or turns out to hold, more than `max_bytes` is kMismatch. kMalformed: not a zip archive, or its checksum is wrong;
// kNotFound: no such entry. An error of the sink stops the reading and is returned.
Status ReadZipEntry(const std::string& path, const std::string& entry, uint64_t max_bytes,
                    const std::function<Status(std::span<const std::byte>)>& sink);

}  // namespace pith
