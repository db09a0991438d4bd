#include "stream/lead.h"

#include <array>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLeast = 256 << 10;
constexpr std::size_t kPiece = 64 << 10;  // leads are multiples of this
constexpr std::uint64_t kGigabit = 125'000'000;

std::size_t lead_on_one(const PathState& path) { return lead_on(std::array{path}); }

TEST(stream_lead, is_unlimited_while_nothing_waits_in_queues) {
  CHECK_EQ(lead_on({}), kAnyLead);
  CHECK_EQ(lead_on_one({}), kAnyLead);
  CHECK_EQ(lead_on_one({900us, 50us, 10 * kGigabit}), kAnyLead);
  CHECK_EQ(lead_on_one({40'900us, 40ms, kGigabit}), kAnyLead);
}

TEST(stream_lead, is_short_behind_a_queue) {
  CHECK_EQ(lead_on_one({3ms, 50us, kGigabit}), kLeast);
  // The kernel has measured too much while a bucket of tokens was full.
  CHECK_EQ(lead_on_one({3ms, 10us, 20 * kGigabit}), kLeast);
}

TEST(stream_lead, allows_for_two_round_trips_without_the_queue) {
  CHECK_EQ(lead_on_one({50ms, 40ms, kGigabit}), kLeast + 10'000'000 / kPiece * kPiece);
}

// Each may use a path of its own, with its own queue.
TEST(stream_lead, is_the_sum_of_all_streams) {
  const PathState fast{
      .round_trip = 10ms, .shortest_round_trip = 10ms, .bytes_per_second = kGigabit};
  PathState queued = fast;
  queued.round_trip = 12ms;
  CHECK_EQ(lead_on(std::array{fast, fast}), kAnyLead);
  CHECK_EQ(lead_on(std::array{fast, queued}), 2 * kLeast + 5'000'000 / kPiece * kPiece);
}

TEST(stream_lead, the_streams_of_the_peer_are_those_of_its_last_chunks) {
  PeerStreams streams;
  CHECK(streams.number() > 8);
  // Chunks of 4 MiB on eight streams.
  for (std::size_t i = 0; i < 64; ++i) streams.count(i % 8, kPiece);
  CHECK_EQ(streams.number(), 8u);
  // It goes on with one. The window may have begun before.
  for (std::size_t i = 0; i < 32; ++i) streams.count(0, kPiece);
  CHECK_EQ(streams.number(), 1u);
  streams.count(3, kPiece);
  CHECK_EQ(streams.number(), 4u);
}

}  // namespace
}  // namespace bluecomm::stream
