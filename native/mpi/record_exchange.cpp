// Exchanges one record per rank over MPI with a deadline, which MPI_Allgather does not
// have: rank 0 receives a record from each rank, then either broadcasts all records or
// names the missing ranks. Called on the thread that initializes bluecomm, which blocks
// and sleeps between tests of its requests.
#include "mpi/record_exchange.h"

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
// The other ranks wait this much longer for rank 0's reply than rank 0 waits for them.
constexpr std::chrono::seconds kReplyTime{5};
constexpr std::chrono::microseconds kShortestNap{50};
constexpr std::chrono::microseconds kLongestNap{2000};

using Bytes = std::vector<std::byte>;

// Rank 0's final reply: the number of missing ranks and the first of them, or the
// length of the broadcast of the records.
struct RootReply {
  std::uint64_t nbytes = 0;
  std::uint64_t missing_count = 0;
  int missing[16] = {};  // the first of the missing ranks
};

std::invalid_argument too_long(int rank, std::size_t nbytes) {
  return std::invalid_argument("the record of rank " + std::to_string(rank) + " has " +
                               std::to_string(nbytes) + " bytes, but at most " +
                               std::to_string(kMaxRecord) + " are allowed");
}

// One exchange, on one rank. If it fails, the memory of requests that have not
// completed is leaked, because MPI may still use it.
class RecordExchange {
 public:
  RecordExchange(Communicator& communicator, int tag, Clock::time_point deadline,
                 const std::function<bool()>& interrupted)
      : communicator_(communicator),
        tag_(tag),
        deadline_(deadline),
        interrupted_(interrupted),
        rank_(communicator.rank()),
        size_(communicator.size()) {}

  ExchangedRecords run(const std::string& mine) {
    if (mine.size() > kMaxRecord) throw too_long(rank_, mine.size());
    return rank_ == 0 ? lead(mine) : follow(mine);
  }

 private:
  // Waits for a request. Returns nothing when the time is up or the program was
  // interrupted.
  std::optional<Completion> wait(RequestHandle& request) {
    std::chrono::microseconds length = kShortestNap;
    do {
      if (auto done = communicator_.test(request)) return done;
    } while (nap(length));
    return std::nullopt;
  }

  // Sleeps, and doubles `length` for the next time. Returns false, without sleeping,
  // when the time is up or the program was interrupted.
  bool nap(std::chrono::microseconds& length) {
    if (stopped_ || Clock::now() >= deadline_) return false;
    std::this_thread::sleep_for(length);
    length = std::min(2 * length, kLongestNap);
    if (length == kLongestNap) stopped_ = interrupted_ && interrupted_();
    return !stopped_;
  }

  bool wait_all(std::vector<RequestHandle>& requests) {
    return std::all_of(
        requests.begin(), requests.end(),
        [this](RequestHandle& request) { return wait(request).has_value(); });
  }

  // A rank's record on its way to rank 0, preceded by its length.
  struct PendingRecord {
    RequestHandle request{};
    std::uint64_t nbytes = 0;
    bool has_length = false;
    bool came = false;
    std::string record;
  };

