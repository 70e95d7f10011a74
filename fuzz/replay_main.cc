// Runs a fuzz target without libFuzzer: on every seed of its corpus, then on random mutations of them. The mutations
// are a function of the run number alone, so a failure repeats; before each run the input is kept in a file when asked.
//
//   fuzz_gguf CORPUS_DIR [--runs N] [--seconds S] [--keep FILE]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMaxInput = 1 << 16;

// Random numbers of one run.
class Dice {
 public:
  explicit Dice(uint64_t run) : run_(run) {}
  uint64_t Bits() { return pith::RandomBits(1, run_, position_++); }
  size_t Below(size_t end) { return end == 0 ? 0 : static_cast<size_t>(Bits() % end); }

 private:
  uint64_t run_;
  uint64_t position_ = 0;
};

// Writes a number of 1, 2, 4 or 8 bytes that is likely to break arithmetic.
void PutNumber(std::string* input, Dice* dice) {
  const size_t width = size_t{1} << dice->Below(4);
  if (input->size() < width) return;
  const uint64_t values[] = {0,
                             1,
                             2,
                             0x7f,
                             0x80,
                             0xff,
                             0xffff,
                             0x10000,
                             0x7fffffff,
                             0x80000000,
                             0xffffffff,
                             uint64_t{1} << 32,
                             uint64_t{1} << 62,
                             (uint64_t{1} << 63) - 1,
                             uint64_t{1} << 63,
                             ~uint64_t{0} - 7,
                             ~uint64_t{0},
                             input->size(),
                             dice->Bits(),
                             dice->Below(64)};
  const uint64_t value = values[dice->Below(std::size(values))];
  std::memcpy(input->data() + dice->Below(input->size() - width + 1), &value, width);
}

void Mutate(std::string* input, const std::vector<std::string>& seeds, Dice* dice) {
  const size_t at = dice->Below(input->size() + 1);
  const size_t length = dice->Below(std::min<size_t>(input->size() - at, 64) + 1);
  switch (dice->Below(8)) {
    case 0:
      if (!input->empty()) (*input)[dice->Below(input->size())] ^= static_cast<char>(1 << dice->Below(8));
      break;
    case 1:
      if (!input->empty()) (*input)[dice->Below(input->size())] = static_cast<char>(dice->Bits());
      break;
    case 2:
    case 3: PutNumber(input, dice); break;
    case 4: input->erase(at, length); break;
    case 5: input->insert(dice->Below(input->size() + 1), input->substr(at, length)); break;
    case 6: {
      const std::string& other = seeds[dice->Below(seeds.size())];
      input->insert(at, other.substr(dice->Below(other.size() + 1), dice->Below(64)));
      break;
    }
    case 7: {
      constexpr char kJsonCharacters[] = "{}[]\",:0123456789-+.eE \\untrfalse";
      input->insert(at, 1, kJsonCharacters[dice->Below(sizeof(kJsonCharacters) - 1)]);
      break;
    }
  }
  if (input->size() > kMaxInput) input->resize(kMaxInput);
}

void RunOne(const std::string& input, const std::string& keep) {
  if (!keep.empty()) std::ofstream(keep, std::ios::binary) << input;
  // A buffer of exactly this size, so that a sanitizer sees a read of one byte too many.
  const auto buffer = std::make_unique<uint8_t[]>(input.size());
  if (!input.empty()) std::memcpy(buffer.get(), input.data(), input.size());
  LLVMFuzzerTestOneInput(buffer.get(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_DIR [--runs N] [--seconds S] [--keep FILE]\n", argv[0]);
    return 2;
  }
  uint64_t runs = 200000;
  double seconds = 5.0;
  std::string keep;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--runs") runs = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--seconds") seconds = std::strtod(argv[i + 1], nullptr);
    if (option == "--keep") keep = argv[i + 1];
  }
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], error)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds in '%s'\n", argv[1]);
    return 1;
  }
  for (const std::string& seed : seeds) RunOne(seed, keep);
  RunOne("", keep);

  const auto begin = std::chrono::steady_clock::now();
  uint64_t run = 0;
  for (; run < runs; ++run) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds) break;
    Dice dice(run);
    std::string input = seeds[dice.Below(seeds.size())];
    for (size_t steps = 1 + dice.Below(8); steps > 0; --steps) Mutate(&input, seeds, &dice);
    RunOne(input, keep);
  }
  std::printf("%zu seeds and %llu mutations passed\n", seeds.size(), static_cast<unsigned long long>(run));
  return 0;
}
