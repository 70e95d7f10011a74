// Makes small zip archives and wheels for tests.
#pragma once

#include <gtest/gtest.h>
#include <zip.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace pith::testing {

using ZipEntries = std::vector<std::pair<std::string, std::string>>;  // path inside, content

inline void WriteZip(const std::string& path, const ZipEntries& entries, bool compress) {
  int error = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
  ASSERT_NE(archive, nullptr) << error;
  for (const auto& [name, content] : entries) {
    zip_source_t* source = zip_source_buffer(archive, content.data(), content.size(), 0);
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, ZIP_FL_OVERWRITE);
    ASSERT_GE(index, 0);
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), compress ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
  }
  ASSERT_EQ(zip_close(archive), 0);
}

// A wheel that pip accepts, in `folder`.
inline void WriteWheel(const std::string& folder, const std::string& name, const std::string& version,
                       const ZipEntries& data) {
  std::string module = name;
  for (char& c : module) c = c == '-' ? '_' : c;
  const std::string info = module + "-" + version + ".dist-info/";
  ZipEntries entries = data;
  entries.push_back({info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"});
  entries.push_back(
      {info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"});
  entries.push_back({info + "RECORD", ""});
  std::filesystem::create_directories(folder);
  WriteZip(folder + "/" + module + "-" + version + "-py3-none-any.whl", entries, true);
}

}  // namespace pith::testing
