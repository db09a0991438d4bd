// A replacement for libFuzzer where it is not available: mutates a corpus without
// coverage feedback, deterministically for a given seed.
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)())
    __attribute__((weak));

namespace {

using FuzzBytes = std::vector<std::uint8_t>;

constexpr std::size_t kMaxSize = 16 << 10;

FuzzBytes current;  // the input that is running
std::string crash_file;

void save_current() {
  std::ofstream(crash_file, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in %s\n", crash_file.c_str());
}

void on_abort(int) {
  save_current();
  std::_Exit(1);
}

void run(FuzzBytes input) {
  current = std::move(input);
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

FuzzBytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return FuzzBytes(std::istreambuf_iterator<char>(file), {});
}

std::vector<FuzzBytes> read_corpus(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<FuzzBytes> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  return corpus;
}

class Mutator {
 public:
  Mutator(std::vector<FuzzBytes> corpus, std::uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  FuzzBytes next() {
    FuzzBytes bytes = corpus_[below(corpus_.size())];
    for (std::size_t rounds = 1 + below(6); rounds > 0; --rounds) mutate(bytes);
    if (bytes.size() > kMaxSize) bytes.resize(kMaxSize);
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::uint8_t any_byte() { return static_cast<std::uint8_t>(random_()); }

  void mutate(FuzzBytes& bytes) {
    const auto at = static_cast<std::ptrdiff_t>(below(bytes.size() + 1));
    const std::size_t left = bytes.size() - static_cast<std::size_t>(at);
    switch (below(6)) {
      case 0:  // flip a bit
        if (left > 0) bytes[static_cast<std::size_t>(at)] ^= 1u << below(8);
        break;
      case 1:  // write a boundary value
        if (left > 0) {
          constexpr std::uint8_t kEdges[] = {0, 1, 0x3f, 0x40, 0x7f, 0x80, 0xfe, 0xff};
          bytes[static_cast<std::size_t>(at)] = kEdges[below(std::size(kEdges))];
        }
        break;
      case 2:  // write random bytes
        for (std::size_t i = 1 + below(8); i > 0; --i) {
          bytes.insert(bytes.begin() + at, any_byte());
        }
        break;
      case 3:  // remove bytes
        bytes.erase(bytes.begin() + at,
                    bytes.begin() + at +
                        static_cast<std::ptrdiff_t>(std::min(left, 1 + below(16))));
        break;
      case 4: {  // copy bytes of another input, or of this one
        const FuzzBytes& other = corpus_[below(corpus_.size())];
        if (other.empty()) break;
        const std::size_t from = below(other.size());
        const std::size_t count = 1 + below(other.size() - from);
        bytes.insert(bytes.begin() + at, other.begin() + static_cast<long>(from),
                     other.begin() + static_cast<long>(from + count));
        break;
      }
      case 5:  // cut off the end
        if (below(4) == 0) bytes.resize(static_cast<std::size_t>(at));
        break;
    }
  }

  std::vector<FuzzBytes> corpus_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  double seconds = 0;
  std::uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--seconds" && has_value) {
      seconds = std::strtod(argv[++i], nullptr);
    } else if (argument == "--seed" && has_value) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      paths.emplace_back(argument);
    }
  }
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  crash_file = "crash-" + name;
  std::signal(SIGABRT, on_abort);
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(save_current);

  const std::vector<FuzzBytes> corpus = read_corpus(paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s CORPUS... [--seconds S] [--seed N]\n", argv[0]);
    return 2;
  }
  for (const FuzzBytes& input : corpus) run(input);

  Mutator mutator(corpus, seed);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::size_t runs = corpus.size();
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 64; ++i) run(mutator.next());
    runs += 64;
  }
  std::printf("%s: %zu inputs, seed %llu, nothing found\n", name.c_str(), runs,
              static_cast<unsigned long long>(seed));
  return 0;
}
