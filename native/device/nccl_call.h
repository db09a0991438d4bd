#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/ticket.h"
#include "device/cuda_device.h"
#include "device/nccl_comm.h"
#include "device/stream_point.h"

namespace bluecomm::device {

class NcclQueue;

// One call of an operation on tensors of a GPU, through NCCL: the engine's ticket, an
// entry of the queue, and the program's result. It is a draft until it has entered the
// queue. docs/notes/nccl-backend.md has its states. Thread-safe.
class NcclCall final : public Ticket, public std::enable_shared_from_this<NcclCall> {
 public:
  using Limit = std::chrono::duration<double>;

  // The input has been written at `ready`. NCCL may take `limit` for the call alone.
  NcclCall(const std::shared_ptr<NcclQueue>& queue, NcclGroup group, NcclWork work,
           std::shared_ptr<StreamPoint> ready, Limit limit);
  // The same call among the members of another group.
  NcclCall(const std::shared_ptr<NcclQueue>& queue, const NcclCall& draft,
           const NcclGroup& group);

  // Ticket and Gate.
  std::span<const std::byte> offer() const override { return offer_; }
  void check_offers(std::span<const std::byte> offers) override;
  std::uint64_t propose() override;
  void write_answer(std::span<const std::uint64_t> proposals,
                    std::span<std::byte> answer) override;
  void take_answer(std::span<const std::byte> answer) override;
  void fail(const Status& status) override;
  std::vector<LibraryMessage> messages() const override;
  std::optional<Status> poll() override;

  // For the program, once the operation has ended. Makes the later work of `stream`
  // wait for the result, or returns the failure. Throws CudaError.
  std::optional<Status> follow(CudaStream stream) const;
  // Returns whether neither NCCL nor the device uses the memory of the call any more.
  bool has_ended() const;
  // Returns whether NCCL has not got the call yet, and it has not failed.
  bool is_waiting() const;
  // Returns whether the call may have a number on some rank, or get one there. If not,
  // this rank has made no proposal, without which there is no number.
  bool may_have_number() const { return may_have_number_; }
  // The engine has not got the call, so nothing will use its memory.
  void withdraw() { set_failed({Code::kInternal, "the call was not started", -1}); }

  // For the thread of the queue. Between begin() and set_ended() the memory is in use.
  // Returns false if the call has failed already.
  bool begin();
  void set_issued(std::shared_ptr<StreamPoint> done);
  void set_failed(const Status& status);
  void set_ended();
  const NcclGroup& group() const { return group_; }
  const NcclWork& work() const { return work_; }
  const StreamPoint& ready() const { return *ready_; }
  Limit limit() const { return limit_; }

 private:
  enum class State : std::uint8_t { kWaiting, kIssued, kFailed };

  std::shared_ptr<NcclQueue> queue() const;

  const std::weak_ptr<NcclQueue> queue_;
  const std::shared_ptr<const CudaDevice> device_;
  // Whether the gate opens only when the device has finished the call.
  const bool awaits_device_;
  const NcclGroup group_;
  const std::vector<std::byte> offer_;
  const NcclWork work_;
  const std::shared_ptr<StreamPoint> ready_;
  const Limit limit_;
  std::uint64_t proposal_ = 0;  // none: 0; used by the engine only
  // The first member has asked for proposals, or this one has made one.
  std::atomic<bool> may_have_number_{false};
  mutable Mutex mutex_;
  State state_ GUARDED_BY(mutex_) = State::kWaiting;
  bool is_in_use_ GUARDED_BY(mutex_) = false;
  Status status_ GUARDED_BY(mutex_);                      // of kFailed
  std::shared_ptr<StreamPoint> done_ GUARDED_BY(mutex_);  // of kIssued
};

}  // namespace bluecomm::device
