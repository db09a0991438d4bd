#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/mutex.h"
#include "stream/options.h"

namespace bluecomm::stream {

// Decides how many streams a link should have, and how many of them should carry
// chunks.
//
// A second stream pays off where a single one cannot use the whole network: with
// several paths, or with a rate limit per connection. Otherwise it only costs, because
// each stream's queue delays the bytes of the others. This can only be found out by
// trial. While chunks wait and no stream can take one, the count measures the time and
// the bytes that the peer's kernel acknowledges, except for the first kSettle, in which
// TCP windows grow. After kTrial of such time it doubles the number of streams. Up to
// kUnconditional it doubles in any case, because with several paths it is a matter of
// luck which one a connection takes. It opens these streams at once, because a
// connection opens slowly when the network's queues are full. Beyond that, the last
// doubling must have raised the rate by kGain. Then the count descends: it measures the
// best number again, in two trials, and halves it as long as half as many streams do as
// well, so that one lucky trial does not decide for good.
//
// Links of one process to the same host share a count, which measures what they carry
// together. Each link alone would find that one more stream pays off, at the cost of
// the others. A link that makes no progress, or does not get its streams, is ignored
// after kMaxPause. Links may be used by different threads.
class StreamCount {
 public:
  static constexpr std::chrono::milliseconds kSettle{20};
  static constexpr std::chrono::milliseconds kTrial{50};
  static constexpr std::chrono::seconds kMaxPause{2};
  // How long a trial waits for its last streams. A stream whose first packet is lost
  // opens after a second.
  static constexpr std::chrono::milliseconds kOpening{100};
  static constexpr std::size_t kUnconditional = 8;
  static constexpr double kGain = 1.15;

  // `max` is the largest number of streams.
  explicit StreamCount(std::size_t max) : max_(max), settled_(max == 1) {}

  // How many streams there should be ...
  std::size_t wanted() const { return wanted_; }
  // ... and how many of them carry chunks.
  std::size_t used() const { return used_; }

  // One link that uses the count.
  class User {
   public:
    explicit User(std::shared_ptr<StreamCount> count) : count_(std::move(count)) {}
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    std::size_t wanted() const { return count_->wanted(); }
    std::size_t used() const { return count_->used(); }

    // Whether to call update() now. `blocked` says whether chunks wait and no stream
    // can take one.
    bool needs_update(bool blocked) const {
      return !count_->settled_ && (blocked || counts_);
    }
    // Called at each turn. `bytes` were acknowledged by the peer's kernel so far, and
    // `streams` are open.
    void update(bool blocked, std::uint64_t bytes, std::size_t streams,
                Clock::time_point now);

   private:
    friend class StreamCount;

    // Whether the link has too few streams for a trial.
    bool lacks_streams(std::size_t streams, Clock::time_point now) const;
    // Whether the link's rate says anything about the number of streams.
    bool is_informative(bool blocked, std::uint64_t bytes, std::size_t streams,
                        Clock::time_point now);

    const std::shared_ptr<StreamCount> count_;
    bool counts_ = false;  // the last update() counted the link as blocked
    std::uint64_t bytes_before_ = 0;
    Clock::time_point moved_at_;
    std::optional<Clock::time_point> incomplete_since_;  // set while it lacks streams
  };

 private:
  void count(const User& user, std::uint64_t bytes, std::size_t streams,
             Clock::time_point now) REQUIRES(mutex_);
  void start_over() REQUIRES(mutex_);
  void evaluate(double rate) REQUIRES(mutex_);
  void climb(double rate) REQUIRES(mutex_);
  void descend(double rate) REQUIRES(mutex_);

  const std::size_t max_;
  std::atomic<std::size_t> wanted_ = 1;
  std::atomic<std::size_t> used_ = 1;
  std::atomic<bool> settled_;
  std::atomic<int> blocked_users_ = 0;
  // Only ever locked by try_lock(): in a forked child it may be locked for ever.
  Mutex mutex_;
  bool descending_ GUARDED_BY(mutex_) = false;
  Clock::time_point since_ GUARDED_BY(mutex_);
  // A trial runs while this is above 0.
  Clock::duration blocked_time_ GUARDED_BY(mutex_) = -kSettle;
  std::uint64_t blocked_bytes_ GUARDED_BY(mutex_) = 0;
  // Bytes per second with best_ streams, the best number so far; 0 while it is measured
  // again.
  double best_rate_ GUARDED_BY(mutex_) = 0;
  std::optional<double> first_rate_ GUARDED_BY(mutex_);  // of two trials of a descent
  std::size_t best_ GUARDED_BY(mutex_) = 1;
};

}  // namespace bluecomm::stream
