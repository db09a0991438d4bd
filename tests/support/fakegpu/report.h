// Settings from the environment, violations, and injected errors. Shared by both
// libraries.
#pragma once

#include <cstdint>
#include <string>

namespace fakegpu {

struct Settings {
  std::uint64_t seed = 0;
  int devices = 8;
  int delay_us = 300;
  int nccl_version = 22907;
  int driver_version = 13000;
  bool remote_errors = true;
  bool has_windows = true;
  std::string log;
  std::string waits;
  std::string ignored_waits;  // keys between commas
};

const Settings& settings();

// Reads the environment, and forgets violations, counted calls and call sites.
void load_settings();

// Appends a line to the log and counts it. Thread-safe.
void violation(const std::string& function, const std::string& text);
int violation_count();
// Returns all texts, one a line.
std::string violation_texts();

// An error that FAKEGPU_FAIL asks for in this call.
struct Injected {
  enum class Kind { kNone, kCode, kHang, kAsync };
  Kind kind = Kind::kNone;
  int code = 0;

  explicit operator bool() const { return kind != Kind::kNone; }
};

// Counts a call of `function` and returns its error; `kill` kills this process.
Injected injected_error(const char* function);

// Returns whether the wait of this call is to be ignored, and writes each distinct call
// site to FAKEGPU_WAITS. The key of a site is a hash of its return addresses relative
// to their libraries, so it is the same in each process and run of one build.
bool is_ignored_wait(const char* function);
// Becomes a part of the call sites of this thread.
void set_site_label(const std::string& label);

}  // namespace fakegpu
