#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/link.h"
#include "transport/tcp/options.h"
#include "transport/tcp/poller.h"

namespace bluecomm::tcp {

// One peer: first a connector, then a link, at last neither.
class TcpChannel final : public Channel {
 public:
  // `hello`: this rank, the peer, epoch and job. References outlive the channel.
  TcpChannel(Poller& poller, const TcpOptions& options, const Hello& hello,
             std::vector<Address> addresses, std::shared_ptr<SegmentPool> pool);

  int peer() const override { return peer_; }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override;
  void post(const Header& header, std::span<const std::byte> payload) override;
  ChannelStats stats() const override { return link_.stats(); }

  // A stream that the peer has dialled. False: not wanted, and closed.
  bool admit(const Hello& hello, UniqueFd fd, Clock::time_point now);

  // Moves what can be moved now. True if anything changed.
  bool advance(Clock::time_point now);
  // Hands what has come to the receiver, then the end of the link. True if anything.
  bool report(Receiver& receiver);
  // advance() or report() would do something now.
  bool busy() const;
  Clock::time_point next_timer() const;
  // Ends the link if the peer's kernel has fallen silent.
  void check_silence();

  void forget();
  void close();
  bool closed() const;
  void abandon() noexcept;

 private:
  enum class State { kConnecting, kOpen, kGone };

  bool advance_connector(Clock::time_point now);
  bool advance_link();
  void lose(std::string text);
  void let_go();

  Poller& poller_;
  const TcpOptions& options_;
  const int peer_;
  State state_ = State::kConnecting;
  bool closing_ = false;
  bool told_ = false;                // the receiver knows how the link ended
  std::optional<std::string> lost_;  // to be told
  Connector connector_;
  Link link_;
  std::vector<Watch> watches_;  // of link_'s streams: go before them
};

}  // namespace bluecomm::tcp
