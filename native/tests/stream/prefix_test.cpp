#include "stream/prefix.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

TEST(stream_prefix, grows_over_ranges_in_any_order) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (std::size_t at = 0; at < 100;) {
      const std::size_t end = at + 1 + random() % 9;
      ranges.emplace_back(at, end);
      at = end;
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    Prefix prefix;
    std::vector<bool> added(200);
    for (const auto& [begin, end] : ranges) {
      CHECK(prefix.add(begin, end));
      CHECK(!prefix.add(begin, end));
      std::fill(added.begin() + static_cast<long>(begin),
                added.begin() + static_cast<long>(end), true);
      const auto hole = std::find(added.begin(), added.end(), false);
      CHECK_EQ(prefix.length(), static_cast<std::size_t>(hole - added.begin()));
    }
  }
}

TEST(stream_prefix, refuses_overlapping_ranges) {
  Prefix prefix;
  CHECK(prefix.add(10, 20));
  CHECK(!prefix.add(5, 11));
  CHECK(!prefix.add(19, 25));
  CHECK(!prefix.add(12, 15));
  CHECK(!prefix.add(5, 25));
  CHECK(prefix.add(20, 25));
  CHECK(prefix.add(0, 10));
  CHECK_EQ(prefix.length(), 25u);
  CHECK(!prefix.add(24, 30));
}

}  // namespace
}  // namespace bluecomm::stream
