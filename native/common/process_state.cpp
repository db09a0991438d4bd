#include "common/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "common/fd.h"

namespace bluecomm {
namespace {

struct Stat {
  char state = '?';
  std::uint64_t began = 0;
};

// The fields of /proc/PID/stat that follow the name are numbered from here.
constexpr int kState = 3;
constexpr int kStartTime = 22;

std::optional<Stat> read_stat(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::array<char, 1024> bytes{};
  const ssize_t n = read(file.get(), bytes.data(), bytes.size());
  if (n <= 0) return std::nullopt;
  const std::string_view text(bytes.data(), static_cast<std::size_t>(n));
  // The name of the command, in parentheses, may itself have blanks and parentheses.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(name_end + 2);
  Stat stat;
  stat.state = rest.front();
  for (int field = kState; field < kStartTime; ++field) {
    const std::size_t blank = rest.find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(blank + 1);
  }
  std::from_chars(rest.data(), rest.data() + rest.size(), stat.began);
  return stat;
}

}  // namespace

ProcessWatch::ProcessWatch(int pid) : pid_(pid) {
  if (pid <= 0) return;
  if (const auto stat = read_stat(pid)) began_ = stat->began;
}

ProcessState ProcessWatch::state() const {
  if (began_ == 0) return ProcessState::kUnknown;
  const auto stat = read_stat(pid_);
  if (!stat || stat->began != began_ || stat->state == 'Z' || stat->state == 'X') {
    return ProcessState::kEnded;
  }
  return stat->state == 'T' ? ProcessState::kStopped : ProcessState::kRuns;
}

}  // namespace bluecomm
