#include "transport/inproc/inproc_transport.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "transport/inproc/inproc_state.h"

namespace bluecomm {
namespace {

using namespace inproc;

using Hub = std::shared_ptr<InprocHub::State>;

class InprocOutgoing final : public Outgoing {
 public:
  InprocOutgoing(Hub hub, std::shared_ptr<Message> message)
      : hub_(std::move(hub)), message_(std::move(message)) {}

  ~InprocOutgoing() override {
    const std::scoped_lock lock(hub_->mutex);
    if (message_->released == message_->header.nbytes) return;
    message_->over = true;
    message_->payload = {};
  }

  std::size_t released() const override {
    const std::scoped_lock lock(hub_->mutex);
    return message_->released;
  }

 private:
  Hub hub_;
  std::shared_ptr<Message> message_;
};

// What the transport and the Incoming share about a message that arrives.
struct Reception {
  Hub hub;
  std::shared_ptr<Message> message;
  bool accepted = false;
  std::span<std::byte> into;
  std::vector<std::byte> window;
  std::size_t window_begin = 0;  // payload offset of window[0]
  std::size_t filled = 0;        // payload offset up to which bytes are here
  std::size_t consumed = 0;

  std::size_t nbytes() const { return message->header.nbytes; }

  // With the hub's lock held.
  bool can_fetch() const {
    const bool wanted =
        accepted && filled < nbytes() && (!into.empty() || consumed == filled);
    const bool cut = hub->link(message->from, message->to) == Link::kCut;
    return wanted && !message->over && (message->eager || !cut);
  }

  // Copies the next chunk, if it may; returns its length.
  std::size_t fetch() {
    const std::scoped_lock lock(hub->mutex);
    if (!can_fetch()) return 0;
    const std::size_t n = std::min(hub->options.chunk_bytes, nbytes() - filled);
    std::byte* dst = into.data() + filled;
    if (into.empty()) {
      window.resize(n);
      window_begin = filled;
      dst = window.data();
    }
    std::copy_n(message->payload.data() + filled, n, dst);
    filled += n;
    if (!message->eager) {
      message->released = filled;
      hub->ring(message->from);
    }
    return n;
  }
};

class InprocIncoming final : public Incoming {
 public:
  explicit InprocIncoming(std::shared_ptr<Reception> reception)
      : reception_(std::move(reception)) {}

  ~InprocIncoming() override {
    reception_->accepted = false;
    Message& message = *reception_->message;
    const std::scoped_lock lock(reception_->hub->mutex);
    if (message.over) return;
    message.over = true;
    message.released = message.header.nbytes;
    reception_->hub->ring(message.from);
  }

  const Header& header() const override { return reception_->message->header; }

  void accept(std::span<std::byte> into) override {
    reception_->accepted = true;
    reception_->into = into;
  }

  std::span<const std::byte> readable() const override {
    const Reception& r = *reception_;
    const std::size_t n = r.filled - r.consumed;
    if (n == 0) return {};
    if (!r.into.empty()) return r.into.subspan(r.consumed, n);
    return std::span(r.window).subspan(r.consumed - r.window_begin, n);
  }

  std::optional<SharedBytes> share() override {
    const Message& message = *reception_->message;
    const std::scoped_lock lock(reception_->hub->mutex);
    if (message.eager || message.over) return std::nullopt;
    auto* const bytes = const_cast<std::byte*>(message.payload.data());
    return SharedBytes{nullptr, {bytes, message.payload.size()}};
  }

  void consume(std::size_t nbytes) override { reception_->consumed += nbytes; }
  std::size_t consumed() const override { return reception_->consumed; }

 private:
  std::shared_ptr<Reception> reception_;
};

class InprocTransport;

class InprocChannel final : public Channel {
 public:
  InprocChannel(InprocTransport& transport, Hub hub, int peer)
      : transport_(transport), hub_(std::move(hub)), peer_(peer) {}

  int peer() const override { return peer_; }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override;
  void post(const Header& header, std::span<const std::byte> payload) override;
  bool shares_memory() const override { return hub_->options.shares_memory; }
  ChannelStats stats() const override { return stats_; }

