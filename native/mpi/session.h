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

// What a process has of MPI for bluecomm alone: a communicator of its own, made once
// from the program's, its tags, and the memory of operations that outlived their use.
// One thread at a time.
class Session {
 public:
  // The tags of one transport are `port * kTags` and those that follow; port 0 belongs
  // to meetings.
  static constexpr int kTags = 4096;
  static constexpr int kPorts = (kMaxTag + 1) / kTags;

  // Made by open().
  Session(std::shared_ptr<Library> library, std::shared_ptr<Communicator> own);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  // The communicator stays until MPI ends. Messages may be left in it that nobody took
  // (to a transport that had ended), and an MPI that gives the number of a communicator
  // again may give the next one these messages, or crash (Open MPI 4.1).
  ~Session();

  // Waits for all ranks of `communicator`, then duplicates it. Null, with `missing` set
  // (or not, when interrupted), if they did not all come.
  static std::shared_ptr<Session> open(std::shared_ptr<Library> library,
                                       std::shared_ptr<Communicator> communicator,
                                       std::chrono::steady_clock::time_point deadline,
                                       const std::function<bool()>& interrupted,
                                       std::vector<int>& missing);

  Library& library() { return *library_; }
  Communicator& communicator() { return *communicator_; }

  // What the program's MPI_Finalize waits for.
  FinalizeHooks& finalize_hooks() { return *finalize_hooks_; }

  // See exchange_records().
  ExchangedRecords exchange(const std::string& mine,
                            std::chrono::steady_clock::time_point deadline,
                            const std::function<bool()>& interrupted);

  // One for each transport. Throws std::runtime_error when none is left: a port whose
  // messages may still come is not given back.
  int take_port();
  void give_port(int port) { free_ports_.push_back(port); }

  // Keeps `memory` until `request`, which nobody waits for, has ended.
  void abandon(RequestHandle request, std::shared_ptr<const void> memory);
  // Frees what has ended. True if nothing is left.
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
