#pragma once

#include <memory>
#include <span>
#include <string>

#include "transport/channel.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/ring_connection.h"

namespace bluecomm::shm {

// The channel to one peer over shared memory, from the first message to the end of the
// connection.
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
  // Not for short payloads, nor for those in shared memory, which the peer reads there.
  std::unique_ptr<Outgoing> send_growing(const Header& header,
                                         std::span<const std::byte> payload) override;
  void post(const Header& header, std::span<const std::byte> payload) override;
  bool shares_memory() const override { return true; }
  ChannelStats stats() const override;
  bool beat() override;
  std::uint64_t signs_of_life() const override;

  // Whether messages wait for a connection.
  bool wants_connection() const {
    return !connection_ && !finished_ && outbox_->has_queue();
  }
  bool is_connected() const { return connection_ != nullptr; }
  bool finished() const { return finished_; }
  int socket() const { return connection_ ? connection_->socket() : -1; }
  pid_t peer_pid() const { return connection_ ? connection_->peer_pid() : 0; }
  void attach(std::unique_ptr<RingConnection> connection);
  // Call this when the socket is readable.
  void receive() { connection_->receive(); }

  bool poll(Receiver& receiver);
  // Whether poll() would do something now. If not, the peer will wake this rank when
  // that changes, except for needs_retry().
  bool busy();
  // poll() must be tried again soon, because the socket was full.
  bool needs_retry() const { return outbox_->needs_retry(); }

  // Ends the channel and reports the loss to `receiver`. `text` is a phrase about the
  // peer.
  void lose(Receiver& receiver, const std::string& text);
  // Ends the link without reporting it. Messages that have already arrived are still
  // reported.
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
  void send_goodbye();
  void disconnect();

  const std::shared_ptr<SharedState> shared_;
  const int peer_;
  const std::string offer_;
  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<Inbox> inbox_;
  std::unique_ptr<RingConnection> connection_;
  bool closing_ = false;
  bool goodbye_sent_ = false;
  bool peer_finished_ = false;
  bool forgotten_ = false;
  bool finished_ = false;  // the link is lost, dropped or closed by the peer
  ChannelStats stats_;
};

}  // namespace bluecomm::shm
