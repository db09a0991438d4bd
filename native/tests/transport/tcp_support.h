#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/fd.h"
#include "stream/handshake.h"
#include "stream/wire.h"
#include "tests/transport/ranks.h"
#include "transport/tcp/transport.h"

// Fixtures for the tests of the tcp transport.

namespace bluecomm::test {

using Adjust = std::function<void(TcpOptions& options)>;

TcpOptions tcp_options(int rank);
Scheme tcp_scheme(const Adjust& adjust = {});

// Rank 0 alone, with a channel to a rank 1 at `offer`.
Scheme tcp_alone(const Adjust& adjust = {}, const std::string& offer = "127.0.0.1:1");

// Rank 0 of tcp_alone(). Findings of its driver fail the test.
struct LoneRank {
  explicit LoneRank(const Scheme& scheme) : ranks(scheme, 1, findings) {}
  ~LoneRank() {
    for (const std::string& finding : findings) record_failure("rank 0", 0, finding);
  }
  std::string offer() { return ranks[0].transport().offer(); }
  const std::string& await_loss() {
    ranks.drive("loss", [&] { return ranks[0].lost.contains(1); });
    return ranks[0].lost[1].text;
  }

  Findings findings;
  Ranks ranks;
};

// Records a failure unless `text` contains `part`.
void expect_part(const std::string& text, std::string_view part);

// Returns a connected, non-blocking socket.
UniqueFd connect_to(std::string_view offer);
void write_all(int fd, std::span<const std::byte> bytes);
inline void write_all(int fd, std::string_view text) {
  write_all(fd, std::as_bytes(std::span(text)));
}
// Whether the other end has closed the connection. Appends the bytes that it sent
// before to `said`.
bool has_ended(int fd, std::string& said);

// Plays rank 1 for a transport of rank 0, stream by stream.
class HandMadePeer {
 public:
  using Spoil = std::function<void(stream::Hello&, TcpOptions&)>;

  // Dials `offer`. `spoil` may first change each hello and the key.
  HandMadePeer(std::string offer, std::uint32_t streams, Spoil spoil = {});

  std::size_t dialled() const { return streams_.size(); }
  int fd(std::size_t stream = 0) const { return streams_[stream].fd.get(); }
  // Continues the handshakes, one stream after the other. Returns true when all of
  // them are done and, if there are several streams, in use.
  bool greet();
  void send(const stream::Frame& frame, std::size_t payload_sent,
            std::size_t stream = 0);
  void announce(std::uint64_t message, std::uint64_t tag, std::size_t nbytes);
  void close(std::size_t stream) { streams_[stream].fd.reset(); }

 private:
  struct PeerStream {
    UniqueFd fd;
    stream::Handshake handshake;
    std::size_t opened = 0;  // bytes received of the kOpen frame
  };

  void dial();

  const std::string offer_;
  const std::uint32_t wanted_;
  const Spoil spoil_;
  stream::Hello hello_;
  std::vector<PeerStream> streams_;
};

}  // namespace bluecomm::test
