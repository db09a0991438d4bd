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
// trial. The count begins with the largest number, which uses every network, and looks
// for the smallest one that carries as much: first 1, which most networks need, then
// one half after the other. So a network that needs many streams is used except in the
// few trials that fail. All streams are opened when chunks first wait, because a
// connection opens slowly when the network's queues are full.
//
// While chunks wait and no stream can take one, a trial measures the time and the bytes
// that the peer's kernel acknowledges, once the streams that are no longer used have
// delivered their bytes, and except for the first kSettle, in which TCP windows grow. A
// number is judged by the better of two trials of kTrial, or by the first one if that
// reaches less than half. If fewer streams carry less, the larger number is measured
// again before that counts, so that one lucky trial does not decide for good.
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
  // More streams are worthwhile if they reach this many times the rate of fewer.
  static constexpr double kGain = 1.15;

  // `max` is the largest number of streams.
  explicit StreamCount(std::size_t max)
      : max_(max), used_(max), settled_(max == 1), best_(max) {}

  // How many streams there should be ...
  std::size_t wanted() const { return wanted_; }
  // ... and how many of them carry chunks.
  std::size_t used() const { return used_; }

  // The report of a link at each turn.
  struct Load {
    bool blocked = false;      // chunks wait and no stream can take one
    std::uint64_t nbytes = 0;  // acknowledged by the peer's kernel so far
    std::size_t streams = 0;   // open streams
    bool drained = true;       // streams that carry no chunks hold no bytes
  };

  // One link that uses the count.
  class User {
   public:
    explicit User(std::shared_ptr<StreamCount> count) : count_(std::move(count)) {}
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    std::size_t wanted() const { return count_->wanted(); }
    std::size_t used() const { return count_->used(); }
    // Whether used() will not change any more.
    bool is_settled() const { return count_->settled_; }

    // Whether to call update() at this turn.
    bool needs_update(bool blocked) const {
      return !count_->settled_ && (blocked || counts_);
    }
    void update(const Load& load, Clock::time_point now);

   private:
    friend class StreamCount;

    // Whether the link has too few streams for a trial.
    bool lacks_streams(std::size_t streams, Clock::time_point now) const;
    // Whether the link's rate says anything about the number of streams.
    bool is_informative(const Load& load, Clock::time_point now);

    const std::shared_ptr<StreamCount> count_;
    bool counts_ = false;  // the last update() counted the link as blocked
    std::uint64_t bytes_before_ = 0;
    Clock::time_point moved_at_;
    std::optional<Clock::time_point> incomplete_since_;  // set while it lacks streams
  };

 private:
  void count(const User& user, const Load& load, Clock::time_point now)
      REQUIRES(mutex_);
  void start_over() REQUIRES(mutex_);
  void finish_trial(double rate, Clock::time_point now) REQUIRES(mutex_);
  void judge_best(double rate) REQUIRES(mutex_);
  void judge_fewer(double rate) REQUIRES(mutex_);
  void adopt(std::size_t number, double rate) REQUIRES(mutex_);
  void try_fewer() REQUIRES(mutex_);

  const std::size_t max_;
  std::atomic<std::size_t> wanted_ = 1;
  std::atomic<std::size_t> used_;
  std::atomic<bool> settled_;
  std::atomic<int> blocked_users_ = 0;
  // Only ever locked by try_lock(): in a forked child it may be locked for ever.
  Mutex mutex_;
  Clock::time_point since_ GUARDED_BY(mutex_);
  Clock::time_point changed_at_ GUARDED_BY(mutex_);  // used_
  // A trial runs while this is above 0.
  Clock::duration blocked_time_ GUARDED_BY(mutex_) = -kSettle;
  std::uint64_t blocked_bytes_ GUARDED_BY(mutex_) = 0;
  std::optional<double> first_rate_ GUARDED_BY(mutex_);  // of two trials
  // The smallest number so far that carries as much as max_, and its rate in bytes per
  // second.
  std::size_t best_ GUARDED_BY(mutex_);
  double best_rate_ GUARDED_BY(mutex_) = 0;
  // A smaller number, and its rate, while best_ is measured again.
  struct Fewer {
    std::size_t number;
    double rate;
  };
  std::optional<Fewer> fewer_ GUARDED_BY(mutex_);
  std::size_t too_few_ GUARDED_BY(mutex_) = 0;  // the largest number that carries less
};

}  // namespace bluecomm::stream
