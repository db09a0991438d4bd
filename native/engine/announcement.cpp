#include "engine/announcement.h"

#include <cstring>
#include <stdexcept>

namespace bluecomm {
namespace {

constexpr std::size_t kNumberBytes = sizeof(std::int64_t);

// Takes `count` numbers from the front of a payload.
std::vector<std::int64_t> take_numbers(std::string_view& payload, std::size_t count) {
  if (count > payload.size() / kNumberBytes) {
    throw std::invalid_argument("an announcement is too short");
  }
  std::vector<std::int64_t> numbers(count);
  if (count > 0) std::memcpy(numbers.data(), payload.data(), count * kNumberBytes);
  payload.remove_prefix(count * kNumberBytes);
  return numbers;
}

}  // namespace

std::vector<std::byte> to_payload(const Call& call) {
  const auto splits = static_cast<std::int64_t>(call.splits.size());
  std::vector<std::int64_t> numbers{splits};
  numbers.insert(numbers.end(), call.shape.begin(), call.shape.end());
  numbers.insert(numbers.end(), call.splits.begin(), call.splits.end());
  const std::size_t nbytes = numbers.size() * kNumberBytes;
  std::vector<std::byte> payload(nbytes + call.name.size());
  std::memcpy(payload.data(), numbers.data(), nbytes);
  if (!call.name.empty()) {
    std::memcpy(payload.data() + nbytes, call.name.data(), call.name.size());
  }
  return payload;
}

Announcement read_announcement(const Envelope& envelope, std::string_view payload) {
  // A negative number of splits becomes one that is too large.
  const auto splits = static_cast<std::size_t>(take_numbers(payload, 1).front());
  Announcement announcement;
  announcement.shape = take_numbers(payload, envelope.ndim);
  announcement.splits = take_numbers(payload, splits);
  announcement.name = payload;
  return announcement;
}

}  // namespace bluecomm
