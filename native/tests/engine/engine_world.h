#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "transport/inproc/transport.h"
#include "transport/tcp/options.h"

// The engines of several ranks in one process, over any transport.

namespace bluecomm::test {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kWorld = 1;  // id of the group of all ranks

using MakeTransport = std::function<std::unique_ptr<Transport>(int rank)>;
// May be empty, and may return null for no recorder.
using MakeRecorder = std::function<std::shared_ptr<Recorder>(int rank)>;

// Makes transports over TCP within this machine, with `streams` per link.
MakeTransport over_tcp(int streams, stream::Encryption encryption);

class EngineWorld {
 public:
  // Makes engines over the inproc transport.
  explicit EngineWorld(int size, const InprocOptions& options = {},
                       const MakeRecorder& make_recorder = {});
  EngineWorld(int size, const MakeTransport& make_transport);
  // Makes engines whose operations go on without lost peers if they can. `look` stands
  // for /proc, which knows other processes by the numbers of the ranks here.
  struct SurvivesLosses {
    MemberService::LookAtProcess look = [](int) { return ProcessState::kUnknown; };
  };
  EngineWorld(const SurvivesLosses& how, int size, const InprocOptions& options = {});

  int size() const { return static_cast<int>(engines_.size()); }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  // Cuts all links of a rank. Only for inproc.
  void kill(int rank);

  // Runs `body` for each rank in a thread of its own and waits for all.
  void run(const std::function<void(int rank, Engine& engine)>& body);

 private:
  void start(int size, const MakeTransport& make_transport,
             const MakeRecorder& make_recorder = {},
             const SurvivesLosses* survives_losses = nullptr);

  std::optional<InprocHub> hub_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

// Polls until `done` returns true. Records a failure if it does not within kDeadline.
void await(const std::function<bool()>& done);

// Returns a call on `group` whose memory is `input` and `output`.
Call make_call(Engine& engine, Kind kind, std::string name,
               std::span<const float> input, std::span<float> output,
               std::uint64_t group = kWorld);

// Checks that the text of a failed call contains `part`, and its code.
void check_failure(const Status& status, Code code, const std::string& part);

// Submits a call and waits for it.
Status run_call(Engine& engine, Call call);

// Submits all calls, then waits for them in that order. Returns the first failure.
Status run_calls(Engine& engine, std::vector<Call> calls);

}  // namespace bluecomm::test
