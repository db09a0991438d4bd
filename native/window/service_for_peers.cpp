// Serves the requests of other ranks about this rank's windows, and takes their answers
// to its own requests. The engine calls these functions under its progress lock.
#include <algorithm>
#include <string>
#include <utility>

#include "window/service.h"

namespace bluecomm {
namespace {

// Bytes of each payload that are moved per turn.
constexpr std::size_t kBudget = 1 << 20;

}  // namespace

bool WindowService::take_message(int peer, std::unique_ptr<Incoming>& message) {
  const auto read = read_window_message(message->header());
  if (!read || read->job != job_ || read->epoch != epoch_) return false;
  if (!closed_.ok()) return true;
  if (is_answer(read->action)) {
    take_answer(peer, *read, std::move(message));
  } else {
    serve(peer, *read, std::move(message));
  }
  return true;
}

void WindowService::serve(int peer, const WindowMessage& message,
                          std::unique_ptr<Incoming> incoming) {
  if (message.action == WindowAction::kOpen) {
    note_open(peer, message.window);
    return;
  }
  if (message.action == WindowAction::kAccepts) {
    const auto accepting = windows_.find(message.window);
    if (accepting != windows_.end()) accepting->second->accept(peer);
    return;
  }
  if (message.action == WindowAction::kCancel) {
    cancel(peer, message);
    return;
  }
  const bool shares = message.action == WindowAction::kShareMailbox ||
                      message.action == WindowAction::kShareValue;
  if (shares) {
    take_shared(peer, message, std::move(incoming));
    return;
  }
  const auto found = windows_.find(message.window);
  if (found == windows_.end()) {
    refuse(peer, message, "has no such window; it may have been freed");
    return;
  }
  const WindowPtr& window = found->second;
  switch (message.action) {
    case WindowAction::kPut:
    case WindowAction::kAccumulate:
      receive(peer, message, window, std::move(incoming));
      return;
    case WindowAction::kGet:
      send_value(peer, message, window);
      return;
    case WindowAction::kLock:
      enter_mutex(peer, message, *window);
      return;
    case WindowAction::kCancel:
    case WindowAction::kOpen:
    case WindowAction::kAccepts:
    case WindowAction::kShareMailbox:
    case WindowAction::kShareValue:
    case WindowAction::kDone:
    case WindowAction::kValue:
    case WindowAction::kWaits:
    case WindowAction::kRefused:
      return;  // handled above
  }
}

void WindowService::refuse(int peer, const WindowMessage& message,
                           const std::string& why) {
  WindowMessage answer = message;
  answer.action = WindowAction::kRefused;
  post(peer, answer, peers_.describe_rank(rank_) + " " + why);
}

void WindowService::note_open(int peer, std::uint64_t window) {
  for (const auto& [number, part] : parts_) {
    if (part.message.action == WindowAction::kOpen && part.peer == peer &&
        part.message.window == window) {
      end_part(number, {});
      return;
    }
  }
  early_[window].opens.insert(peer);
}

void WindowService::take_shared(int peer, const WindowMessage& message,
                                std::unique_ptr<Incoming> incoming) {
  std::optional<SharedBytes> bytes = incoming->share();
  if (!bytes) return;  // the peers will use messages instead
  Shared shared{peer, message, std::move(*bytes)};
  const auto found = windows_.find(message.window);
  if (found != windows_.end()) {
    attach(*found->second, std::move(shared));
  } else {
    early_[message.window].shared.push_back(std::move(shared));
  }
}

void WindowService::attach(Window& window, Shared shared) {
  const WindowConfig& config = window.config();
  if (shared.message.action == WindowAction::kShareMailbox) {
    window.attach_mailbox(shared.peer, std::move(shared.bytes));
  } else if (config.ranks > 0 && !window.has_in_neighbor(shared.peer)) {
    early_[config.id].shared.push_back(std::move(shared));  // for connect()
  } else {
    window.attach_value(shared.peer, std::move(shared.bytes),
                        static_cast<std::size_t>(shared.message.other),
                        shared.message.readers);
  }
}

// --- Values --------------------------------------------------------------------------

void WindowService::receive(int peer, const WindowMessage& message,
                            const WindowPtr& window,
                            std::unique_ptr<Incoming> incoming) {
  if (!window->has_in_neighbor(peer)) {
    refuse(peer, message,
           "has no mailbox for it, because the asker is not an in-neighbor");
    return;
  }
  if (incoming->header().nbytes != window->config().nbytes) {
    refuse(peer, message,
           "expected " + std::to_string(window->config().nbytes) + " bytes, got " +
               std::to_string(incoming->header().nbytes));
    return;
  }
  arrivals_.push_back(std::make_unique<WindowArrival>(
      peer, message, window, std::move(incoming), message.weight));
}

void WindowService::send_value(int peer, const WindowMessage& message,
                               const WindowPtr& window) {
  const auto reader = window->reader_number(peer);
  Channel* const channel = peers_.channel(peer);
  if (!reader || channel == nullptr) {
    refuse(peer, message,
           "does not show its value, because the asker is not an out-neighbor");
    return;
  }
  // The peer has received its earlier value, or has cancelled that request.
  std::erase_if(servings_, [&](const Serving& one) {
    return one.window == window && one.peer == peer;
  });
  Serving serving{window, peer, reader, {}, nullptr};
  const auto& readers = window->config().out_neighbors;
  const bool was_reader = std::binary_search(readers.begin(), readers.end(), peer);
  PublishedValue& published = window->published();
  PublishedValue::View view;
  if (was_reader || !channel->shares_memory()) {
    view = published.begin_read(*reader);
  } else {
    // The peer may begin to read the value itself at any time, under its own number.
    const std::size_t own = *window->reader_number(rank_);
    view = published.begin_read(own);
    serving.copy.assign(view.bytes.begin(), view.bytes.end());
    published.end_read(own);
    serving.reader.reset();
    view.bytes = serving.copy;
  }
  WindowMessage answer = message;
  answer.action = WindowAction::kValue;
  answer.p = view.p;
  serving.outgoing = channel->send(header_of(answer, view.bytes.size()), view.bytes);
  servings_.push_back(std::move(serving));
}

void WindowService::end_serving(const Serving& serving) {
  if (serving.reader) serving.window->published().end_read(*serving.reader);
}

bool WindowService::move_arrivals() {
  bool changed = false;
  for (std::size_t i = 0; i < arrivals_.size();) {
    if (arrivals_[i]->move(kBudget)) changed = true;
    if (!arrivals_[i]->done()) {
      ++i;
      continue;
    }
    const std::unique_ptr<WindowArrival> whole = std::move(arrivals_[i]);
    arrivals_.erase(arrivals_.begin() + static_cast<std::ptrdiff_t>(i));
    finish_arrival(*whole);
    changed = true;
  }
  return changed;
}

void WindowService::finish_arrival(WindowArrival& arrival) {
  const WindowMessage& message = arrival.message();
  const Mailbox::Meta meta{message.p, message.carries_p != 0, message.signal};
  WindowMessage answer = message;
  answer.action = WindowAction::kDone;
  switch (message.action) {
    case WindowAction::kPut:
      arrival.window()->writer_for(arrival.peer()).publish_put(meta);
      break;
    case WindowAction::kAccumulate:
      if (arrival.window()->config().nbytes_on_device > 0) {
        answer.was_published =
            arrival.window()->publish_for(arrival.peer(), meta, message.is_sum != 0);
      } else {
        arrival.window()
            ->writer_for(arrival.peer())
            .accumulate(arrival.bytes(), 1.0, meta);
      }
      break;
    case WindowAction::kValue: {
      if (!parts_.contains(message.request)) return;  // cancelled
      const Mailbox::Meta weighted{message.weight * message.p, meta.carries_p};
      arrival.window()->replace(arrival.peer(), arrival.bytes(), weighted);
      end_part(message.request, {});
      return;
    }
    default: {  // text
      const auto part = parts_.find(message.request);
      if (part == parts_.end()) return;
      const auto* const text = reinterpret_cast<const char*>(arrival.bytes().data());
      end_part(message.request, {Code::kInvalid,
                                 part->second.request->label() + ": " +
                                     std::string(text, arrival.bytes().size()),
                                 arrival.peer()});
      return;
    }
  }
  answer.other = static_cast<std::int32_t>(
      arrival.window()->writer_for(arrival.peer()).back_slot());
  post(arrival.peer(), answer);
}

// --- Mutexes -------------------------------------------------------------------------

void WindowService::enter_mutex(int peer, const WindowMessage& message,
                                Window& window) {
  const MutexQueue::Claim claim{peer, message.request};
  const auto holder = window.mutex_queue.holder();
  if (window.mutex_queue.enter(claim)) {
    grant(claim, window);
    return;
  }
  if (peer == rank_) {
    parts_.at(message.request).holder = holder->rank;
    return;
  }
  WindowMessage answer = message;
  answer.action = WindowAction::kWaits;
  answer.other = holder->rank;
  post(peer, answer);
}

void WindowService::leave_mutex(int peer, std::uint64_t request, Window& window) {
  if (const auto next = window.mutex_queue.leave({peer, request})) grant(*next, window);
}

void WindowService::grant(const MutexQueue::Claim& claim, const Window& window) {
  if (claim.rank == rank_) {
    end_part(claim.request, {});
    return;
  }
  WindowMessage answer;
  answer.window = window.config().id;
  answer.request = claim.request;
  answer.action = WindowAction::kDone;
  post(claim.rank, answer);
}

// --- Endings -------------------------------------------------------------------------

void WindowService::cancel(int peer, const WindowMessage& message) {
  std::erase_if(arrivals_, [&](const auto& one) {
    return one->peer() == peer && one->message().request == message.request &&
           !is_answer(one->message().action);
  });
  const auto found = windows_.find(message.window);
  if (found != windows_.end()) leave_mutex(peer, message.request, *found->second);
}

void WindowService::take_answer(int peer, const WindowMessage& message,
                                std::unique_ptr<Incoming> incoming) {
  const auto found = parts_.find(message.request);
  if (found == parts_.end() || found->second.peer != peer) return;  // cancelled
  Part& part = found->second;
  switch (message.action) {
    case WindowAction::kDone:
      if (part.message.action == WindowAction::kPut ||
          part.message.action == WindowAction::kAccumulate) {
        part.request->window()->note_back(peer, message.other,
                                          message.was_published != 0);
      }
      end_part(message.request, {});
      return;
    case WindowAction::kWaits:
      // A peer may send any number.
      if (message.other >= 0 && message.other < stats_.size()) {
        part.holder = message.other;
      }
      return;
    case WindowAction::kValue:
      if (incoming->header().nbytes == part.request->window()->config().nbytes) {
        arrivals_.push_back(
            std::make_unique<WindowArrival>(peer, message, part.request->window(),
                                            std::move(incoming), part.message.weight));
      }
      return;
    case WindowAction::kRefused:
      arrivals_.push_back(std::make_unique<WindowArrival>(peer, message, nullptr,
                                                          std::move(incoming), 1.0));
      return;
    case WindowAction::kPut:
    case WindowAction::kAccumulate:
    case WindowAction::kGet:
    case WindowAction::kLock:
    case WindowAction::kCancel:
    case WindowAction::kOpen:
    case WindowAction::kAccepts:
    case WindowAction::kShareMailbox:
    case WindowAction::kShareValue:
      return;  // not answers
  }
}
}  // namespace bluecomm
