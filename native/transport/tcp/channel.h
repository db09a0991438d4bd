#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "stream/connection.h"
#include "transport/channel.h"

namespace bluecomm::tcp {

// The link to one peer: gives the messages of a Connection the form that a Channel's
// have.
class TcpChannel final : public Channel {
 public:
  // As Connection.
  TcpChannel(stream::Poller& poller, const stream::Options& options,
             const stream::Hello& hello, std::vector<stream::Address> addresses,
             std::shared_ptr<stream::SegmentPool> pool)
      : connection_(poller, options, hello, "rank " + std::to_string(hello.to),
                    std::move(addresses), sizeof(Header), std::move(pool)) {}

  int peer() const override { return connection_.peer(); }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override;
  void post(const Header& header, std::span<const std::byte> payload) override;
  ChannelStats stats() const override;

  stream::Connection& connection() { return connection_; }
  const stream::Connection& connection() const { return connection_; }

  // Hands what has come to the receiver, then the end of the link. True if anything.
  bool report(Receiver& receiver);

 private:
  stream::Connection connection_;
};

}  // namespace bluecomm::tcp
