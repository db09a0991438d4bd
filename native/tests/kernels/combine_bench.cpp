// Compares the speed of combining with memcpy, by the bytes that must cross the memory
// bus.
//
//   make build/native/kernels/combine_bench && build/native/kernels/combine_bench [MiB]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/combine.h"

namespace bluecomm {
namespace {

// Returns the best time of several runs, in seconds.
template <typename Body>
double best_time(Body&& body) {
  double best = 1e9;
  for (int run = 0; run < 9; ++run) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

void report(const char* what, std::size_t tensors, std::size_t nbytes, double seconds) {
  std::printf("%-34s %8.2f ms  %6.1f GB/s read and written\n", what, seconds * 1e3,
              static_cast<double>(tensors * nbytes) / seconds / 1e9);
}

void run(std::size_t nbytes) {
  std::vector<std::vector<std::byte>> inputs(8, std::vector<std::byte>(nbytes));
  std::vector<std::byte> out(nbytes);
  for (std::vector<std::byte>& input : inputs) {
    std::fill(input.begin(), input.end(), std::byte{0x3c});
  }
  std::fill(out.begin(), out.end(), std::byte{1});
  report("memcpy", 2, nbytes,
         best_time([&] { std::memcpy(out.data(), inputs[0].data(), nbytes); }));
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                            DType::kBfloat16, DType::kInt8}) {
    for (const std::size_t count : {2, 3, 4, 5, 8}) {
      std::vector<Term> terms;
      const double weight = is_floating(dtype) ? 0.25 : 1.0;
      for (std::size_t t = 0; t < count; ++t)
        terms.push_back({inputs[t].data(), weight});
      for (const CpuLevel level :
           {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
        if (level > cpu_level()) continue;
        char what[64];
        std::snprintf(what, sizeof what, "%s, %zu terms, level %d",
                      dtype_name(dtype).data(), count, static_cast<int>(level));
        report(what, count + 1, nbytes,
               best_time([&] { combine_weighted(out, terms, 1.0, dtype, level); }));
      }
      const double in_place = best_time(
          [&] { combine_weighted(inputs[0], terms, 1.0, dtype, cpu_level()); });
      report("   the same in place", count + 1, nbytes, in_place);
      std::fill(inputs[0].begin(), inputs[0].end(), std::byte{0x3c});
    }
  }
}

}  // namespace
}  // namespace bluecomm

int main(int argc, char** argv) {
  const int mebibytes = argc > 1 ? std::atoi(argv[1]) : 64;
  bluecomm::run(static_cast<std::size_t>(std::max(mebibytes, 1)) << 20);
  return 0;
}
