#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/recent.h"
#include "p2p/message.h"
#include "p2p/point_credit.h"
#include "p2p/point_matching.h"
#include "p2p/point_request.h"
#include "p2p/point_transfer.h"
#include "request/removed_groups.h"
#include "request/request_peers.h"
#include "request/request_table.h"
#include "request/wait_stats.h"

namespace bluecomm {

// All sends and receives of a rank. A send starts its message at once, whatever else is
// outstanding; a receive takes the first message that it matches. docs/data-plane.md
// describes the states.
//
// Starts no thread and never waits. Guarded by the engine's progress lock.
class PointService final : public PointRequestHost {
 public:
  // Called with a failure of a send that had succeeded on this rank, and the rank that
  // has reported it.
  using OnLateFailure = std::function<void(int peer, Status failure)>;

  // `job` is a hash of the job's name.
  PointService(int rank, std::uint64_t job, std::uint32_t epoch,
               const RequestPeers& peers, const RemovedGroups& removed_groups,
               RequestTable& requests, WaitStats& stats, OnLateFailure on_late_failure)
      : rank_(rank),
        job_(job),
        epoch_(epoch),
        peers_(peers),
        removed_groups_(removed_groups),
        requests_(requests),
        stats_(stats),
        on_late_failure_(std::move(on_late_failure)),
        credits_(static_cast<std::size_t>(stats.size())) {}

  // Starts a send or a receive. `late`, if any, is an earlier failure that it raises.
  void start(PointCall call, RequestId id, std::optional<Status> late);

  // PointRequestHost.
  void fail(PointRequest& request, Status status) override;
  void expire(PointRequest& request) override;
  BaseRequest::Awaited awaited(const PointRequest& request) const override;

  // Takes a message of type kPoint. Returns false and leaves it if it is not from this
  // job and this version of bluecomm.
  bool take_message(int peer, std::unique_ptr<Incoming>& message);
  // Moves what can be moved now. `gone` are the lost ranks. Returns whether anything
  // changed.
  bool poll(std::span<const int> gone);
  // Whether poll() has to be called soon, even if nothing arrives.
  bool resumes_held() const { return resumes_held_; }

  // Whether sends wait for gates, which poll_gates() polls. It returns whether anything
  // changed.
  bool has_gated() const { return !gated_.empty(); }
  bool poll_gates();

  // Fails the requests of a group, which this rank has removed.
  void remove_group(std::uint64_t group);
  // Fails the receives of a group that only await ranks which have removed it. The
  // earlier messages of `peer`, which is the latest of them, have arrived.
  void note_removed_by(std::uint64_t group, int peer);
  // Fails requests that start from now on, with `why`.
  void close(Status why) { closed_ = std::move(why); }
  // Drops all messages.
  void free();

 private:
  // The text of a kCancel, kDecline or kUnsent that is arriving.
  struct Notice {
    int peer;
    PointMessage message;
    std::unique_ptr<Incoming> incoming;
    std::string text;
    PointRequestPtr receive;  // the one that has taken a kUnsent; otherwise null
  };

  void start_send(const PointRequestPtr& send);
  bool send_message(const PointRequestPtr& send, Channel& channel);
  void poll_values(PointRequest& send);
  void send_held(int peer);
  void leave_unsent(const PointRequest& send, const Status& status);
  void leave_own_unsent(const PointRequestPtr& send, const Status& status);
  void report_taken(int peer);
  void begin(SentPoint sent, const PointRequestPtr& receive);
  bool move(PointTransfer& transfer);
  bool advance_transfers();
  bool is_released(const PointRequest& send) const;
  bool release_sends();
  void end(PointRequest& request, Status status);
  void drop_transfer(const PointRequest& receive);
  bool post(int peer, PointMessage message, PointAction action, const Status& status);
  PointMessage message_of(const PointRequest& send) const;
  PointCredit& credit_of(int peer) { return credits_[static_cast<std::size_t>(peer)]; }

  void decline(SentPoint sent, const Status& status);
  void decline_removed(SentPoint sent);
  bool read_notices();
  bool has_notice(RequestId send) const;
  void handle_cancel(int peer, RequestId send, Status status);
  void handle_decline(int peer, const PointMessage& message, Status status);

  const PointTransfer* transfer_of(const PointRequest& request) const;
  std::string mismatch_text(const SentPoint& sent, const PointRequest& receive) const;
  Status timeout_status(const PointRequest& request) const;
  bool fail_gone(int rank);
  bool fail_without_source(std::span<const int> gone);
  void fail_if_removed(const PointRequestPtr& receive);
  bool has_source(const PointRequest& receive) const;

  const int rank_;
  const std::uint64_t job_;
  const std::uint32_t epoch_;
  const RequestPeers& peers_;
  const RemovedGroups& removed_groups_;
  RequestTable& requests_;
  WaitStats& stats_;
  const OnLateFailure on_late_failure_;
  PointMatching matching_;
  std::vector<PointCredit> credits_;    // by rank
  std::vector<PointRequestPtr> sends_;  // not released yet
  std::vector<PointRequestPtr> gated_;  // of these, the ones that wait for gates
  // Whether poll() goes on with held sends: they follow one that was forgotten, or the
  // transport has thrown while it posted a kUnsent.
  bool resumes_held_ = false;
  std::vector<std::unique_ptr<PointTransfer>> transfers_;
  std::vector<Notice> notices_;
  // Messages that do not match their receives. A transport may release the values of a
  // message that is dropped, so each is kept until its sender has noticed that.
  std::vector<SentPoint> declined_;
  // Sends that have failed on this rank; what their receivers report is no news.
  RecentMap<RequestId, bool, std::hash<RequestId>> failed_{1024};
  Status closed_;
};

}  // namespace bluecomm
