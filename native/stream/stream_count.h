#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "stream/options.h"

namespace bluecomm::stream {

// How many streams a link should have, and how many of them should carry chunks.
//
// A second stream pays where one alone cannot fill the way to the peer: several paths,
// or a limit for each connection. Elsewhere it only costs: each stream's queue delays
// the others' bytes. Which it is cannot be known before it was tried, so it is: while
// chunks wait and no stream takes any, the time and the bytes that the peer's kernel
// acknowledges are counted, but for the first kSettle, in which windows open; after
// kTrial of such time the number is doubled. Up to kUnconditional streams are opened
// whatever they bring, because where there are several paths it is a matter of luck
// which one a connection takes; beyond, the last doubling must have brought kGain. Then
// the way back: the best number is measured again, in two trials, and halved as long as
// half of it does as well, for one fortunate trial must not decide for all time.
//
// Links of one process that share a way share the number too: what counts is what they
// carry together. Each by itself would find that one more stream pays, at the cost of
// the others. One that stands still, or does not get its streams, is left out after
// kPatience: it keeps nobody from learning. Links may be in different threads.
class StreamCount {
 public:
  static constexpr std::chrono::milliseconds kSettle{20};
  static constexpr std::chrono::milliseconds kTrial{50};
  static constexpr std::chrono::seconds kPatience{2};
  static constexpr std::size_t kUnconditional = 4;
  static constexpr double kGain = 1.15;

  // `max`: never more.
  explicit StreamCount(std::size_t max) : max_(max), settled_(max == 1) {}

  // How many streams there should be ...
  std::size_t wanted() const { return wanted_; }
  // ... and how many of them carry chunks.
  std::size_t used() const { return used_; }

  // A link that the number is for.
  class User {
   public:
    explicit User(std::shared_ptr<StreamCount> count) : count_(std::move(count)) {}
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    std::size_t wanted() const { return count_->wanted(); }
    std::size_t used() const { return count_->used(); }

    // Whether update() is needed now: whether chunks wait and no stream takes any.
    bool needs_update(bool blocked) const {
      return !count_->settled_ && (blocked || counts_);
    }
    // Called at each turn: how many bytes the peer's kernel has acknowledged so far,
    // and how many streams the link has.
    void update(bool blocked, std::uint64_t bytes, std::size_t streams,
                Clock::time_point now);

   private:
    friend class StreamCount;

    // Whether what happens to it while it is blocked says anything.
    bool is_informative(bool blocked, std::uint64_t bytes, std::size_t streams,
                        Clock::time_point now);

    const std::shared_ptr<StreamCount> count_;
    bool counts_ = false;  // since the last update(), as one that is blocked
    std::uint64_t bytes_before_ = 0;
    Clock::time_point moved_at_;
    std::optional<Clock::time_point> incomplete_since_;  // it lacks streams
  };

 private:
  void count(const User& user, std::uint64_t bytes, std::size_t streams,
             Clock::time_point now);
  void start_over();
  void evaluate(double rate);
  void climb(double rate);
  void descend(double rate);

  const std::size_t max_;
  std::atomic<std::size_t> wanted_ = 1;
  std::atomic<std::size_t> used_ = 1;
  std::atomic<bool> settled_;
  std::atomic<int> blocked_users_ = 0;
  // Whoever finds it taken does without: a forked child must not wait for it.
  std::mutex mutex_;
  bool descending_ = false;
  Clock::time_point since_;
  Clock::duration blocked_time_ = -kSettle;  // counts from 0
  std::uint64_t blocked_bytes_ = 0;
  // Bytes per second, with the number of streams that is worth using so far; 0: it is
  // being measured again.
  double best_rate_ = 0;
  std::optional<double> first_rate_;  // of two, on the way back
  std::size_t best_ = 1;
};

}  // namespace bluecomm::stream
