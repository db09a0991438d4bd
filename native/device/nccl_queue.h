#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/failure_watcher.h"
#include "common/mutex.h"
#include "common/status.h"
#include "device/call_order.h"
#include "device/cuda_device.h"
#include "device/nccl_call.h"
#include "device/nccl_comm.h"
#include "device/nccl_groups.h"
#include "device/nccl_library.h"

namespace bluecomm::device {

// Passes one rank's calls to NCCL in the order of their numbers, on a thread and a
// stream of its own. The thread alone uses the communicators, one for each group. It
// aborts that of a group when a member is lost, a call fails on this rank alone, or the
// device takes too long; from then on all calls of the group fail. Thread-safe; only
// close() and suspend() block.
class NcclQueue final : public FailureWatcher,
                        public std::enable_shared_from_this<NcclQueue> {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the thread. With `awaits_device` operations end only when the device has
  // finished their calls. In a forked child the object is leaked. Throws CudaError or
  // NcclError.
  static std::shared_ptr<NcclQueue> open(std::shared_ptr<const NcclLibrary> library,
                                         std::shared_ptr<const CudaDevice> device,
                                         int rank, bool awaits_device);
  // Aborts, unless close() has been called.
  ~NcclQueue() override;

  // Returns the draft of a call on what `stream` has computed so far. Throws CudaError.
  std::shared_ptr<NcclCall> make_call(const NcclGroup& group, const NcclWork& work,
                                      CudaStream stream, NcclCall::Limit limit);
  // Returns a call for the engine: that of a draft among the members of `group`, which
  // are members of the draft's group, too. Throws NcclError.
  std::shared_ptr<NcclCall> enter(const NcclCall& draft, const NcclGroup& group);
  // Ends the communicator of a group, once the device has finished its calls.
  void forget_group(std::uint64_t id);
  // The reason why no call of a group succeeds any more.
  std::optional<Status> failure_of(const NcclGroup& group) const;
  // Stops the thread, and the time that the device may take for a call, until resume()
  // or close(). Waits until the thread stands still, unless a call of NCCL takes long.
  void suspend();
  void resume();
  // Finishes the calls that NCCL has got, and ends the communicators; aborts them after
  // `limit`. Calls that NCCL has not got fail. If other ranks may have issued one of
  // them, the communicators are aborted at once.
  void close(Clock::duration limit);

  // FailureWatcher.
  void note_lost(int rank, const std::string& reason) override;
  // Also for calls: the ticket has failed on this rank.
  void note_failed_ticket(std::uint64_t group, const Status& status) override;
  void note_removed_group(std::uint64_t group, const Status& status) override;
  void note_failed_device(int rank, const std::string& reason) override;
  std::optional<Status> device_failure() const override;
  bool is_working() const override { return is_working_; }

  // For calls.
  const std::shared_ptr<const CudaDevice>& device() const { return device_; }
  bool awaits_device() const { return awaits_device_; }
  std::vector<std::byte> offer(const NcclGroup& group, const NcclWork& work) const;
  std::uint64_t propose();
  void withdraw(std::uint64_t proposal);
  // Returns this rank's proposal. Throws as Ticket::write_answer().
  std::uint64_t write_answer(const NcclGroup& group,
                             std::span<const std::uint64_t> proposals,
                             std::span<std::byte> answer);
  // `proposal` is that of this rank for the call.
  void add(std::shared_ptr<NcclCall> call, std::uint64_t proposal,
           std::span<const std::byte> answer);

 private:
  // How often the thread looks at the device and at a communicator that is in progress.
  static constexpr std::chrono::microseconds kInterval{200};

  struct Numbered {
    std::shared_ptr<NcclCall> call;
    NcclId id;  // of the communicator
  };
  struct Issued {
    std::shared_ptr<NcclCall> call;
    std::shared_ptr<StreamPoint> done;
  };
  // The communicator of a group that the program has freed.
  struct Ending {
    std::uint64_t group;
    std::unique_ptr<NcclComm> comm;
    Clock::time_point until;  // then it is aborted
  };

  NcclQueue(std::shared_ptr<const NcclLibrary> library,
            std::shared_ptr<const CudaDevice> device, int rank, bool awaits_device);
  bool has_next() const REQUIRES(mutex_);
  std::optional<Status> why_refused(const NcclGroup& group, std::uint64_t proposal,
                                    CallNumber number) const REQUIRES(mutex_);
  bool has_failed(const NcclGroup& group) const;
  void fail(std::uint64_t group, const Status& status);
  void fail_all(const Status& status);
  void fail_device(const Status& status);
  void forget_issued() REQUIRES(mutex_);

  // The thread's turns.
  void run();
  bool goes_on() const;
  std::optional<Numbered> take_next();
  void wait_for_change();
  void park(UniqueLock& lock) REQUIRES(mutex_);
  void issue(const Numbered& next);
  NcclComm* comm_of(const Numbered& next);
  bool settle(NcclComm& comm, const NcclGroup& group);
  void fail_by_nccl(std::uint64_t group, const std::exception& error);
  std::optional<Status> await_reason(std::uint64_t group);
  // The endings, also on the thread.
  void watch();
  void watch_device();
  void watch_comms();
  void end_forgotten();
  void end_settled();
  bool give_up();
  void give_up(const NcclGroups::FailedGroup& failed);
  void await_aborted();
  bool fail_waiting(const Status& status, std::optional<std::uint64_t> group);
  void end();
  Status closed_status() const;
  void finalize(Clock::time_point deadline);
  static Status status_of(const std::exception& error);

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<const CudaDevice> device_;
  const int rank_;  // in the world
  const bool awaits_device_;
  const CudaStream stream_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  CallOrder order_ GUARDED_BY(mutex_);
  NcclGroups groups_ GUARDED_BY(mutex_);
  // Calls that NCCL has not got, and others that have yet to be forgotten.
  std::deque<std::weak_ptr<NcclCall>> made_ GUARDED_BY(mutex_);
  std::map<CallNumber, Numbered> numbered_ GUARDED_BY(mutex_);
  std::optional<Clock::time_point> stop_at_ GUARDED_BY(mutex_);
  bool is_suspended_ GUARDED_BY(mutex_) = false;
  bool is_parked_ GUARDED_BY(mutex_) = false;
  std::optional<Status> device_failure_ GUARDED_BY(mutex_);
  std::atomic<bool> has_failed_device_{false};
  std::atomic<bool> is_working_{false};  // the device has not finished a call

  // Used by the thread only.
  std::map<std::uint64_t, std::unique_ptr<NcclComm>> comms_;  // by group
  std::vector<Ending> ending_;
  // Calls that the device has not finished, or not left, if their group has failed.
  std::deque<Issued> issued_;
  Clock::time_point oldest_since_{};  // when the first of them became the first
  // Calls that have failed while NCCL took them.
  std::vector<std::shared_ptr<NcclCall>> cut_short_;

  std::thread thread_;
};

}  // namespace bluecomm::device
