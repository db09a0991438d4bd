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

std::invalid_argument too_long(const std::string& whose, std::size_t nbytes) {
  return std::invalid_argument("a rank's record" + whose + " has at most " +
                               std::to_string(kMaxRecord) + " bytes, got " +
                               std::to_string(nbytes));
}

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
    if (mine.size() > kMaxRecord) throw too_long("", mine.size());
    return rank_ == 0 ? lead(mine) : follow(mine);
  }

 private:
  // Nothing when the time is up, or the program was interrupted.
  std::optional<Done> wait(Request& request) {
    std::chrono::microseconds length = kShortestNap;
    do {
      if (auto done = communicator_.test(request)) return done;
    } while (nap(length));
    return std::nullopt;
  }

  // Sleeps, twice as long the next time. False, at once, when there is no time left.
  bool nap(std::chrono::microseconds& length) {
    if (stopped_ || Clock::now() >= deadline_) return false;
    std::this_thread::sleep_for(length);
    length = std::min(2 * length, kLongestNap);
    if (length == kLongestNap) stopped_ = interrupted_ && interrupted_();
    return !stopped_;
  }

  bool wait_all(std::vector<Request>& requests) {
    return std::all_of(requests.begin(), requests.end(),
                       [this](Request& request) { return wait(request).has_value(); });
  }

  // A rank's record on its way to rank 0: its length, then itself.
  struct Guest {
    Request request{};
    std::uint64_t nbytes = 0;
    bool has_length = false;
    bool came = false;
    std::string record;
  };

  // From each rank by name: with MPICH 5.0 over UCX a receive from any source may never
  // end, when one rank of this machine and one of another send at the same time.
  Attendance lead(const std::string& mine) {
    auto guests = std::make_unique<std::vector<Guest>>(size_);
    for (int rank = 1; rank < size_; ++rank) {
      Guest& guest = (*guests)[rank];
      const auto into = std::as_writable_bytes(std::span(&guest.nbytes, 1));
      guest.request = communicator_.irecv(into, rank, tag_);
    }
    std::chrono::microseconds length = kShortestNap;
    int left = size_ - 1;
    do {
      for (int rank = 1; rank < size_; ++rank) {
        Guest& guest = (*guests)[rank];
        while (!guest.came && receive(guest, rank)) length = kShortestNap;
      }
      left =
          static_cast<int>(std::count_if(guests->begin() + 1, guests->end(),
                                         [](const Guest& one) { return !one.came; }));
    } while (left > 0 && nap(length));

    std::vector<std::string> records{mine};
    std::vector<int> silent;
    for (int rank = 1; rank < size_; ++rank) {
      Guest& guest = (*guests)[rank];
      if (!guest.came) {
        communicator_.cancel(guest.request);
        silent.push_back(rank);
      } else {
        records.push_back(std::move(guest.record));
      }
    }
    if (left > 0) static_cast<void>(guests.release());
    if (stopped_) return {};
    deadline_ = std::max(deadline_, Clock::now() + kWordTime);
    return conclude(std::move(records), std::move(silent));
  }

  // True if something of it has come.
  bool receive(Guest& guest, int from) {
    if (!communicator_.test(guest.request)) return false;
    if (guest.has_length) {
      guest.came = true;
      return true;
    }
    if (guest.nbytes > kMaxRecord) {
      throw too_long(" of rank " + std::to_string(from), guest.nbytes);
    }
    guest.has_length = true;
    guest.record.resize(guest.nbytes);
    guest.request = communicator_.irecv(std::as_writable_bytes(std::span(guest.record)),
                                        from, tag_);
    return true;
  }

  Attendance conclude(std::vector<std::string> records, std::vector<int> silent) {
    auto all = std::make_unique<Bytes>(silent.empty() ? join(records) : Bytes());
    auto word = std::make_unique<Word>();
    word->nbytes = all->size();
    word->silent_count = silent.size();
    std::copy_n(silent.begin(), std::min(silent.size(), std::size(word->silent)),
                word->silent);
    std::vector<Request> requests;
    for (int rank = 1; rank < size_; ++rank) {
      if (std::find(silent.begin(), silent.end(), rank) != silent.end()) continue;
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
    auto length = std::make_unique<std::uint64_t>(mine.size());
    auto record = std::make_unique<Bytes>(mine.size());
    std::memcpy(record->data(), mine.data(), mine.size());
    auto word = std::make_unique<Word>();
    std::vector<Request> sent;
    sent.push_back(
        communicator_.isend(std::as_bytes(std::span(length.get(), 1)), 0, tag_));
    sent.push_back(communicator_.isend(*record, 0, tag_));
    const auto into = std::as_writable_bytes(std::span(word.get(), 1));
    Request told = communicator_.irecv(into, 0, tag_);
    if (!wait(told) || !wait_all(sent)) {
      static_cast<void>(length.release());
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
