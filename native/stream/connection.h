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

// The connection to one peer: first a connector, which finds the first stream, then a
// link, which may get further streams. Not thread-safe.
class Connection {
 public:
  // `hello` names this rank, the peer, the epoch and the job. `name` is the peer's name
  // in error texts, such as "rank 3". `head_nbytes` is as for Link. The referenced
  // objects must outlive the connection.
  Connection(Poller& poller, const Options& options, const Hello& hello,
             std::string name, std::vector<Address> addresses, std::size_t head_nbytes,
             std::shared_ptr<SegmentPool> pool);

  int peer() const { return hello_.to; }
  const std::string& name() const { return name_; }

  // See Link for these.
  void send(SentMessage& message, std::span<const std::byte> head,
            std::span<const std::byte> payload) {
    link_.send(message, head, payload);
  }
  void send_growing(SentMessage& message, std::span<const std::byte> head,
                    std::span<const std::byte> payload) {
    link_.send_growing(message, head, payload);
  }
  void post(std::span<const std::byte> head, std::span<const std::byte> payload) {
    link_.post(head, payload);
  }
  std::size_t lead() const { return link_.lead(); }
  LinkStats stats() const { return link_.stats(); }
  std::size_t eager_bytes() const { return options_.eager_bytes; }
  const Link& link() const { return link_; }
  std::unique_ptr<ReceivedMessage> take_arrived() { return link_.take_arrived(); }

  void expect(std::uint64_t message, std::span<std::byte> into, bool announce) {
    link_.expect(message, into, announce);
  }

  void send_heartbeat() { link_.send_heartbeat(); }
  // See Link.
  void retry_single_stream() { link_.retry_single_stream(); }

  bool is_open() const { return state_ == State::kOpen; }
  // Stays true after the link has ended.
  bool was_opened() const { return opened_; }
  // The name of the link. Valid while it is open.
  const Nonce& group() const { return group_; }
  // Whether the link is neither open nor being opened.
  bool is_idle() const { return state_ == State::kConnecting && connector_.is_idle(); }

  // Takes a stream that the peer has dialed. Returns false, and closes it, if it is not
  // needed.
  bool admit(const Hello& hello, StreamSocket socket, Clock::time_point now);

  // Moves the data that can be moved now. Returns whether anything changed.
  bool advance(Clock::time_point now);

  // Returns how the link ended: the error, or "" if the peer said goodbye. Reports it
  // once, and nothing otherwise.
  std::optional<std::string> take_end();

  // Whether advance(), take_arrived() or take_end() would do something now.
  bool busy() const;
  // See Link.
  bool has_unsent() const { return state_ == State::kOpen && link_.has_unsent(); }
  Clock::time_point next_timer() const;
  // Ends the link if the peer's kernel has stopped acknowledging.
  void check_silence();

  // Closes the link without telling the peer, and without reporting an end.
  void forget();
  // Starts to close the link: sends what was queued, then a goodbye. closed() tells
  // when that is done.
  void close();
  bool closed() const;
  // In a forked child: closes the copies of all descriptors.
  void abandon() noexcept;

 private:
  enum class State { kConnecting, kOpen, kGone };

  bool advance_connector(Clock::time_point now);
  bool advance_link(Clock::time_point now);
  void open(Connector::First first);
  void add(StreamSocket socket, bool announce);
  void update_unsent_limit();
  void grow(Clock::time_point now);
  void lose(std::string text);
  void close_link();

  Poller& poller_;
  const Options& options_;
  const Hello hello_;
  const std::string name_;
  const std::vector<Address> addresses_;
  State state_ = State::kConnecting;
  bool opened_ = false;
  bool closing_ = false;
  bool end_reported_ = false;        // take_end() has returned the end
  std::optional<std::string> lost_;  // the error that ended the link
  Connector connector_;
  Nonce group_{};  // the name of the link
  Link link_;
  std::vector<Watch> watches_;  // one per stream of link_, destroyed before it
  std::optional<StreamCount::User> count_;  // unless Options::streams sets a number
  std::optional<StreamOpener> opener_;      // only if this end dialed the link
  std::size_t asked_for_ = 1;  // streams requested from the peer, if it dialed
};

}  // namespace bluecomm::stream
