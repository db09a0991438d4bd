#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/status.h"
#include "engine/account.h"
#include "engine/collectives/tuning.h"
#include "engine/leaving.h"
#include "engine/matching.h"
#include "engine/operation.h"
#include "engine/peers.h"
#include "engine/window_links.h"
#include "transport/channel.h"
#include "window/service.h"

namespace bluecomm {

struct PendingOperation {
  RequestId id = 0;
  bool is_window_call = false;  // its deadline cannot be put off
  std::string kind;
  std::string name;
  double age_s = 0;
  std::vector<int> waiting_for;
  std::string wish;  // what they are to do, if it is not to take part
  std::size_t received_bytes = 0;
  std::size_t expected_bytes = 0;
};

struct PeerStats {
  int rank = 0;
  std::string transport;
  ChannelStats channel;
  std::vector<std::pair<Kind, EdgeStats>> edges;  // of the kinds that were used
  WindowAccount::Edges window_edges;
};

struct Stats {
  double age_s = 0;  // how long it has been counted
  std::vector<PeerStats> peers;
  std::vector<std::pair<Kind, KindStats>> kinds;
  WindowAccount::Kinds window_calls;
};

struct EngineConfig {
  int rank = 0;
  int size = 1;
  std::string job;
  std::uint32_t epoch = 0;
  std::string machine;
  Tuning tuning;
  std::shared_ptr<Recorder> recorder;  // or null
  // Memory for results whose length only the peers know.
  std::function<Result(std::size_t nbytes)> allocate;
};

// All operations of one rank: starts them, hands them what arrives, ends them.
//
// The part of the engine without threads and without waiting: each call does what can
// be done now. One thread at a time (the engine's progress lock).
class Dispatcher final : private Receiver {
 public:
  Dispatcher(EngineConfig config, std::vector<std::unique_ptr<Transport>> transports);
  ~Dispatcher();

  std::map<std::string, std::string> offers() const;
  void connect(std::vector<Peer> peers);
  const Peers& peers() const { return peers_; }
  void add_group(Group group);
  // Throws std::invalid_argument for an unknown id.
  std::shared_ptr<const Group> group(std::uint64_t id) const;

  // Starts `request`. Throws std::invalid_argument for one that makes no sense; every
  // other failure shows at the handle.
  RequestId submit(Request request);
  std::shared_ptr<const Operation> operation(RequestId id) const;
  bool has_result(RequestId id) const;
  const Result& result(RequestId id) const;
  // Forgets an operation. False: a transport still reads its memory, until the handle
  // is among take_finished().
  bool release(RequestId id);
  // Of operations that failed while a transport was reading their memory, and still is.
  std::vector<RequestId> held() const { return leaving_.ids(); }
  std::vector<RequestId> take_finished();
  void fail(RequestId id, Status status);
  // As `label: text` for each.
  void fail_all(Code code, const std::string& text, int rank);
  void extend_deadline(RequestId id, Clock::duration time);
  // Of all operations.
  void put_off_deadlines(Clock::duration time);
  void peer_lost(int rank, std::string text);
  std::vector<PendingOperation> pending() const;
  Stats stats() const;
  void reset_stats();
  Account& account() { return account_; }
  WindowService& windows() { return windows_; }
  WindowAccount& window_account() { return window_account_; }

  // Moves what can be moved now, at most about kBudget bytes of each operation. True
  // when anything changed, so that it should be called again.
  bool poll();
  bool outstanding() const { return !active_.empty() || windows_.outstanding(); }
  // Grows by one with each operation, and each request about a window, that ends.
  std::uint64_t completions() const { return completions_ + windows_.completions(); }
  // When poll() has to be called even if no transport asks for it.
  Clock::time_point next_timer() const;
  // Those that have not failed.
  std::span<const std::unique_ptr<Transport>> transports() const { return transports_; }

  // Ends all operations and says goodbye; submit() fails from now on.
  void close();
  bool closed() const;
  // Calls Transport::release_backend() on all transports.
  void release_backends();
  // Drops all messages and transports. What a transport has left to be read on is never
  // freed; held() tells.
  void free();
  void abandon_after_fork() noexcept;

 private:
  static constexpr std::size_t kBudget = 1 << 20;

  struct Entry {
    std::shared_ptr<Operation> operation;
    Result result;
    Account::Notes notes;
  };

  // Only note what happened; the transport is in the middle of its poll.
  void on_message(int peer, std::unique_ptr<Incoming> message) override;
  void on_lost(int peer, Status status) override;
  void on_goodbye(int peer) override;

  Entry& entry(RequestId id);
  const Entry& entry(RequestId id) const;
  void start(Operation& operation);
  bool read_arrivals();
  void match(int peer, const Envelope& envelope, std::unique_ptr<Incoming> message);
  bool advance(Operation& operation);
  void end(Operation& operation);

  void look_at_leaving();

  // dispatcher_failures.cpp
  void for_transports(const std::function<void(Transport&)>& body);
  void fail_thrown(Operation& operation, const std::exception& error);
  void fail_operation(Operation& operation, Status status);
  void send_abort(int peer, const Envelope& call, const Status& status);
  void fail_mismatch(Operation& operation, int peer, const Envelope& theirs);
  void fail_unexpected(int peer, const Envelope& theirs);
  void fail_forgotten(Operation& operation, int peer);
  void handle_abort(int peer, const Envelope& envelope, std::string text);
  bool read_aborts();
  bool has_abort(int peer, const Key& key) const;
  bool fail_expired(Clock::time_point now);
  bool fail_gone(Clock::time_point now);
  std::vector<int> participants(const Operation& operation) const;
  Status timeout_status(const Operation& operation) const;

  const EngineConfig config_;
  const std::uint64_t job_;
  std::vector<std::unique_ptr<Transport>> transports_;
  // Whose state is unknown: they are asked for nothing any more, but have channels.
  std::vector<std::unique_ptr<Transport>> broken_transports_;
  std::string broken_;  // why no operation can start any more
  Peers peers_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Group>> groups_;
  Matching matching_;
  Account account_;
  PeersAsLinks links_;
  WindowAccount window_account_;
  WindowService windows_;
  std::vector<ChannelStats> counted_before_;  // by rank, at the last reset_stats()
  Clock::time_point now_;                     // when this turn began
  std::unordered_map<RequestId, Entry> entries_;
  std::vector<std::shared_ptr<Operation>> active_;  // started or queued, not ended
  std::vector<RequestId> finished_;                 // whose memory nobody reads
  Leaving leaving_;
  // Failures of calls that had ended here, by group: the next call raises them.
  std::unordered_map<std::uint64_t, Status> late_failures_;
  struct Arrived {
    int peer;
    std::unique_ptr<Incoming> message;
  };
  std::vector<Arrived> arrived_;
  struct Abort {
    int peer;
    Envelope envelope;
    std::unique_ptr<Incoming> message;
    std::string text;
  };
  std::vector<Abort> aborts_;  // whose text is still arriving
  RequestId last_id_ = 0;
  std::uint64_t completions_ = 0;
  bool closing_ = false;
};

}  // namespace bluecomm
