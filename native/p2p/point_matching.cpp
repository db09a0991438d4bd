// Finds the receive of a message and the message of a receive; see point_matching.h.
#include "p2p/point_matching.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace bluecomm {
namespace {

bool accepts(const PointCall& receive, int peer) {
  return receive.peer == kAnySource || receive.peer == peer;
}

}  // namespace

template <typename Queue, typename Predicate>
auto PointMatching::take(Queue& queue, Predicate&& matches)
    -> std::optional<typename Queue::value_type> {
  const auto found = std::find_if(queue.begin(), queue.end(), matches);
  if (found == queue.end()) return std::nullopt;
  auto taken = std::move(*found);
  queue.erase(found);
  return taken;
}

PointRequestPtr PointMatching::match(SentPoint& sent) {
  const TagKey key{sent.message.group, sent.message.tag};
  Line& line = lines_[key];
  std::optional<PointRequestPtr> receive =
      take(line.receives,
           [&](const PointRequestPtr& one) { return accepts(one->call(), sent.peer); });
  if (!receive) {
    line.messages.push_back(std::move(sent));
    return nullptr;
  }
  if (line.empty()) lines_.erase(key);
  return std::move(*receive);
}

std::optional<SentPoint> PointMatching::match(const PointRequestPtr& receive) {
  const PointCall& call = receive->call();
  const TagKey key{call.group, call.tag};
  Line& line = lines_[key];
  std::optional<SentPoint> sent = take(
      line.messages, [&](const SentPoint& one) { return accepts(call, one.peer); });
  if (!sent) line.receives.push_back(receive);
  if (line.empty()) lines_.erase(key);
  return sent;
}

bool PointMatching::remove(const PointRequest& receive) {
  const auto line = lines_.find({receive.call().group, receive.call().tag});
  if (line == lines_.end()) return false;
  const bool found = take(line->second.receives, [&](const PointRequestPtr& one) {
                       return one.get() == &receive;
                     }).has_value();
  if (line->second.empty()) lines_.erase(line);
  return found;
}

bool PointMatching::remove_own(const PointRequest& send) {
  const auto line = lines_.find({send.call().group, send.call().tag});
  if (line == lines_.end()) return false;
  const bool found = take(line->second.messages, [&](const SentPoint& one) {
                       return one.own.get() == &send;
                     }).has_value();
  if (line->second.empty()) lines_.erase(line);
  return found;
}

bool PointMatching::mark_own_failed(const PointRequest& send, const Status& failure) {
  const auto line = lines_.find({send.call().group, send.call().tag});
  if (line == lines_.end()) return false;
  const auto found = std::ranges::find_if(
      line->second.messages,
      [&](const SentPoint& one) { return one.own.get() == &send; });
  if (found == line->second.messages.end()) return false;
  found->failure = failure;
  return true;
}

bool PointMatching::mark_failed(int peer, RequestId send, const Status& failure) {
  for (auto& [key, line] : lines_) {
    for (SentPoint& one : line.messages) {
      if (one.peer != peer || one.own || one.message.send != send) continue;
      one.failure = failure;
      one.incoming.reset();
      return true;
    }
  }
  return false;
}

std::vector<SentPoint> PointMatching::take_messages(std::uint64_t group) {
  std::vector<SentPoint> messages;
  for (auto line = lines_.begin(); line != lines_.end();) {
    if (line->first.first == group) {
      for (SentPoint& one : line->second.messages) messages.push_back(std::move(one));
      line->second.messages.clear();
    }
    line = line->second.empty() ? lines_.erase(line) : std::next(line);
  }
  return messages;
}

std::vector<PointRequestPtr> PointMatching::waiting_receives() const {
  std::vector<PointRequestPtr> receives;
  for (const auto& [key, line] : lines_) {
    receives.insert(receives.end(), line.receives.begin(), line.receives.end());
  }
  return receives;
}

std::vector<std::int64_t> PointMatching::waiting_tags(const PointCall& receive,
                                                      std::size_t limit) const {
  std::vector<std::int64_t> tags;
  for (const auto& [key, line] : lines_) {
    if (tags.size() == limit) break;
    if (key.first != receive.group || key.second == receive.tag) continue;
    if (std::any_of(line.messages.begin(), line.messages.end(),
                    [&](const SentPoint& one) { return accepts(receive, one.peer); })) {
      tags.push_back(key.second);
    }
  }
  std::sort(tags.begin(), tags.end());
  return tags;
}

}  // namespace bluecomm
