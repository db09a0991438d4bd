#pragma once

#include <memory>
#include <span>
#include <string>

#include "transport/channel.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/ring_connection.h"

namespace bluecomm::shm {

// The channel to one peer, from its first message to its end.
class RingChannel final : public Channel {
 public:
  RingChannel(std::shared_ptr<SharedState> shared, int peer, std::string offer);
  ~RingChannel() override;

  int peer() const override { return peer_; }
  const std::string& offer() const { return offer_; }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override;
  std::unique_ptr<Outgoing> send_to_many(const Header& header,
                                         std::span<const std::byte> payload,
                                         std::shared_ptr<void>& copies,
                                         Lease& lease) override;
  void post(const Header& header, std::span<const std::byte> payload) override;
  bool shares_memory() const override { return true; }
  ChannelStats stats() const override;

  // Has messages and no connection to carry them yet.
  bool wants_connection() const {
    return !connection_ && !finished_ && outbox_->has_queue();
  }
  bool is_connected() const { return connection_ != nullptr; }
  bool finished() const { return finished_; }
  int socket() const { return connection_ ? connection_->socket() : -1; }
  pid_t peer_pid() const { return connection_ ? connection_->peer_pid() : 0; }
  void attach(std::unique_ptr<RingConnection> connection);
  // To be called when the socket is readable.
  void receive() { connection_->receive(); }

  bool poll(Receiver& receiver);
  // poll() would do something now; else the peer will wake this rank when so.
  bool has_work();
  // As above, except for one reason: poll() is to be tried again soon.
  bool needs_retry() const { return outbox_->needs_retry(); }

  // The peer cannot be reached.
  void fail(Receiver& receiver, const std::string& text);
  // Reports nothing more but messages that have come already.
  void forget();
  void close();
  bool closed();
  void abandon_after_fork() noexcept;

 private:
  std::unique_ptr<Outgoing> send_message(const Header& header,
                                         std::span<const std::byte> payload,
                                         std::shared_ptr<void>* copies);
  bool drain(Receiver& receiver);
  void dispatch(const Frame& frame, Receiver& receiver);
  void say_goodbye();
  void disconnect();

  const std::shared_ptr<SharedState> shared_;
  const int peer_;
  const std::string offer_;
  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<Inbox> inbox_;
  std::unique_ptr<RingConnection> connection_;
  bool closing_ = false;
  bool said_goodbye_ = false;
  bool heard_goodbye_ = false;
  bool forgotten_ = false;
  bool finished_ = false;  // lost, or the peer has gone
  ChannelStats stats_;
};

}  // namespace bluecomm::shm
