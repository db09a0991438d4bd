#include "transport/tcp/channel.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "stream/socket.h"

namespace bluecomm::tcp {
namespace {

static_assert(stream::kAlignment % kChunkAlignment == 0);
static_assert(sizeof(Header) <= stream::kMaxHead);
static_assert(Channel::kAnyLead == stream::kAnyLead);

std::span<const std::byte> bytes_of(const Header& header) {
  return std::as_bytes(std::span(&header, 1));
}

Header with_length(Header header, std::size_t nbytes) {
  header.nbytes = nbytes;
  return header;
}

class TcpOutgoing final : public Outgoing {
 public:
  std::size_t released() const override { return message_.released(); }
  void grow(std::size_t nbytes) override { message_.grow(nbytes); }
  stream::SentMessage& message() { return message_; }

 private:
  stream::SentMessage message_;
};

class TcpIncoming final : public Incoming {
 public:
  explicit TcpIncoming(std::unique_ptr<stream::ReceivedMessage> message)
      : message_(std::move(message)) {
    std::memcpy(&header_, message_->head().data(), sizeof header_);
    header_.nbytes = message_->nbytes();
  }
  const Header& header() const override { return header_; }
  void accept(std::span<std::byte> into) override { message_->accept(into); }
  std::span<const std::byte> readable() const override { return message_->readable(); }
  void consume(std::size_t nbytes) override { message_->consume(nbytes); }
  std::size_t consumed() const override { return message_->consumed(); }

 private:
  std::unique_ptr<stream::ReceivedMessage> message_;
  Header header_;
};

}  // namespace

std::unique_ptr<Outgoing> TcpChannel::send(const Header& header,
                                           std::span<const std::byte> payload) {
  auto outgoing = std::make_unique<TcpOutgoing>();
  const Header sent = with_length(header, payload.size());
  connection_.send(outgoing->message(), bytes_of(sent), payload);
  return outgoing;
}

std::unique_ptr<Outgoing> TcpChannel::send_growing(const Header& header,
                                                   std::span<const std::byte> payload) {
  if (payload.size() <= connection_.eager_bytes()) return nullptr;
  auto outgoing = std::make_unique<TcpOutgoing>();
  const Header sent = with_length(header, payload.size());
  connection_.send_growing(outgoing->message(), bytes_of(sent), payload);
  return outgoing;
}

void TcpChannel::post(const Header& header, std::span<const std::byte> payload) {
  connection_.post(bytes_of(with_length(header, payload.size())), payload);
}

ChannelStats TcpChannel::stats() const {
  stream::LinkStats link = connection_.stats();
  ChannelStats stats;
  stats.messages_sent = link.sent.messages;
  stats.bytes_sent = link.sent.bytes;
  stats.messages_received = link.received.messages;
  stats.bytes_received = link.received.bytes;
  for (stream::StreamStats& one : link.streams) {
    stats.streams.push_back({std::move(one.peer), one.bytes_sent, one.chunks_sent,
                             one.bytes_received, one.chunks_received});
  }
  return stats;
}

bool TcpChannel::beat() {
  if (!connection_.is_open()) return false;
  connection_.send_heartbeat();
  return true;
}

PathLosses TcpChannel::path_losses() const {
  PathLosses losses;
  for (const stream::Stream& stream : connection_.link().streams()) {
    const stream::Repeats repeats = stream::repeats_of(stream.fd());
    losses.repeated += repeats.packets;
    losses.repeat_after = std::max(losses.repeat_after, repeats.after);
  }
  return losses;
}

bool TcpChannel::report(Receiver& receiver) {
  bool any = false;
  while (auto message = connection_.take_arrived()) {
    any = true;
    receiver.on_message(peer(), std::make_unique<TcpIncoming>(std::move(message)));
  }
  const auto end = connection_.take_end();
  if (!end) return any;
  if (end->empty()) {
    receiver.on_goodbye(peer());
  } else {
    receiver.on_lost(peer(), Status{Code::kPeerLost, *end, peer()});
  }
  return true;
}

}  // namespace bluecomm::tcp
