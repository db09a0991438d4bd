#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stream/record_cipher.h"
#include "stream/sending_limits.h"
#include "stream/wire.h"

namespace bluecomm::stream {

using Clock = std::chrono::steady_clock;

// The most streams that a link opens if it decides itself.
inline constexpr int kMaxAutoStreams = 8;

class StreamCount;

struct Options {
  int rank = 0;
  std::string job;
  std::uint64_t epoch = 0;
  std::vector<std::byte> key;          // the job's secret; must not be empty
  std::vector<std::string> addresses;  // local numeric addresses, preferred first
  // Whether to listen on the wildcard addresses, while offering only `addresses`.
  bool listen_everywhere = false;
  // The number of streams of links that this end dials, 1 to kMaxStreams; or 0 to open
  // as many as pay off (see stream_count.h).
  int streams = 0;
  // If `streams` is 0: the count to share with links to the same host, or null.
  std::shared_ptr<StreamCount> count;
  // Limits that may change while links are open; not null.
  std::shared_ptr<const SendingLimits> limits = std::make_shared<SendingLimits>();
  std::size_t eager_bytes = 4096;
  // The bytes of eager and unsolicited messages that the peer may have to store.
  std::size_t eager_credit = kEagerCredit;
  // Longer messages of up to this many bytes are unsolicited: they do not wait until
  // the peer has a buffer. 0: all of them wait. They also wait if the link has several
  // streams, or measures whether several pay off.
  std::size_t unsolicited_bytes = 0;
  // Whether a single stream sends the oldest message first, rather than share the link
  // among messages.
  bool in_order = false;
  // Whether even a single stream holds few unsent bytes, so that a short message soon
  // passes a long one. Several streams always do. Without the limit, a link moves more
  // where its two ends take turns on a core.
  bool limit_unsent = true;
  // Whether this end sends a CRC32C with each frame.
  bool checksum = false;
  // How the bytes of a link are protected. Both ends must have the same setting.
  // Encrypted links send no checksums, because their tags protect more.
  Encryption encryption = Encryption::kOff;

  // How long the handshake of a connection may take.
  std::chrono::milliseconds handshake_timeout{5000};
  // How long a peer may be unreachable before its link is lost ...
  std::chrono::milliseconds connect_timeout{20000};
  // ... and how long it may refuse connections.
  std::chrono::milliseconds refused_timeout{2000};
  // The time between the starts of attempts at a peer's addresses.
  std::chrono::milliseconds stagger{100};
  // A link is lost if the peer's kernel acknowledges nothing for this long. A stopped
  // process does not lose its links, because its kernel keeps answering. A link whose
  // network heals earlier goes on within about a second, on Linux 6.15 or later.
  std::chrono::milliseconds silence_timeout{20000};
  // The most connections that may be in their handshake at a time.
  std::size_t max_half_open = 64;
};

}  // namespace bluecomm::stream
