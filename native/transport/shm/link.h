#pragma once

#include <memory>
#include <span>
#include <string>

#include "transport/channel.h"
#include "transport/shm/receive_side.h"
#include "transport/shm/send_side.h"
#include "transport/shm/wire.h"

namespace bluecomm::shm {

// The channel to one peer, from its first message to its end.
class Link final : public Channel {
 public:
  Link(std::shared_ptr<Shared> shared, int peer, std::string offer);
  ~Link() override;

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

  // Has messages and no wire to carry them yet.
  bool wants_wire() const { return !wire_ && !over_ && sender_->has_queue(); }
  bool has_wire() const { return wire_ != nullptr; }
  bool over() const { return over_; }
  int socket() const { return wire_ ? wire_->socket() : -1; }
  pid_t peer_pid() const { return wire_ ? wire_->peer_pid() : 0; }
  void attach(std::unique_ptr<Wire> wire);
  // To be called when the socket is readable.
  void receive() { wire_->receive(); }

  bool poll(Receiver& receiver);
  // poll() would do something now; else the peer will wake this rank when so.
  bool has_work();
  // As above, except for one reason: poll() is to be tried again soon.
  bool needs_retry() const { return sender_->needs_retry(); }

  // The peer cannot be reached.
  void fail(Receiver& receiver, const std::string& text);
  // Reports nothing more but messages that have come already.
  void forget();
  void close();
  bool closed();
  void abandon() noexcept;

 private:
  std::unique_ptr<Outgoing> send_message(const Header& header,
                                         std::span<const std::byte> payload,
                                         std::shared_ptr<void>* copies);
  bool drain(Receiver& receiver);
  void dispatch(const Record& record, Receiver& receiver);
  void say_goodbye();
  void end();

  const std::shared_ptr<Shared> shared_;
  const int peer_;
  const std::string offer_;
  const std::shared_ptr<SendSide> sender_;
  const std::shared_ptr<ReceiveSide> receiver_;
  std::unique_ptr<Wire> wire_;
  bool closing_ = false;
  bool said_goodbye_ = false;
  bool heard_goodbye_ = false;
  bool forgotten_ = false;
  bool over_ = false;  // lost, or the peer has gone
  ChannelStats stats_;
};

}  // namespace bluecomm::shm
