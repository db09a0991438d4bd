#include "stream/delivery_rate.h"

#include <vector>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kKiB = 1 << 10;
constexpr std::size_t kChunk = 64 * kKiB;

// A backlog whose bytes all wait to be sent.
Backlog waiting(std::uint64_t sent, std::size_t held) {
  return {.sent = sent, .held = held, .unsent = held};
}

// Returns the estimate for a stream that holds `held` bytes and delivers `rate` bytes
// per second.
DeliveryRate steady(std::size_t rate, std::size_t held, bool is_far = false) {
  DeliveryRate estimate;
  std::uint64_t acknowledged = 0;
  for (auto now = Clock::time_point{}; now <= Clock::time_point{100ms}; now += 1ms) {
    Backlog backlog = waiting(acknowledged + held, held);
    backlog.is_far = is_far;
    estimate.update(backlog, now);
    acknowledged += rate / 1000;
  }
  return estimate;
}

// Returns whether the last stream leaves a chunk to the others.
bool last_leaves(const std::vector<DeliveryRate>& all, std::size_t pending) {
  std::vector<const DeliveryRate*> estimates;
  for (const DeliveryRate& one : all) estimates.push_back(&one);
  return leaves_chunk_to_others(estimates, all.size() - 1, pending, kChunk);
}

TEST(stream_delivery_rate, the_rate_counts_acknowledged_bytes) {
  const DeliveryRate estimate = steady(40'000'000, 200 * kKiB);
  CHECK_EQ(estimate.rate(), 40e6);
  CHECK_EQ(estimate.held(), 200 * kKiB);
}

TEST(stream_delivery_rate, an_idle_stream_does_not_look_slow) {
  DeliveryRate estimate = steady(40'000'000, 200 * kKiB);
  const std::uint64_t sent = 100'000'000;
  estimate.update(waiting(sent, 0), Clock::time_point{130ms});
  const double before = estimate.rate();
  estimate.update(waiting(sent, 0), Clock::time_point{500ms});
  CHECK_EQ(estimate.rate(), before);
  // After a long idle time the rate is unknown.
  estimate.update(waiting(sent, 0), Clock::time_point{2s});
  CHECK_EQ(estimate.rate(), 0.0);
}

