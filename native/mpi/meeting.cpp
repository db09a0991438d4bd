#include "mpi/meeting.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

namespace bluecomm::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// A record is longer than this only if a host has hundreds of addresses.
constexpr std::size_t kMaxRecord = 1 << 18;
// The others wait for the word of rank 0 for longer than rank 0 waits for them.
constexpr std::chrono::seconds kWordTime{5};
constexpr std::chrono::microseconds kShortestNap{50};
constexpr std::chrono::microseconds kLongestNap{2000};

using Bytes = std::vector<std::byte>;

// What rank 0 says in the end: how many ranks are silent, which, or how many bytes the
// broadcast of the records has.
struct Word {
  std::uint64_t nbytes = 0;
  std::uint64_t silent_count = 0;
  int silent[16] = {};  // the first of them
};

// One meeting, on one rank. Requests that are left when it fails keep their memory for
// the rest of the process: MPI may still use it.
class Meeting {
 public:
  Meeting(Communicator& communicator, int tag, Clock::time_point deadline,
          const std::function<bool()>& interrupted)
      : communicator_(communicator),
        tag_(tag),
        deadline_(deadline),
        interrupted_(interrupted),
        rank_(communicator.rank()),
        size_(communicator.size()) {}

  Attendance run(const std::string& mine) {
    if (mine.size() > kMaxRecord) {
      throw std::invalid_argument("a rank's record has at most " +
                                  std::to_string(kMaxRecord) + " bytes, got " +
                                  std::to_string(mine.size()));
    }
    return rank_ == 0 ? lead(mine) : follow(mine);
  }

 private:
  // Nothing when the time is up, or the program was interrupted.
  std::optional<Done> wait(Request& request) {
    std::chrono::microseconds nap = kShortestNap;
    while (Clock::now() < deadline_ && !stopped_) {
      if (auto done = communicator_.test(request)) return done;
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, kLongestNap);
      if (nap == kLongestNap) stopped_ = interrupted_ && interrupted_();
    }
    return std::nullopt;
  }

  bool wait_all(std::vector<Request>& requests) {
    return std::all_of(requests.begin(), requests.end(),
                       [this](Request& request) { return wait(request).has_value(); });
  }

  Attendance lead(const std::string& mine) {
    std::vector<std::string> records(static_cast<std::size_t>(size_));
    std::vector<bool> came(records.size());
    records[0] = mine;
    came[0] = true;
    auto buffer = std::make_unique<Bytes>(kMaxRecord);
    for (int left = size_ - 1; left > 0; --left) {
      Request request = communicator_.irecv(*buffer, kAnySource, tag_);
      const std::optional<Done> done = wait(request);
      if (!done) {
        communicator_.cancel(request);
        static_cast<void>(buffer.release());
        break;
      }
      const auto from = static_cast<std::size_t>(done->source);
      records[from].assign(reinterpret_cast<const char*>(buffer->data()), done->nbytes);
      came[from] = true;
    }
    if (stopped_) return {};
    std::vector<int> silent;
    for (int rank = 0; rank < size_; ++rank) {
      if (!came[static_cast<std::size_t>(rank)]) silent.push_back(rank);
    }
    deadline_ = std::max(deadline_, Clock::now() + kWordTime);
    return conclude(std::move(records), std::move(silent), came);
  }

  Attendance conclude(std::vector<std::string> records, std::vector<int> silent,
                      const std::vector<bool>& came) {
    auto all = std::make_unique<Bytes>(silent.empty() ? join(records) : Bytes());
    auto word = std::make_unique<Word>();
    word->nbytes = all->size();
    word->silent_count = silent.size();
    std::copy_n(silent.begin(), std::min(silent.size(), std::size(word->silent)),
                word->silent);
    std::vector<Request> requests;
    for (int rank = 1; rank < size_; ++rank) {
      if (!came[static_cast<std::size_t>(rank)]) continue;
      const auto bytes = std::as_bytes(std::span(word.get(), 1));
      requests.push_back(communicator_.isend(bytes, rank, tag_));
    }
    if (silent.empty() && size_ > 1) {
      requests.push_back(communicator_.ibcast(*all, 0));
    }
    if (!wait_all(requests)) {
      static_cast<void>(all.release());
      static_cast<void>(word.release());
    }
    if (!silent.empty()) return {{}, std::move(silent)};
    return {std::move(records), {}};
  }

  Attendance follow(const std::string& mine) {
    deadline_ += kWordTime;
    auto record = std::make_unique<Bytes>(mine.size());
    std::memcpy(record->data(), mine.data(), mine.size());
    auto word = std::make_unique<Word>();
    Request sent = communicator_.isend(*record, 0, tag_);
    const auto into = std::as_writable_bytes(std::span(word.get(), 1));
    Request told = communicator_.irecv(into, 0, tag_);
    if (!wait(told) || !wait(sent)) {
      static_cast<void>(record.release());
      static_cast<void>(word.release());
      return stopped_ ? Attendance{} : Attendance{{}, {0}};
    }
    if (word->silent_count > 0) {
      const std::size_t count =
          std::min<std::size_t>(word->silent_count, std::size(word->silent));
      return {{}, {word->silent, word->silent + count}};
    }
    auto all = std::make_unique<Bytes>(word->nbytes);
    Request spread = communicator_.ibcast(*all, 0);
    if (!wait(spread)) {
      static_cast<void>(all.release());
      return stopped_ ? Attendance{} : Attendance{{}, {0}};
    }
    return {split(*all), {}};
  }

  static Bytes join(const std::vector<std::string>& records) {
    Bytes all;
    for (const std::string& record : records) {
      const std::uint64_t nbytes = record.size();
      const auto head = std::as_bytes(std::span(&nbytes, 1));
      all.insert(all.end(), head.begin(), head.end());
      const auto body = std::as_bytes(std::span(record));
      all.insert(all.end(), body.begin(), body.end());
    }
    return all;
  }

  static std::vector<std::string> split(const Bytes& all) {
    std::vector<std::string> records;
    for (std::size_t at = 0; at < all.size();) {
      std::uint64_t nbytes = 0;
      std::memcpy(&nbytes, &all[at], sizeof nbytes);
      at += sizeof nbytes;
      records.emplace_back(reinterpret_cast<const char*>(all.data() + at), nbytes);
      at += nbytes;
    }
    return records;
  }

  Communicator& communicator_;
  const int tag_;
  Clock::time_point deadline_;
  const std::function<bool()>& interrupted_;
  const int rank_;
  const int size_;
  bool stopped_ = false;
};

}  // namespace

Attendance meet(Communicator& communicator, int tag, const std::string& mine,
                Clock::time_point deadline, const std::function<bool()>& interrupted) {
  return Meeting(communicator, tag, deadline, interrupted).run(mine);
}

}  // namespace bluecomm::mpi
