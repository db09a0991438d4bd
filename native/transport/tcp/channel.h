#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "stream/connection.h"
#include "transport/channel.h"

namespace bluecomm::tcp {

// The channel to one peer over TCP: adapts the messages of a stream::Connection to
// Channel.
class TcpChannel final : public Channel {
 public:
  // Takes the arguments of stream::Connection.
  TcpChannel(stream::Poller& poller, const stream::Options& options,
             const stream::Hello& hello, std::vector<stream::Address> addresses,
             std::shared_ptr<stream::SegmentPool> pool)
      : connection_(poller, options, hello, "rank " + std::to_string(hello.to),
                    std::move(addresses), sizeof(Header), std::move(pool)) {}

  int peer() const override { return connection_.peer(); }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override;
  std::unique_ptr<Outgoing> send_growing(const Header& header,
                                         std::span<const std::byte> payload) override;
  void post(const Header& header, std::span<const std::byte> payload) override;
  std::size_t lead() const override { return connection_.lead(); }
  ChannelStats stats() const override;
  bool beat() override;
  std::uint64_t signs_of_life() const override {
    return connection_.link().bytes_received();
  }
  PathLosses path_losses() const override;

  stream::Connection& connection() { return connection_; }
  const stream::Connection& connection() const { return connection_; }

  // Reports the messages that have arrived, then the end of the link. Returns true if
  // it reported anything.
  bool report(Receiver& receiver);

 private:
  stream::Connection connection_;
};

}  // namespace bluecomm::tcp