  void count_received(std::size_t messages, std::size_t nbytes) {
    stats_.messages_received += messages;
    stats_.bytes_received += nbytes;
  }

 private:
  std::shared_ptr<Message> start(const Header& header,
                                 std::span<const std::byte> payload, bool eager);

  InprocTransport& transport_;
  const Hub hub_;
  const int peer_;
  ChannelStats stats_;
};

class InprocTransport final : public Transport {
 public:
  InprocTransport(Hub hub, int rank) : hub_(std::move(hub)), rank_(rank) {
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    const std::scoped_lock lock(hub_->mutex);
    Mailbox& box = hub_->mailbox(rank_);
    if (box.open) throw std::logic_error("this rank of the hub has a transport");
    box.bell.reset(fd);
    box.open = true;
    for (std::size_t i = 0; i < hub_->size(); ++i) {
      const int peer = static_cast<int>(i);
      channels_.push_back(std::make_unique<InprocChannel>(*this, hub_, peer));
    }
    ended_.resize(hub_->size());
  }

  ~InprocTransport() override {
    const std::scoped_lock lock(hub_->mutex);
    hub_->mailbox(rank_).open = false;
    hub_->mailbox(rank_).bell.reset();
    for (const auto& channel : channels_) {
      hub_->break_link(rank_, channel->peer(),
                       "rank " + std::to_string(rank_) + " closed its transport");
    }
  }

  std::string_view name() const override { return "inproc"; }
  std::string offer() const override { return std::to_string(rank_); }

  Channel& channel(int peer, std::string_view) override {
    return *channels_.at(static_cast<std::size_t>(peer));
  }

  bool poll(Receiver& receiver) override {
    bool changed = false;
    for (Event& event : take_events(changed)) {
      changed = true;
      dispatch(receiver, event);
    }
    // By index: messages that a receiver accepts at once are looked at in this poll
    // too.
    for (std::size_t i = 0; i < receptions_.size(); ++i) {
      Reception& reception = *receptions_[i];
      const std::size_t n = reception.fetch();
      channels_[static_cast<std::size_t>(reception.message->from)]->count_received(0,
                                                                                   n);
      changed |= n > 0;
    }
    std::erase_if(receptions_, [](const auto& r) { return r.use_count() == 1; });
    return changed;
  }

  int wait_fd() const override { return hub_->mailbox(rank_).bell.get(); }

  bool prepare_sleep() override {
    const std::scoped_lock lock(hub_->mutex);
    if (hub_->mailbox(rank_).rung || next_event() <= Clock::now()) return false;
    return std::none_of(receptions_.begin(), receptions_.end(),
                        [](const auto& r) { return r->can_fetch(); });
  }

  void finish_sleep() override {}

  Clock::time_point next_timer() const override {
    const std::scoped_lock lock(hub_->mutex);
    return next_event();
  }

  void forget(int peer) override {
    end(peer);
    const std::scoped_lock lock(hub_->mutex);
    hub_->break_link(rank_, peer,
                     "rank " + std::to_string(rank_) + " dropped the link");
  }

  void close() override {
    if (std::exchange(closing_, true)) return;
    const std::scoped_lock lock(hub_->mutex);
    for (const auto& channel : channels_) {
      if (hub_->link(rank_, channel->peer()) != Link::kUsed) continue;
      hub_->push(channel->peer(), {Event::Type::kGoodbye, rank_, {}, nullptr, {}});
    }
  }

  bool closed() const override {
    const std::scoped_lock lock(hub_->mutex);
    return closing_ && std::all_of(sent_.begin(), sent_.end(), [this](const auto& m) {
             return m->done() || !hub_->mailbox(m->to).open;
           });
  }

  // The hub's mutex may be held by a thread that the child does not have.
  void abandon_after_fork() noexcept override { hub_->mailbox(rank_).bell.reset(); }

  int rank() const { return rank_; }
  bool closing() const { return closing_; }

  // With the hub's lock held.
  void remember(std::shared_ptr<Message> message) {
    std::erase_if(sent_, [](const auto& m) { return m->done(); });
    sent_.push_back(std::move(message));
  }

