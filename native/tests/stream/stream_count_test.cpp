#include "stream/stream_count.h"

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using namespace std::chrono_literals;

// Simulated senders that always have data, and whose streams open immediately.
class Senders {
 public:
  explicit Senders(std::size_t max, std::size_t number = 1)
      : count_(std::make_shared<StreamCount>(max)) {
    for (std::size_t i = 0; i < number; ++i) senders_.emplace_back(count_);
  }

  // Runs for `time`. In each millisecond a sender carries rate(streams) bytes.
  void send(std::chrono::milliseconds time,
            const std::function<std::uint64_t(std::size_t streams)>& rate) {
    for (auto end = now_ + time; now_ < end; now_ += 1ms) {
      for (Sender& one : senders_) {
        one.user.update({true, one.bytes, count_->wanted(), true}, now_);
        one.bytes += rate(count_->used());
      }
    }
  }

  // All bytes carried so far.
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const Sender& one : senders_) sum += one.bytes;
    return sum;
  }

  // Lets `time` pass without any update.
  void sleep(std::chrono::milliseconds time) { now_ += time; }

  std::size_t wanted() const { return count_->wanted(); }
  std::size_t used() const { return count_->used(); }
  Clock::time_point now() const { return now_; }
  const std::shared_ptr<StreamCount>& count() const { return count_; }
  StreamCount::User& user() { return senders_.front().user; }
  void stop_one() { senders_.pop_back(); }

 private:
  struct Sender {
    explicit Sender(std::shared_ptr<StreamCount> count) : user(std::move(count)) {}
    StreamCount::User user;
    std::uint64_t bytes = 0;
  };

  const std::shared_ptr<StreamCount> count_;
  std::deque<Sender> senders_;
  Clock::time_point now_{};
};

