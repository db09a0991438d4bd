#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/gate.h"
#include "request/base_request.h"
#include "transport/channel.h"

namespace bluecomm {

// Stands for the peer of a receive that takes a message of any rank.
inline constexpr int kAnySource = -1;

// One send or receive of this rank. The caller owns the memory, which must stay valid
// until the request has ended.
struct PointCall {
  RequestKind kind = RequestKind::kSend;  // or kRecv
  std::string name;                       // for texts only
  std::uint64_t group = 0;
  std::shared_ptr<const std::vector<int>> members;  // of the group: global ranks
  int peer = kAnySource;  // global rank; a send needs one, which may be this rank
  std::int64_t tag = 0;
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape;
  std::span<std::byte> memory;  // only read by a send
  // Opens when the values of a send have been written; null if they have been.
  std::shared_ptr<Gate> gate;
  bool raises_late = true;  // as Call::raises_late
  Clock::time_point deadline;

  std::size_t count() const { return memory.size() / item_size(dtype); }
};

// The public name of a send or a receive: "send" or "recv".
constexpr std::string_view point_call_name(RequestKind kind) {
  return kind == RequestKind::kSend ? "send" : "recv";
}

constexpr std::optional<RequestKind> point_kind_from_name(std::string_view name) {
  for (const RequestKind kind : {RequestKind::kSend, RequestKind::kRecv}) {
    if (point_call_name(kind) == name) return kind;
  }
  return std::nullopt;
}

class PointRequest;

// The PointService, as its requests use it.
class PointRequestHost {
 public:
  virtual void fail(PointRequest& request, Status status) = 0;
  virtual void expire(PointRequest& request) = 0;
  virtual BaseRequest::Awaited awaited(const PointRequest& request) const = 0;

 protected:
  ~PointRequestHost() = default;
};

// A send or a receive that has been started.
class PointRequest final : public BaseRequest {
 public:
  PointRequest(RequestId id, int rank, PointCall call, PointRequestHost& host)
      : BaseRequest(id, call.kind, rank, State::kRunning, call.deadline),
        call_(std::move(call)),
        host_(host),
        written_(call_.gate ? 0 : call_.memory.size()),
        has_values_(call_.gate == nullptr) {}

  std::string_view kind_name() const override { return point_call_name(call_.kind); }
  std::string_view name() const override { return call_.name; }
  // The sequence is the sender's id of its request, which both sides know at the end.
  TraceFields trace_fields() const override {
    const RequestId sent = is_send() ? id() : send_;
    return {call_.group, static_cast<std::uint32_t>(sent), call_.memory.size()};
  }
  const PointCall& call() const { return call_; }
  bool is_send() const { return call_.kind == RequestKind::kSend; }

  Awaited awaited() const override { return host_.awaited(*this); }
  void abort(Status status) override { host_.fail(*this, std::move(status)); }
  void expire() override { host_.expire(*this); }
  // Cancels the message of a send.
  void finish(Status status) override {
    status_ = std::move(status);
    state_ = State::kDone;
    outgoing_.reset();
  }
  bool holds_memory() const override { return lease_.has_tenants(); }

  // Starts the message of a send. Returns false, and sends nothing, if not all values
  // have been written and the transport needs all of them.
  bool send(Channel& channel, const Header& header) {
    if (!has_values_) {
      outgoing_ = channel.send_growing(header, call_.memory);
      if (outgoing_) grow();
      return is_sent();
    }
    std::shared_ptr<void> copies;
    outgoing_ = channel.send_to_many(header, call_.memory, copies, lease_);
    return true;
  }
  // Polls the gate of a send, and sends what has been written since. Returns its
  // failure, or ok.
  Status poll_values() {
    const std::optional<Status> opened = call_.gate->poll();
    if (opened && !opened->ok()) return *opened;
    has_values_ = opened.has_value();
    written_ = has_values_ ? call_.memory.size()
                           : std::min(call_.gate->written(), call_.memory.size());
    if (is_sent()) grow();
    return {};
  }
  // Returns whether all values of a send have been written, and how many of their first
  // bytes.
  bool has_values() const { return has_values_; }
  std::size_t written() const { return written_; }
  // Returns whether the message has been sent, and how much of it nobody reads again.
  bool is_sent() const { return outgoing_ != nullptr; }
  std::size_t released() const { return outgoing_ ? outgoing_->released() : 0; }

  std::size_t final_prefix() const override { return received_; }
  void set_received(std::size_t nbytes) { received_ = nbytes; }

  // The rank whose message a receive has taken, or the peer that the call names.
  int source() const { return source_; }
  // The receive has taken the message of `rank` with the id `send` there.
  void set_source(int rank, RequestId send) {
    source_ = rank;
    send_ = send;
  }

 private:
  void grow() {
    const std::size_t rest = has_values_ ? 0 : written_ % kChunkAlignment;
    if (written_ > rest) outgoing_->grow(written_ - rest);
  }

  const PointCall call_;
  PointRequestHost& host_;
  std::unique_ptr<Outgoing> outgoing_;
  Lease lease_;
  int source_ = call_.peer;
  RequestId send_ = 0;
  std::size_t received_ = 0;
  std::size_t written_;
  bool has_values_;
};

}  // namespace bluecomm
