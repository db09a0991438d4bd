// A connection to one peer, driven by its owner: TcpTransport's channels call it on the
// progress thread, and the NCCL plugin's comms call it under their mutex.
//
// advance() runs the connector until the first stream is chosen, then the link, and
// opens further streams as StreamCount asks for. An error ends the link, and take_end()
// reports it once.
#include "stream/connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "common/seconds.h"
#include "stream/socket.h"

namespace bluecomm::stream {

Connection::Connection(Poller& poller, const Options& options, const Hello& hello,
                       std::string name, std::vector<Address> addresses,
                       std::size_t head_nbytes, std::shared_ptr<SegmentPool> pool)
    : poller_(poller),
      options_(options),
      hello_(hello),
      name_(std::move(name)),
      addresses_(std::move(addresses)),
      connector_(poller, options, hello, addresses_),
      link_(head_nbytes,
            {.eager_bytes = options.eager_bytes,
             .eager_credit = options.eager_credit,
             .unsolicited_bytes = options.unsolicited_bytes,
             .in_order = options.in_order},
            std::move(pool),
            options.checksum && options.encryption == Encryption::kOff) {}

bool Connection::admit(const Hello& hello, StreamSocket socket, Clock::time_point now) {
  if (hello.stream > 0) {
    const bool joins = state_ == State::kOpen && !opener_ && hello.group == group_ &&
                       link_.streams().size() < static_cast<std::size_t>(kMaxStreams);
    if (joins) add(std::move(socket), true);
    return joins;
  }
  if (state_ != State::kConnecting || (closing_ && !link_.is_wanted())) return false;
  connector_.admit(hello, std::move(socket), now);
  return true;
}

bool Connection::advance(Clock::time_point now) {
  if (state_ == State::kConnecting && advance_connector(now)) return true;
  return state_ == State::kOpen && advance_link(now);
}

bool Connection::advance_connector(Clock::time_point now) {
  if (link_.is_wanted()) connector_.want(now);
  if (connector_.is_idle()) return false;
  if (auto first = connector_.advance(now)) {
    open(std::move(*first));
    advance_link(now);
    return true;
  }
  if (const auto& failure = connector_.failure()) {
    lose("cannot connect to " + name_ + " within " +
         seconds_text(connector_.waited(now)) + ": " + *failure);
    return true;
  }
  return false;
}

void Connection::open(Connector::First first) {
  connector_.stop();
  state_ = State::kOpen;
  opened_ = true;
  group_ = first.group;
  const int fd = first.socket.fd.get();
  if (options_.streams == 0) {
    // Between processes of one machine, a second stream gains nothing.
    const bool stays = stays_on_this_machine(fd);
    const bool shares = options_.count != nullptr && !stays;
    count_.emplace(shares ? options_.count
                          : std::make_shared<StreamCount>(stays ? 1 : kMaxAutoStreams));
  }
  link_.set_single_stream(options_.streams == 1);
  if (first.dialed) {
    Hello hello = hello_;
    hello.group = group_;
    opener_.emplace(poller_, options_, hello, addresses_, peer_address(fd));
  }
  add(std::move(first.socket), connector_.decides());
}

void Connection::add(StreamSocket socket, bool announce) {
  watches_.emplace_back(poller_, socket.fd.get(),
                        EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  link_.add(std::move(socket), announce);
  update_unsent_limit();
}

// With several streams in use, a chunk should go to the one that can send it soonest,
// so none of them may hold many unsent bytes.
void Connection::update_unsent_limit() {
  const auto& streams = link_.streams();
  const bool several = std::min(streams.size(), link_.in_use()) > 1;
  for (const Stream& stream : streams) {
    limit_unsent(stream.fd(), several || options_.limit_unsent);
  }
}

bool Connection::advance_link(Clock::time_point now) {
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    const std::uint32_t events = watches_[i].take_events();
    if (events == 0) continue;
    Stream& stream = link_.streams()[i];
    stream.hung_up |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    stream.readable |= (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0;
    stream.writable |= (events & EPOLLOUT) != 0;
  }
  grow(now);
  if (!link_.busy()) return false;
  const bool moved = link_.progress();
  if (const auto& ended = link_.ended()) {
    if (ended->empty()) {
      close_link();
    } else {
      lose("lost the connection to " + name_ + ": " + *ended);
    }
  }
  return moved;
}

void Connection::grow(Clock::time_point now) {
  const std::size_t streams = link_.streams().size();
  std::size_t wanted = static_cast<std::size_t>(options_.streams);
  const std::size_t limit = options_.limits->streams;
  std::size_t used = limit;
  if (count_) {
    const bool is_limited = limit < count_->used();
    const bool chunks_wait = link_.is_blocked();
    // With fewer streams than the count tries, the rate says nothing about that number.
    const bool blocked = chunks_wait && !is_limited;
    if (count_->needs_update(blocked)) {
      count_->update({blocked, link_.bytes_acknowledged(), streams, link_.is_drained()},
                     now);
    }
    used = std::min(limit, count_->used());
    link_.set_single_stream(count_->is_settled() && count_->used() == 1);
    wanted = count_->wanted();
    // The count does not learn that chunks wait.
    if (chunks_wait && is_limited) wanted = std::max(wanted, limit);
    if (opener_) wanted = std::max(wanted, link_.streams_asked_for());
  }
  if (used != link_.in_use()) {
    link_.use(used);
    update_unsent_limit();
  }
  link_.cut_chunks(options_.limits->chunk);
  if (opener_) {
    opener_->want(wanted);
    for (StreamSocket& socket : opener_->advance(now)) add(std::move(socket), false);
  } else if (count_ && wanted > asked_for_) {
    asked_for_ = wanted;
    link_.ask_for_streams(wanted);
  }
}

std::optional<std::string> Connection::take_end() {
  if (end_reported_) return std::nullopt;
  std::optional<std::string> end;
  if (link_.peer_finished()) {
    end.emplace();
  } else {
    end = lost_;
  }
  end_reported_ = end.has_value();
  return end;
}

bool Connection::busy() const {
  if (link_.has_arrived()) return true;
  if (!end_reported_ && (lost_ || link_.peer_finished())) return true;
  return state_ == State::kOpen && link_.busy();
}

Clock::time_point Connection::next_timer() const {
  if (state_ == State::kGone) return Clock::time_point::max();
  if (state_ == State::kOpen) {
    const auto next = opener_ ? opener_->next_timer() : Clock::time_point::max();
    return std::min(next, link_.next_timer());
  }
  const bool news = link_.is_wanted() && !connector_.is_wanted();
  return news ? Clock::time_point::min() : connector_.next_timer();
}

void Connection::check_silence() {
  if (state_ != State::kOpen) return;
  const auto& streams = link_.streams();
  const auto silent =
      std::find_if(streams.begin(), streams.end(), [this](const Stream& stream) {
        return is_silent(stream.fd(), options_.silence_timeout);
      });
  if (silent == streams.end()) return;
  lose("lost the connection to " + name_ + ": " + silent->peer() +
       ": nothing was acknowledged for " + seconds_text(options_.silence_timeout) +
       "; the machine or the network is down");
}

void Connection::lose(std::string text) {
  lost_ = std::move(text);
  close_link();
}

void Connection::close_link() {
  state_ = State::kGone;
  watches_.clear();
  opener_.reset();
  count_.reset();  // links that share the count continue without this one
  link_.end();
  connector_.stop();
}

void Connection::forget() {
  end_reported_ = true;
  close_link();
}

void Connection::close() {
  closing_ = true;
  link_.say_goodbye();
  if (state_ == State::kConnecting && !link_.is_wanted()) close_link();
}

bool Connection::closed() const {
  return closing_ && (state_ == State::kGone || link_.goodbye_seen());
}

void Connection::abandon() noexcept {
  connector_.abandon();
  if (opener_) opener_->abandon();
  link_.abandon();
}

}  // namespace bluecomm::stream