  // Collects the records on rank 0. Receives from each rank by name: with MPICH 5.0
  // over UCX, a receive from any source may never complete if a rank of this machine
  // and one of another machine send at the same time.
  ExchangedRecords lead(const std::string& mine) {
    auto pending = std::make_unique<std::vector<PendingRecord>>(size_);
    for (int rank = 1; rank < size_; ++rank) {
      PendingRecord& peer = (*pending)[rank];
      const auto into = std::as_writable_bytes(std::span(&peer.nbytes, 1));
      peer.request = communicator_.irecv(into, rank, tag_);
    }
    std::chrono::microseconds length = kShortestNap;
    int left = size_ - 1;
    do {
      for (int rank = 1; rank < size_; ++rank) {
        PendingRecord& peer = (*pending)[rank];
        while (!peer.came && receive(peer, rank)) length = kShortestNap;
      }
      left = static_cast<int>(
          std::count_if(pending->begin() + 1, pending->end(),
                        [](const PendingRecord& one) { return !one.came; }));
    } while (left > 0 && nap(length));

    std::vector<std::string> records{mine};
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
      PendingRecord& peer = (*pending)[rank];
      if (!peer.came) {
        communicator_.cancel(peer.request);
        missing.push_back(rank);
      } else {
        records.push_back(std::move(peer.record));
      }
    }
    if (left > 0) static_cast<void>(pending.release());
    if (stopped_) return {};
    deadline_ = std::max(deadline_, Clock::now() + kReplyTime);
    return conclude(std::move(records), std::move(missing));
  }

  // Receives the next part of a record, its length or its bytes. Returns false if that
  // part has not arrived.
  bool receive(PendingRecord& peer, int from) {
    if (!communicator_.test(peer.request)) return false;
    if (peer.has_length) {
      peer.came = true;
      return true;
    }
    if (peer.nbytes > kMaxRecord) {
      throw too_long(from, peer.nbytes);
    }
    peer.has_length = true;
    peer.record.resize(peer.nbytes);
    peer.request =
        communicator_.irecv(std::as_writable_bytes(std::span(peer.record)), from, tag_);
    return true;
  }

  ExchangedRecords conclude(std::vector<std::string> records,
                            std::vector<int> missing) {
    auto all = std::make_unique<Bytes>(missing.empty() ? join(records) : Bytes());
    auto reply = std::make_unique<RootReply>();
    reply->nbytes = all->size();
    reply->missing_count = missing.size();
    std::copy_n(missing.begin(), std::min(missing.size(), std::size(reply->missing)),
                reply->missing);
    std::vector<RequestHandle> requests;
    for (int rank = 1; rank < size_; ++rank) {
      if (std::find(missing.begin(), missing.end(), rank) != missing.end()) continue;
      const auto bytes = std::as_bytes(std::span(reply.get(), 1));
      requests.push_back(communicator_.isend(bytes, rank, tag_));
    }
    if (missing.empty() && size_ > 1) {
      requests.push_back(communicator_.ibcast(*all, 0));
    }
    if (!wait_all(requests)) {
      static_cast<void>(all.release());
      static_cast<void>(reply.release());
    }
    if (!missing.empty()) return {{}, std::move(missing)};
    return {std::move(records), {}};
  }

  ExchangedRecords follow(const std::string& mine) {
    deadline_ += kReplyTime;
    auto length = std::make_unique<std::uint64_t>(mine.size());
    auto record = std::make_unique<Bytes>(mine.size());
    std::memcpy(record->data(), mine.data(), mine.size());
    auto reply = std::make_unique<RootReply>();
    std::vector<RequestHandle> sent;
    sent.push_back(
        communicator_.isend(std::as_bytes(std::span(length.get(), 1)), 0, tag_));
    sent.push_back(communicator_.isend(*record, 0, tag_));
    const auto into = std::as_writable_bytes(std::span(reply.get(), 1));
    RequestHandle told = communicator_.irecv(into, 0, tag_);
    if (!wait(told) || !wait_all(sent)) {
      static_cast<void>(length.release());
      static_cast<void>(record.release());
      static_cast<void>(reply.release());
      return stopped_ ? ExchangedRecords{} : ExchangedRecords{{}, {0}};
    }
    if (reply->missing_count > 0) {
      const std::size_t count =
          std::min<std::size_t>(reply->missing_count, std::size(reply->missing));
      return {{}, {reply->missing, reply->missing + count}};
    }
    auto all = std::make_unique<Bytes>(reply->nbytes);
    RequestHandle spread = communicator_.ibcast(*all, 0);
    if (!wait(spread)) {
      static_cast<void>(all.release());
      return stopped_ ? ExchangedRecords{} : ExchangedRecords{{}, {0}};
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

ExchangedRecords exchange_records(Communicator& communicator, int tag,
                                  const std::string& mine, Clock::time_point deadline,
                                  const std::function<bool()>& interrupted) {
  return RecordExchange(communicator, tag, deadline, interrupted).run(mine);
}

}  // namespace bluecomm::mpi