 private:
  // With the hub's lock held.
  Clock::time_point next_event() const {
    Clock::time_point next = Clock::time_point::max();
    for (const Event& event : hub_->mailbox(rank_).events) {
      next = std::min(next, event.visible_at);
    }
    return next;
  }

  std::vector<Event> take_events(bool& rung) {
    const std::scoped_lock lock(hub_->mutex);
    Mailbox& box = hub_->mailbox(rank_);
    rung = std::exchange(box.rung, false);
    eventfd_t ignored = 0;
    if (rung) eventfd_read(box.bell.get(), &ignored);
    std::vector<Event> taken;
    if (box.events.empty()) return taken;
    const Clock::time_point now = Clock::now();
    const auto visible = [now](const Event& event) { return event.visible_at <= now; };
    for (Event& event : box.events) {
      if (!visible(event)) continue;
      if (event.message) event.message->arrived = true;
      taken.push_back(std::move(event));
    }
    std::erase_if(box.events, visible);
    return taken;
  }

  void dispatch(Receiver& receiver, Event& event) {
    switch (event.type) {
      case Event::Type::kMessage: {
        auto reception = std::make_shared<Reception>();
        reception->hub = hub_;
        reception->message = std::move(event.message);
        receptions_.push_back(reception);
        channels_[static_cast<std::size_t>(event.from)]->count_received(1, 0);
        receiver.on_message(event.from, std::make_unique<InprocIncoming>(reception));
        break;
      }
      case Event::Type::kLost:
        if (end(event.from)) receiver.on_lost(event.from, std::move(event.status));
        break;
      case Event::Type::kGoodbye:
        if (end(event.from)) receiver.on_goodbye(event.from);
        break;
    }
  }

  // True the first time: a peer ends once.
  bool end(int peer) {
    const auto index = static_cast<std::size_t>(peer);
    const bool first = !ended_[index];
    ended_[index] = true;
    return first;
  }

  const Hub hub_;
  const int rank_;
  bool closing_ = false;
  std::vector<bool> ended_;  // lost or goodbye was reported, by peer
  std::vector<std::unique_ptr<InprocChannel>> channels_;
  std::vector<std::shared_ptr<Reception>> receptions_;
  std::vector<std::shared_ptr<Message>> sent_;  // until delivered
};

std::shared_ptr<Message> InprocChannel::start(const Header& header,
                                              std::span<const std::byte> payload,
                                              bool eager) {
  const int rank = transport_.rank();
  auto message = std::make_shared<Message>(rank, peer_, header, payload);
  const std::scoped_lock lock(hub_->mutex);
  if (transport_.closing() || hub_->link(rank, peer_) == Link::kCut) return message;
  hub_->link(rank, peer_) = Link::kUsed;
  if (eager) {
    message->eager = true;
    message->copy.assign(payload.begin(), payload.end());
    message->payload = message->copy;
    message->released = payload.size();
  }
  ++stats_.messages_sent;
  stats_.bytes_sent += payload.size();
  transport_.remember(message);
  hub_->push(peer_, {Event::Type::kMessage, rank, {}, message, {}});
  return message;
}

std::unique_ptr<Outgoing> InprocChannel::send(const Header& header,
                                              std::span<const std::byte> payload) {
  const bool eager = payload.size() <= hub_->options.eager_bytes;
  return std::make_unique<InprocOutgoing>(hub_, start(header, payload, eager));
}

void InprocChannel::post(const Header& header, std::span<const std::byte> payload) {
  start(header, payload, true);
}

}  // namespace

InprocHub::InprocHub(int size, const InprocOptions& options)
    : state_(std::make_shared<State>(size, options)) {}

InprocHub::~InprocHub() = default;

std::unique_ptr<Transport> InprocHub::make_transport(int rank) {
  return std::make_unique<InprocTransport>(state_, rank);
}

void InprocHub::cut(int rank, int other) {
  const std::scoped_lock lock(state_->mutex);
  state_->link(rank, other) = Link::kUsed;
  state_->break_link(rank, other, "the link was cut");
  state_->link(rank, other) = Link::kUsed;
  state_->break_link(other, rank, "the link was cut");
}

}  // namespace bluecomm
