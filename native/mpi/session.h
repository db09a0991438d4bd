#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mpi/finalize_hooks.h"
#include "mpi/library.h"
#include "mpi/record_exchange.h"

namespace bluecomm::mpi {

using Buffer = std::unique_ptr<std::byte[]>;

// The part of MPI that belongs to bluecomm in a process: a communicator, duplicated
// once from the program's, that communicator's tags, and the memory of requests that
// outlived their use. One thread at a time may call it.
class Session {
 public:
  // The tags of one transport are `port * kTags` and those that follow. Port 0 belongs
  // to exchanges of records.
  static constexpr int kTags = 4096;
  static constexpr int kPorts = (kMaxTag + 1) / kTags;

  // Called by open().
  Session(std::shared_ptr<Library> library, std::shared_ptr<Communicator> own);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  // Leaves the communicator to MPI. It may hold messages that nobody received (to a
  // transport that had ended); an MPI that reuses the number of a communicator could
  // give the next one these messages, or crash (Open MPI 4.1).
  ~Session();

  // Waits for all ranks of `communicator`, then duplicates it. If some of them are
  // missing at the deadline, returns null and sets `missing`; returns null as well if
  // the wait was interrupted.
  static std::shared_ptr<Session> open(std::shared_ptr<Library> library,
                                       std::shared_ptr<Communicator> communicator,
                                       std::chrono::steady_clock::time_point deadline,
                                       const std::function<bool()>& interrupted,
                                       std::vector<int>& missing);

  Library& library() { return *library_; }
  Communicator& communicator() { return *communicator_; }

  // Functions that the program's MPI_Finalize runs first.
  FinalizeHooks& finalize_hooks() { return *finalize_hooks_; }

  // See exchange_records().
  ExchangedRecords exchange(const std::string& mine,
                            std::chrono::steady_clock::time_point deadline,
                            const std::function<bool()>& interrupted);

  // Returns a port, one for each transport. Throws std::runtime_error when none is
  // left: a port at which messages may still arrive is never reused.
  int take_port();
  void give_port(int port) { free_ports_.push_back(port); }

  // Takes over a request that nobody waits for, and keeps `memory` until it has
  // completed.
  void abandon(RequestHandle request, std::shared_ptr<const void> memory);
  // Frees the memory of abandoned requests that have completed. Returns true if none
  // is left.
  bool poll_abandoned();

 private:
  struct AbandonedRequest {
    RequestHandle request;
    std::shared_ptr<const void> memory;
  };

  const std::shared_ptr<Library> library_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<FinalizeHooks> finalize_hooks_ =
      std::make_shared<FinalizeHooks>();
  std::vector<AbandonedRequest> abandoned_;
  std::vector<int> free_ports_;
  int ports_used_ = 1;
};

}  // namespace bluecomm::mpi
