#include "stream/stream_count.h"

#include <functional>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using namespace std::chrono_literals;

// A sender that always has data, for `time`, over streams that are opened at once and
// carry so many bytes per millisecond as `rate` says of their number.
void send(StreamCount& count, std::chrono::milliseconds time,
          const std::function<std::uint64_t(std::size_t streams)>& rate) {
  static Clock::time_point now{};
  std::uint64_t bytes = 0;
  for (auto end = now + time; now < end; now += 1ms) {
    count.update(true, bytes, count.wanted(), now);
    bytes += rate(count.used());
  }
}

TEST(stream_count, grows_while_each_stream_brings_its_share) {
  StreamCount count(8);
  CHECK_EQ(count.wanted(), 1u);
  send(count, 1s, [](std::size_t streams) { return streams * 60'000; });
  CHECK_EQ(count.wanted(), 8u);
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, uses_one_where_more_bring_nothing) {
  StreamCount count(8);
  send(count, 1s, [](std::size_t) { return 120'000; });
  CHECK_EQ(count.wanted(), StreamCount::kBlind);
  CHECK_EQ(count.used(), 1u);
}

TEST(stream_count, stops_where_the_line_is_full) {
  StreamCount count(16);
  send(count, 1s,
       [](std::size_t streams) { return std::min<std::size_t>(streams, 4); });
  CHECK_EQ(count.wanted(), 8u);
  CHECK_EQ(count.used(), 4u);
}

TEST(stream_count, finds_the_second_path_though_the_first_tries_miss_it) {
  StreamCount count(8);
  send(count, 1s, [](std::size_t streams) { return streams < 4 ? 100 : 500; });
  CHECK_EQ(count.used(), 4u);
}

TEST(stream_count, one_fortunate_trial_does_not_decide) {
  StreamCount count(8);
  bool fortunate = true;
  send(count, 2s, [&](std::size_t streams) {
    fortunate &= streams <= 2;
    return streams == 2 && fortunate ? 150 : 100;
  });
  CHECK_EQ(count.used(), 1u);
  CHECK(!count.measures(true));
}

TEST(stream_count, one_unfortunate_trial_on_the_way_back_does_not_decide) {
  StreamCount count(8);
  std::size_t most = 0;
  int calls = 0;
  send(count, 2s, [&](std::size_t streams) {
    most = std::max(most, streams);
    const bool is_back = most == 8 && streams == 4 && ++calls <= 60;
    return is_back ? 20 : 10 * static_cast<int>(std::min<std::size_t>(streams, 4));
  });
  CHECK_EQ(count.used(), 4u);
}

TEST(stream_count, comes_back_to_what_is_enough) {
  StreamCount count(8);
  int calls = 0;
  send(count, 2s, [&](std::size_t streams) {
    // A line that grows while it is tried seems to owe that to the streams.
    return std::min(++calls, 300) * static_cast<int>(std::min<std::size_t>(streams, 2));
  });
  CHECK_EQ(count.used(), 2u);
}

TEST(stream_count, stays_where_nothing_waits) {
  StreamCount count(8);
  Clock::time_point now{};
  for (int i = 0; i < 1000; ++i) {
    now += 10ms;
    count.update(false, 1'000'000 * static_cast<std::uint64_t>(i), 1, now);
  }
  CHECK_EQ(count.wanted(), 1u);
}

TEST(stream_count, learns_nothing_before_the_streams_are_there) {
  StreamCount count(8);
  send(count, 80ms, [](std::size_t) { return 1; });
  CHECK_EQ(count.wanted(), 2u);
  Clock::time_point now = Clock::time_point{} + 1h;
  for (int i = 0; i < 1000; ++i) count.update(true, 0, 1, now += 1ms);
  CHECK_EQ(count.wanted(), 2u);
}

}  // namespace
}  // namespace bluecomm::stream
