#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "device/nccl_queue.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

// The queues of some ranks of this process, over a driver and an NCCL that the test
// controls.

namespace bluecomm::test {

// The state of the device and of NCCL. Ranks share the device. There is a log for each
// number of a rank in its group. Thread-safe.
class Imitation {
 public:
  void log(device::NcclHandle comm, const std::string& call);
  std::vector<std::string> calls(int rank);
  bool has_called(int rank, const std::string& call);
  // Answers cuEventQuery, and counts the questions.
  int query();
  std::size_t queries();
  // Answers ncclCommGetAsyncError, and counts the errors.
  int async_error(device::NcclHandle comm);
  std::size_t errors();
  // Makes NCCL report on a rank that it has lost another one.
  void lose_another(int rank);
  // Whether the device finishes its work.
  void set_finishes(bool finishes);

  static device::NcclHandle comm_of(int rank) {
    return reinterpret_cast<device::NcclHandle>(static_cast<std::uintptr_t>(rank) + 1);
  }

 private:
  std::mutex mutex_;
  std::map<device::NcclHandle, std::vector<std::string>> calls_;
  std::set<device::NcclHandle> failed_;
  std::size_t errors_ = 0;
  std::size_t queries_ = 0;
  bool finishes_ = true;
};

// That of the latest `Queues`.
extern std::unique_ptr<Imitation> imitation;

using CallOfRanks = std::vector<std::shared_ptr<device::NcclCall>>;  // one of each rank
using AnswerBytes = std::array<std::byte, Ticket::kAnswerBytes>;

// The queues of some ranks.
class Queues {
 public:
  explicit Queues(int size = 2, bool awaits_device = false);

  device::NcclQueue& of(int rank) { return *queues_[static_cast<std::size_t>(rank)]; }
  // Returns the group of these ranks, as its member `rank` sees it.
  static device::NcclGroup group_of(int rank, const std::vector<int>& ranks);
  std::optional<Status> failure_of(int rank, const std::vector<int>& ranks) {
    return of(rank).failure_of(group_of(rank, ranks));
  }

  // Makes a call of some ranks, and enters it on one of them.
  std::shared_ptr<device::NcclCall> enter(int rank, const std::vector<int>& ranks,
                                          const device::NcclWork& work,
                                          device::NcclCall::Limit limit = kDeadline);
  // Enters an allreduce of ranks 0 and 1 on one of them.
  std::shared_ptr<device::NcclCall> make(int rank, std::size_t count,
                                         device::NcclCall::Limit limit = kDeadline);
  CallOfRanks make_all(std::size_t count) { return {make(0, count), make(1, count)}; }
  // Enters an allreduce of some ranks on all of them.
  CallOfRanks make_among(const std::vector<int>& ranks, std::size_t count);
  // Enters messages between ranks 0 and 1 on one of them.
  std::shared_ptr<device::NcclCall> make_exchange(
      int rank, std::vector<device::NcclMessage> sends,
      std::vector<device::NcclMessage> receives, bool compares_sizes = false);

  // The steps by which the engine numbers a call that all ranks have made.
  static std::vector<std::uint64_t> propose(const CallOfRanks& calls);
  static AnswerBytes decide(const CallOfRanks& calls,
                            const std::vector<std::uint64_t>& proposals);
  static AnswerBytes number(const CallOfRanks& calls) {
    return decide(calls, propose(calls));
  }
  static void take(const CallOfRanks& calls, const AnswerBytes& answer);

  // Has NCCL carry out an allreduce of ranks 0 and 1.
  void issue(std::size_t count);

 private:
  std::vector<std::shared_ptr<device::NcclQueue>> queues_;
};

// Waits for the outcome of a call.
Status awaited_outcome(device::NcclCall& call);

}  // namespace bluecomm::test
