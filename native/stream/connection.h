#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stream/connector.h"
#include "stream/link.h"
#include "stream/options.h"
#include "stream/poller.h"
#include "stream/stream_count.h"
#include "stream/stream_opener.h"

namespace bluecomm::stream {

// One peer: first a connector, then a link that may grow, at last neither.
class Connection {
 public:
  // `hello`: this rank, the peer, epoch and job. `name`: of the peer, for errors, such
  // as "rank 3". `head_nbytes`: as for Link. References outlive the connection.
  Connection(Poller& poller, const Options& options, const Hello& hello,
             std::string name, std::vector<Address> addresses, std::size_t head_nbytes,
             std::shared_ptr<SegmentPool> pool);

  int peer() const { return hello_.to; }
  const std::string& name() const { return name_; }

  // As those of Link.
  void send(SentMessage& message, std::span<const std::byte> head,
            std::span<const std::byte> payload) {
    link_.send(message, head, payload);
  }
  void post(std::span<const std::byte> head, std::span<const std::byte> payload) {
    link_.post(head, payload);
  }
  LinkStats stats() const { return link_.stats(); }
  // Longer messages wait for memory at the peer.
  std::size_t eager_bytes() const { return options_.eager_bytes; }
  const Link& link() const { return link_; }
  std::unique_ptr<ReceivedMessage> take_arrived() { return link_.take_arrived(); }

  void expect(std::uint64_t message, std::span<std::byte> into) {
    link_.expect(message, into);
  }

  void send_heartbeat() { link_.send_heartbeat(); }

  bool is_open() const { return state_ == State::kOpen; }
  // Also when it is over.
  bool was_opened() const { return opened_; }
  // Of an open link: names it.
  const Nonce& group() const { return group_; }
  // Neither open nor on the way there.
  bool is_idle() const { return state_ == State::kConnecting && connector_.is_idle(); }

  // A stream that the peer has dialled. False: not wanted, and closed.
  bool admit(const Hello& hello, UniqueFd fd, Clock::time_point now);

  // Moves what can be moved now. True if anything changed.
  bool advance(Clock::time_point now);

  // How the link ended, said once: it broke, and why; or, as "", the peer finished.
  std::optional<std::string> take_end();

  // advance(), take_arrived() or take_end() would do something now.
  bool busy() const;
  Clock::time_point next_timer() const;
  // Ends the link if the peer's kernel has fallen silent.
  void check_silence();

  // Drops the link without a word, to the peer or to the owner.
  void forget();
  void close();
  bool closed() const;
  void abandon() noexcept;

 private:
  enum class State { kConnecting, kOpen, kGone };

  bool advance_connector(Clock::time_point now);
  bool advance_link(Clock::time_point now);
  void open(Connector::First first);
  void add(UniqueFd socket, bool announce);
  void grow(Clock::time_point now);
  void lose(std::string text);
  void let_go();

  Poller& poller_;
  const Options& options_;
  const Hello hello_;
  const std::string name_;
  const std::vector<Address> addresses_;
  State state_ = State::kConnecting;
  bool opened_ = false;
  bool closing_ = false;
  bool told_ = false;                // the owner knows how the link ended
  std::optional<std::string> lost_;  // to be told
  Connector connector_;
  Nonce group_{};  // of the link
  Link link_;
  std::vector<Watch> watches_;              // of link_'s streams: go before them
  std::optional<StreamCount::User> count_;  // unless it is given
  std::optional<StreamOpener> opener_;      // of a link that this end dialled
  std::size_t asked_for_ = 1;               // of the peer, if it dialled
};

}  // namespace bluecomm::stream
