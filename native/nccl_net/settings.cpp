#include "nccl_net/settings.h"

#include <array>
#include <charconv>
#include <stdexcept>
#include <string_view>

#include "stream/options.h"

namespace bluecomm::nccl_net {
namespace {

constexpr std::string_view kPrefix = "BLUECOMM_NET_";
// Several heartbeats, which come twice a second, fit into the shortest timeout.
constexpr double kMinTimeout = 2;
constexpr double kMaxTimeout = 86'400;
constexpr int kMaxThreads = 16;

[[noreturn]] void refuse(std::string_view name, std::string_view expected,
                         std::string_view got) {
  throw std::invalid_argument(std::string(name) + ": expected " +
                              std::string(expected) + ", got '" + std::string(got) +
                              "'; correct or unset it");
}

// Leaves `number` at its default if the text is "auto".
void set_number(int& number, int low, int high, std::string_view name,
                std::string_view text) {
  if (text == "auto") return;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end || number < low || number > high) {
    refuse(
        name,
        "auto or a number from " + std::to_string(low) + " to " + std::to_string(high),
        text);
  }
}

void set_streams(Settings& settings, std::string_view name, std::string_view text) {
  set_number(settings.streams, 1, stream::kMaxStreams, name, text);
}

void set_threads(Settings& settings, std::string_view name, std::string_view text) {
  set_number(settings.threads, 0, kMaxThreads, name, text);
}

void set_timeout(Settings& settings, std::string_view name, std::string_view text) {
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc{} || stop != end || !(seconds >= kMinTimeout) ||
      seconds > kMaxTimeout) {
    refuse(name, "seconds from 2 to 86400", text);
  }
  settings.timeout = std::chrono::milliseconds(static_cast<long>(seconds * 1000));
}

void set_key(Settings& settings, std::string_view, std::string_view text) {
  settings.key = text;
}

void set_checksum(Settings& settings, std::string_view name, std::string_view text) {
  if (text != "0" && text != "1") refuse(name, "0 or 1", text);
  settings.checksum = text == "1";
}

struct Variable {
  std::string_view name;
  void (*set)(Settings& settings, std::string_view name, std::string_view text);
};

constexpr std::array<Variable, 5> kVariables{{
    {"BLUECOMM_NET_STREAMS", set_streams},
    {"BLUECOMM_NET_TIMEOUT_S", set_timeout},
    {"BLUECOMM_NET_KEY", set_key},
    {"BLUECOMM_NET_CHECKSUM", set_checksum},
    {"BLUECOMM_NET_THREADS", set_threads},
}};

void set(Settings& settings, std::string_view name, std::string_view text) {
  std::string known;
  for (const Variable& variable : kVariables) {
    if (variable.name == name) return variable.set(settings, name, text);
    known += known.empty() ? "" : ", ";
    known += variable.name;
  }
  throw std::invalid_argument("unknown variable " + std::string(name) +
                              "; the known ones are " + known);
}

}  // namespace

Settings read_settings(const char* const* environment) {
  Settings settings;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    if (!entry.starts_with(kPrefix)) continue;
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    set(settings, entry.substr(0, equals), entry.substr(equals + 1));
  }
  return settings;
}

}  // namespace bluecomm::nccl_net