TEST(stream_count, keeps_all_streams_if_each_brings_its_share) {
  Senders count(8);
  CHECK_EQ(count.wanted(), 1u);
  count.send(1s, [](std::size_t streams) { return streams * 60'000; });
  CHECK_EQ(count.wanted(), 8u);
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, uses_one_stream_if_more_bring_nothing) {
  Senders count(8);
  count.send(1s, [](std::size_t) { return 120'000; });
  CHECK_EQ(count.wanted(), 1u);
  CHECK_EQ(count.used(), 1u);
}

TEST(stream_count, soon_uses_one_stream_if_more_cost) {
  Senders count(8);
  count.send(300ms, [](std::size_t streams) { return 120'000 / streams; });
  CHECK_EQ(count.used(), 1u);
}

TEST(stream_count, uses_as_many_as_fill_the_line) {
  Senders count(16);
  count.send(2s, [](std::size_t streams) { return std::min<std::size_t>(streams, 4); });
  CHECK_EQ(count.wanted(), 4u);
  CHECK_EQ(count.used(), 4u);
}

// Bit `i` of `slow` says whether stream `i` takes the slow one of two paths.
std::uint64_t rate_of(unsigned slow, std::size_t streams) {
  const unsigned used = (1u << streams) - 1;
  return ((used & ~slow) != 0 ? 400 : 0) + ((used & slow) != 0 ? 100 : 0);
}

TEST(stream_count, trials_cost_little_on_unequal_paths) {
  for (unsigned slow = 0; slow < 256; ++slow) {
    Senders count(8);
    count.send(2s, [&](std::size_t streams) { return rate_of(slow, streams); });
    CHECK(count.bytes() >= 2000 * rate_of(slow, 8) * 94 / 100);
    CHECK_EQ(rate_of(slow, count.used()), rate_of(slow, 8));
  }
}

TEST(stream_count, one_lucky_trial_does_not_decide) {
  Senders count(8);
  int calls = 0;
  count.send(2s, [&](std::size_t) { return ++calls < 100 ? 150 : 100; });
  CHECK_EQ(count.used(), 1u);
  CHECK(!count.user().needs_update(true));
}

TEST(stream_count, one_unlucky_trial_does_not_decide) {
  Senders count(8);
  int calls = 0;
  count.send(2s, [&](std::size_t streams) {
    const bool is_unlucky = streams == 4 && ++calls <= 60;
    return is_unlucky ? 30 : 10 * static_cast<int>(std::min<std::size_t>(streams, 4));
  });
  CHECK_EQ(count.used(), 4u);
}

TEST(stream_count, finds_what_is_enough_while_the_line_becomes_faster) {
  Senders count(8);
  int calls = 0;
  count.send(2s, [&](std::size_t streams) {
    return std::min(++calls, 100) * static_cast<int>(std::min<std::size_t>(streams, 2));
  });
  CHECK_EQ(count.used(), 2u);
}

TEST(stream_count, a_trial_waits_until_unused_streams_have_delivered) {
  Senders count(8);
  count.send(150ms, [](std::size_t) { return 100; });
  REQUIRE(count.used() == 1);
  // Their bytes would make one stream look as good as eight.
  std::uint64_t bytes = 0;
  for (int i = 0; i < 500; ++i) {
    count.sleep(1ms);
    count.user().update({true, bytes += 100, 8, false}, count.now());
  }
  CHECK(count.user().needs_update(true));
  count.send(200ms, [](std::size_t) { return 100; });
  CHECK(!count.user().needs_update(true));
}

TEST(stream_count, senders_to_one_host_find_one_number) {
  Senders count(8, 3);
  // A sender with more streams would get a larger share of the line.
  count.send(3s, [](std::size_t) { return 40; });
  CHECK_EQ(count.used(), 1u);
}

TEST(stream_count, senders_to_one_host_keep_their_streams_together) {
  Senders count(8, 3);
  count.send(3s, [](std::size_t streams) { return 20 * streams; });
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, continues_without_a_sender_that_ends) {
  Senders count(8, 2);
  count.send(30ms, [](std::size_t) { return 100; });
  count.stop_one();
  count.send(1s, [](std::size_t) { return 100; });
  CHECK_EQ(count.used(), 1u);
  CHECK(!count.user().needs_update(true));
}

TEST(stream_count, stays_if_nothing_waits) {
  Senders count(8);
  Clock::time_point now{};
  for (int i = 0; i < 1000; ++i) {
    now += 10ms;
    count.user().update({false, 1'000'000 * static_cast<std::uint64_t>(i), 1, true},
                        now);
  }
  CHECK_EQ(count.wanted(), 1u);
}

TEST(stream_count, opens_all_streams_at_once) {
  Senders count(8);
  count.send(2ms, [](std::size_t) { return 1; });
  CHECK_EQ(count.wanted(), 8u);
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, does_not_measure_before_the_streams_are_open) {
  Senders count(8);
  count.send(80ms, [](std::size_t) { return 1; });
  Clock::time_point now = Clock::time_point{} + 1h;
  for (int i = 0; i < 1000; ++i) count.user().update({true, 0, 1, true}, now += 1ms);
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, does_not_wait_long_for_the_last_stream) {
  StreamCount::User user(std::make_shared<StreamCount>(8));
  Clock::time_point now{};
  std::uint64_t bytes = 0;
  const auto run = [&](std::chrono::milliseconds time, std::size_t streams) {
    for (const auto end = now + time; now < end; now += 1ms) {
      user.update({true, bytes += 100, streams, true}, now);
    }
  };
  run(90ms, 7);
  CHECK_EQ(user.used(), 8u);
  run(160ms, 7);
  CHECK_EQ(user.used(), 1u);
}

TEST(stream_count, a_sender_that_never_gets_its_streams_delays_no_other) {
  Senders count(8);
  StreamCount::User alone(count.count());
  for (std::uint64_t bytes = 0; count.now() < Clock::time_point{} + 20s; ++bytes) {
    alone.update({true, bytes, 1, true}, count.now());
    count.send(1ms, [](std::size_t streams) { return 100 * streams; });
  }
  CHECK_EQ(count.used(), 8u);
  CHECK(!alone.needs_update(true));
}

TEST(stream_count, the_time_of_a_stalled_sender_does_not_count) {
  Senders count(8);
  StreamCount::User still(count.count());
  for (; count.now() < Clock::time_point{} + 3s; count.sleep(1ms)) {
    still.update({true, 1, 8, true}, count.now());
  }
  StreamCount::User busy(count.count());
  std::uint64_t bytes = 0;
  // Sends the same amount every 100 ms, in less time with more streams.
  for (int i = 0; i < 100'000; ++i) {
    count.sleep(1ms);
    const bool is_sending = i % 100 < 80 / static_cast<int>(count.used());
    if (is_sending) bytes += 100 * count.used();
    still.update({true, 1, 8, true}, count.now());
    if (busy.needs_update(is_sending)) {
      busy.update({is_sending, bytes, 8, true}, count.now());
    }
  }
  CHECK_EQ(count.used(), 8u);
  CHECK(!busy.needs_update(true));
}

TEST(stream_count, the_time_of_a_stopped_process_does_not_count) {
  Senders count(8);
  const auto rate = [](std::size_t streams) { return 100 * streams; };
  // Sleeps in the middle of each trial.
  while (count.user().needs_update(true)) {
    count.send(30ms, rate);
    count.sleep(1h);
    count.send(100ms, rate);
  }
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, a_peer_that_stalls_for_a_while_decides_nothing) {
  Senders count(8);
  bool is_back = false;
  int pause = 1000;
  count.send(4s, [&](std::size_t streams) {
    is_back |= streams == 1;
    return is_back && streams == 8 && --pause > 0 ? 0 : 100 * streams;
  });
  CHECK_EQ(count.used(), 8u);
  CHECK(!count.user().needs_update(true));
}

TEST(stream_count, senders_in_threads_find_a_number) {
  const auto count = std::make_shared<StreamCount>(8);
  std::atomic<int> turn = 0;
  const auto send = [&] {
    StreamCount::User user(count);
    for (std::uint64_t bytes = 0; user.needs_update(true) && turn < 100'000; ++bytes) {
      const Clock::time_point now{std::chrono::milliseconds(++turn)};
      user.update({bytes % 3 != 0, 1000 * bytes, user.wanted(), true}, now);
    }
  };
  std::thread other(send);
  send();
  other.join();
  CHECK(turn < 100'000);
}

}  // namespace
}  // namespace bluecomm::stream
