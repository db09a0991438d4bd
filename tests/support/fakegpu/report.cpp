#include "report.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

namespace fakegpu {
namespace {

// The return addresses that make a call site; one is not enough, since a program wraps
// the driver's functions.
constexpr std::size_t kSiteDepth = 4;

struct Reports {
  std::mutex mutex;
  Settings settings;
  std::vector<std::string> violations;
  std::map<std::string, int> calls;
  std::map<std::pair<std::string, int>, Injected> faults;  // by function and call
  std::set<std::pair<std::string, int>> kills;
  std::set<std::string> sites;
};

// Never destroyed: threads of streams may outlive main().
Reports& reports() {
  static Reports* const all = new Reports;
  return *all;
}

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

long number_of(const char* name, long otherwise) {
  const std::string text = text_of(name);
  return text.empty() ? otherwise : std::strtol(text.c_str(), nullptr, 0);
}

void append_line(const std::string& file, const std::string& line) {
  if (file.empty()) return;
  const int fd = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const std::string whole = line + "\n";
  if (write(fd, whole.data(), whole.size()) < 0) {
    std::perror(file.c_str());
  }
  close(fd);
}

// Parses `function:n=code` between commas.
void parse_faults(Reports& all, const std::string& text) {
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t colon = item.find(':');
    const std::size_t equal = item.find('=');
    if (colon == std::string::npos || equal == std::string::npos) {
      std::fprintf(stderr, "FAKEGPU_FAIL: expected function:n=code, got '%s'\n",
                   item.c_str());
      std::abort();
    }
    const std::pair call{item.substr(0, colon), std::atoi(item.c_str() + colon + 1)};
    const std::string code = item.substr(equal + 1);
    if (code == "kill") {
      all.kills.insert(call);
    } else if (code == "hang") {
      all.faults[call] = {Injected::Kind::kHang, 0};
    } else if (code.starts_with("async")) {
      all.faults[call] = {Injected::Kind::kAsync, std::atoi(code.c_str() + 5)};
    } else {
      all.faults[call] = {Injected::Kind::kCode, std::atoi(code.c_str())};
    }
  }
}

struct Site {
  std::uint64_t key = 0;
  std::string text;
};

bool is_outside_of_the_program(std::string_view library) {
  for (const char* name :
       {"libcuda.so", "libnccl.so", "libffi", "_ctypes", "python", "libpython",
        "libc.so", "libstdc++", "ld-linux", "libtorch"}) {
    if (library.starts_with(name)) return true;
  }
  return false;
}

// What Python code calls its waits, since all of them come through the interpreter.
thread_local std::string site_label;

Site call_site(const char* function) {
  void* frames[32];
  const int count = backtrace(frames, 32);
  Site site;
  std::size_t used = 0;
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](const std::string& text) {
    for (const char letter : text) {
      hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
    }
  };
  add(function);
  add(site_label);
  site.text = site_label.empty() ? "" : " " + site_label;
  for (int i = 0; i < count && used < kSiteDepth; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    std::string_view library = info.dli_fname;
    library.remove_prefix(library.rfind('/') + 1);
    if (is_outside_of_the_program(library)) continue;
    const auto offset = static_cast<std::uint64_t>(static_cast<char*>(frames[i]) -
                                                   static_cast<char*>(info.dli_fbase));
    std::ostringstream frame;
    frame << library << "+0x" << std::hex << offset;
    add(frame.str());
    site.text += " " + frame.str();
    ++used;
  }
  site.key = hash;
  return site;
}

}  // namespace

const Settings& settings() { return reports().settings; }

void load_settings() {
  Reports& all = reports();
  const std::scoped_lock lock(all.mutex);
  Settings& read = all.settings;
  read.seed = static_cast<std::uint64_t>(number_of("FAKEGPU_SEED", 0));
  read.devices = static_cast<int>(number_of("FAKEGPU_DEVICES", 8));
  read.delay_us = static_cast<int>(number_of("FAKEGPU_DELAY_US", 300));
  read.nccl_version = static_cast<int>(number_of("FAKEGPU_NCCL_VERSION", 22907));
  read.driver_version = static_cast<int>(number_of("FAKEGPU_DRIVER_VERSION", 13000));
  read.remote_errors = number_of("FAKEGPU_REMOTE_ERRORS", 1) != 0;
  read.has_windows = number_of("FAKEGPU_NCCL_WINDOWS", 1) != 0;
  read.log = text_of("FAKEGPU_LOG");
  read.waits = text_of("FAKEGPU_WAITS");
  read.ignored_waits = "," + text_of("FAKEGPU_IGNORE_WAIT") + ",";
  all.violations.clear();
  all.calls.clear();
  all.faults.clear();
  all.kills.clear();
  all.sites.clear();
  parse_faults(all, text_of("FAKEGPU_FAIL"));
}

void violation(const std::string& function, const std::string& text) {
  Reports& all = reports();
  const std::scoped_lock lock(all.mutex);
  const std::string line = function + ": " + text;
  all.violations.push_back(line);
  append_line(all.settings.log, std::to_string(getpid()) + " " + line);
}

int violation_count() {
  Reports& all = reports();
  const std::scoped_lock lock(all.mutex);
  return static_cast<int>(all.violations.size());
}

std::string violation_texts() {
  Reports& all = reports();
  const std::scoped_lock lock(all.mutex);
  std::string texts;
  for (const std::string& line : all.violations) texts += line + "\n";
  return texts;
}

Injected injected_error(const char* function) {
  Reports& all = reports();
  const std::scoped_lock lock(all.mutex);
  const std::pair call{std::string(function), ++all.calls[function]};
  if (all.kills.contains(call)) kill(getpid(), SIGKILL);
  const auto found = all.faults.find(call);
  return found == all.faults.end() ? Injected{} : found->second;
}

bool is_ignored_wait(const char* function) {
  Reports& all = reports();
  {
    // Finding the site takes microseconds, so it is skipped if nobody asked for sites.
    const std::scoped_lock lock(all.mutex);
    if (all.settings.waits.empty() && all.settings.ignored_waits == ",,") return false;
  }
  const Site site = call_site(function);
  char key[24];
  std::snprintf(key, sizeof key, "%016llx", static_cast<unsigned long long>(site.key));
  const std::scoped_lock lock(all.mutex);
  if (all.sites.insert(key).second) {
    append_line(all.settings.waits, std::string(key) + " " + function + site.text);
  }
  return all.settings.ignored_waits.find(std::string(",") + key + ",") !=
         std::string::npos;
}

void set_site_label(const std::string& label) { site_label = label; }

}  // namespace fakegpu