TEST(stream_delivery_rate, a_stalled_stream_is_slow) {
  DeliveryRate estimate = steady(40'000'000, 200 * kKiB);
  const std::uint64_t sent = 4'000'000 + 200 * kKiB;
  for (int k = 1; k <= 10; ++k) {
    estimate.update(waiting(sent, 200 * kKiB),
                    Clock::time_point{100ms + k * DeliveryRate::kSpan});
  }
  CHECK(estimate.rate() < 100'000);
}

TEST(stream_delivery_rate,
     a_stream_that_waits_for_acknowledgements_does_not_look_slow) {
  DeliveryRate estimate = steady(40'000'000, 200 * kKiB);
  const std::uint64_t sent = 4'000'000 + 200 * kKiB;
  for (int k = 1; k <= 10; ++k) {
    estimate.update({.sent = sent, .held = 200 * kKiB, .unsent = 0},
                    Clock::time_point{100ms + k * DeliveryRate::kSpan});
  }
  CHECK_EQ(estimate.rate(), 40e6);
}

TEST(stream_delivery_rate, a_socket_that_holds_more_than_was_written_is_not_fast) {
  DeliveryRate estimate;
  for (int k = 0; k < 10; ++k) {
    estimate.update(waiting(1000, 1000 + 100 * static_cast<std::size_t>(k)),
                    Clock::time_point{k * DeliveryRate::kSpan});
  }
  CHECK_EQ(estimate.rate(), 0.0);
}

TEST(stream_delivery_rate, equal_streams_leave_nothing_to_one_another) {
  const std::vector<DeliveryRate> all(4, steady(10'000'000, 2000 * kKiB));
  CHECK(!last_leaves(all, kChunk));
}

TEST(stream_delivery_rate, a_slow_stream_takes_chunks_as_long_as_there_are_many) {
  const std::vector<DeliveryRate> all{steady(48'000'000, 0),
                                      steady(12'000'000, 100 * kKiB)};
  CHECK(!last_leaves(all, 4096 * kKiB));
  // The last chunks would be late.
  CHECK(last_leaves(all, 2 * kChunk));
  // The fast stream takes all.
  CHECK(!last_leaves({all[1], all[0]}, 2 * kChunk));
}

TEST(stream_delivery_rate, a_slow_far_stream_leaves_nothing) {
  const DeliveryRate fast = steady(48'000'000, 0);
  CHECK(last_leaves({fast, steady(12'000'000, 100 * kKiB)}, 2 * kChunk));
  CHECK(!last_leaves({fast, steady(12'000'000, 100 * kKiB, true)}, 2 * kChunk));
}

TEST(stream_delivery_rate, bytes_held_by_a_slow_stream_count) {
  const DeliveryRate fast = steady(48'000'000, 0);
  CHECK(!last_leaves({fast, steady(12'000'000, kKiB)}, 1024 * kKiB));
  CHECK(last_leaves({fast, steady(12'000'000, 256 * kKiB)}, 1024 * kKiB));
}

TEST(stream_delivery_rate, an_interval_with_idle_time_is_no_limit) {
  DeliveryRate estimate;
  estimate.update({}, Clock::time_point{});
  estimate.update(waiting(kChunk, kChunk), Clock::time_point{1ms});
  estimate.update(waiting(kChunk, 0), Clock::time_point{5ms});
  estimate.update(waiting(2 * kChunk, kChunk), Clock::time_point{20ms});
  CHECK(!estimate.is_limit());
  CHECK_EQ(estimate.rate(), kChunk / 0.020);
}

TEST(stream_delivery_rate, the_time_before_the_first_byte_does_not_count) {
  DeliveryRate estimate;
  estimate.update({}, Clock::time_point{});
  estimate.update({}, Clock::time_point{19ms});
  estimate.update(waiting(2 * kChunk, 2 * kChunk), Clock::time_point{20ms});
  CHECK_EQ(estimate.rate(), 0.0);
  estimate.update(waiting(12 * kChunk, 2 * kChunk), Clock::time_point{39ms});
  CHECK(estimate.is_limit());
  CHECK_EQ(estimate.rate(), 10 * kChunk / 0.020);
}

TEST(stream_delivery_rate, a_stream_of_unknown_rate_gets_as_much_as_it_has_delivered) {
  const DeliveryRate fast = steady(48'000'000, 0);
  DeliveryRate quick;
  quick.update(waiting(3 * kChunk, kChunk), Clock::time_point{});
  CHECK_EQ(quick.delivered(), 2 * kChunk);
  CHECK(!last_leaves({fast, quick}, kChunk));
  quick.update(waiting(5 * kChunk, 3 * kChunk), Clock::time_point{1ms});
  CHECK(last_leaves({fast, quick}, kChunk));
}

TEST(stream_delivery_rate, bytes_from_before_a_long_idle_time_do_not_count) {
  DeliveryRate estimate = steady(40'000'000, 200 * kKiB);
  CHECK(estimate.is_limit());
  estimate.update(waiting(100'000'000, 0), Clock::time_point{120ms});
  estimate.update(waiting(100'000'000, 0), Clock::time_point{2s});
  CHECK_EQ(estimate.rate(), 0.0);
  CHECK(!estimate.is_limit());
  CHECK_EQ(estimate.delivered(), 0u);
}

TEST(stream_delivery_rate, a_stream_of_unknown_rate_gets_one_chunk) {
  DeliveryRate fresh;
  fresh.update({}, Clock::time_point{});
  DeliveryRate begun;
  begun.update(waiting(kChunk, kChunk), Clock::time_point{});
  const DeliveryRate fast = steady(48'000'000, 0);
  CHECK(!last_leaves({fast, fresh}, kChunk));
  CHECK(last_leaves({fast, begun}, 4096 * kKiB));
  // The rates of the others are unknown, too.
  CHECK(!last_leaves({fresh, begun}, 4096 * kKiB));
}

}  // namespace
}  // namespace bluecomm::stream
