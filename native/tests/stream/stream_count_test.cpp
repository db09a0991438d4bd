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

// Senders that always have data, over streams that are opened at once.
class Senders {
 public:
  explicit Senders(std::size_t max, std::size_t number = 1)
      : count_(std::make_shared<StreamCount>(max)) {
    for (std::size_t i = 0; i < number; ++i) senders_.emplace_back(count_);
  }

  // For `time`; in each millisecond one carries as many bytes as `rate` says of its
  // streams.
  void send(std::chrono::milliseconds time,
            const std::function<std::uint64_t(std::size_t streams)>& rate) {
    for (auto end = now_ + time; now_ < end; now_ += 1ms) {
      for (Sender& one : senders_) {
        one.user.update(true, one.bytes, count_->wanted(), now_);
        one.bytes += rate(count_->used());
      }
    }
  }

  // None for `time`: nobody runs.
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

TEST(stream_count, grows_while_each_stream_brings_its_share) {
  Senders count(8);
  CHECK_EQ(count.wanted(), 1u);
  count.send(1s, [](std::size_t streams) { return streams * 60'000; });
  CHECK_EQ(count.wanted(), 8u);
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, uses_one_where_more_bring_nothing) {
  Senders count(8);
  count.send(1s, [](std::size_t) { return 120'000; });
  CHECK_EQ(count.wanted(), 1u);
  CHECK_EQ(count.used(), 1u);
}

TEST(stream_count, stops_where_the_line_is_full) {
  Senders count(16);
  count.send(1s, [](std::size_t streams) { return std::min<std::size_t>(streams, 4); });
  CHECK_EQ(count.wanted(), 4u);
  CHECK_EQ(count.used(), 4u);
}

TEST(stream_count, finds_the_second_path_though_the_first_tries_miss_it) {
  Senders count(8);
  count.send(1s, [](std::size_t streams) { return streams < 4 ? 100 : 500; });
  CHECK_EQ(count.used(), 4u);
}

TEST(stream_count, one_fortunate_trial_does_not_decide) {
  Senders count(8);
  bool fortunate = true;
  count.send(2s, [&](std::size_t streams) {
    fortunate &= streams <= 2;
    return streams == 2 && fortunate ? 150 : 100;
  });
  CHECK_EQ(count.used(), 1u);
  CHECK(!count.user().needs_update(true));
}

TEST(stream_count, one_unfortunate_trial_on_the_way_back_does_not_decide) {
  Senders count(8);
  std::size_t most = 0;
  int calls = 0;
  count.send(2s, [&](std::size_t streams) {
    most = std::max(most, streams);
    const bool is_back = most == 8 && streams == 4 && ++calls <= 60;
    return is_back ? 20 : 10 * static_cast<int>(std::min<std::size_t>(streams, 4));
  });
  CHECK_EQ(count.used(), 4u);
}

TEST(stream_count, comes_back_to_what_is_enough) {
  Senders count(8);
  int calls = 0;
  count.send(2s, [&](std::size_t streams) {
    // A line that grows while it is tried seems to owe that to the streams.
    return std::min(++calls, 300) * static_cast<int>(std::min<std::size_t>(streams, 2));
  });
  CHECK_EQ(count.used(), 2u);
}

TEST(stream_count, senders_of_one_way_find_one_number) {
  Senders count(8, 3);
  // Who has more streams than the others would have more of the line.
  count.send(3s, [](std::size_t) { return 40; });
  CHECK_EQ(count.used(), 1u);
}

TEST(stream_count, senders_of_one_way_grow_together) {
  Senders count(8, 3);
  count.send(3s, [](std::size_t streams) { return 20 * streams; });
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, goes_on_without_a_sender_that_ends) {
  Senders count(8, 2);
  count.send(30ms, [](std::size_t) { return 100; });
  count.stop_one();
  count.send(1s, [](std::size_t) { return 100; });
  CHECK_EQ(count.used(), 1u);
  CHECK(!count.user().needs_update(true));
}

TEST(stream_count, stays_where_nothing_waits) {
  Senders count(8);
  Clock::time_point now{};
  for (int i = 0; i < 1000; ++i) {
    now += 10ms;
    count.user().update(false, 1'000'000 * static_cast<std::uint64_t>(i), 1, now);
  }
  CHECK_EQ(count.wanted(), 1u);
}

TEST(stream_count, learns_nothing_before_the_streams_are_there) {
  Senders count(8);
  count.send(80ms, [](std::size_t) { return 1; });
  CHECK_EQ(count.wanted(), 2u);
  Clock::time_point now = Clock::time_point{} + 1h;
  for (int i = 0; i < 1000; ++i) count.user().update(true, 0, 1, now += 1ms);
  CHECK_EQ(count.wanted(), 2u);
}

TEST(stream_count, a_sender_that_never_gets_its_streams_holds_up_no_other) {
  Senders count(8);
  StreamCount::User alone(count.count());
  for (std::uint64_t bytes = 0; count.now() < Clock::time_point{} + 10s; ++bytes) {
    alone.update(true, bytes, 1, count.now());
    count.send(1ms, [](std::size_t streams) { return 100 * streams; });
  }
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, time_of_a_sender_that_stands_still_does_not_count) {
  Senders count(8);
  StreamCount::User still(count.count());
  for (; count.now() < Clock::time_point{} + 3s; count.sleep(1ms)) {
    still.update(true, 1, 8, count.now());
  }
  StreamCount::User busy(count.count());
  std::uint64_t bytes = 0;
  // As much in each 100 ms, in less time where there are more streams.
  for (int i = 0; i < 100'000; ++i) {
    count.sleep(1ms);
    const bool is_sending = i % 100 < 80 / static_cast<int>(count.used());
    if (is_sending) bytes += 100 * count.used();
    still.update(true, 1, 8, count.now());
    if (busy.needs_update(is_sending)) busy.update(is_sending, bytes, 8, count.now());
  }
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, a_process_that_was_stopped_learns_nothing_of_it) {
  Senders count(8);
  const auto rate = [](std::size_t streams) { return 100 * streams; };
  while (count.wanted() < 8) count.send(1ms, rate);
  count.send(30ms, rate);
  count.sleep(1h);
  count.send(1s, rate);
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, a_peer_that_takes_nothing_for_a_while_decides_nothing) {
  Senders count(8);
  std::size_t most = 0;
  int pause = 1000;
  count.send(3s, [&](std::size_t streams) {
    most = std::max(most, streams);
    return most == 8 && --pause > 0 ? 0 : 100 * streams;
  });
  CHECK_EQ(count.used(), 8u);
}

TEST(stream_count, senders_in_threads_find_a_number) {
  const auto count = std::make_shared<StreamCount>(8);
  std::atomic<int> turn = 0;
  const auto send = [&] {
    StreamCount::User user(count);
    for (std::uint64_t bytes = 0; user.needs_update(true) && turn < 100'000; ++bytes) {
      const Clock::time_point now{std::chrono::milliseconds(++turn)};
      user.update(bytes % 3 != 0, 1000 * bytes, user.wanted(), now);
    }
  };
  std::thread other(send);
  send();
  other.join();
  CHECK(turn < 100'000);
}

}  // namespace
}  // namespace bluecomm::stream
