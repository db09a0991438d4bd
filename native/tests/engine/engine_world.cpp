#include "tests/engine/engine_world.h"

#include <numeric>
#include <thread>

#include "tests/check.h"
#include "transport/tcp/transport.h"

namespace bluecomm::test {
namespace {

Result allocate(std::size_t nbytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(nbytes);
  Result result;
  result.bytes = *memory;
  result.owner = std::move(memory);
  return result;
}

}  // namespace

MakeTransport over_tcp(int streams, stream::Encryption encryption) {
  return [=](int rank) -> std::unique_ptr<Transport> {
    TcpOptions options;
    options.rank = rank;
    options.job = "test";
    options.key.resize(32, std::byte{7});
    options.addresses = {"127.0.0.1"};
    options.streams = streams;
    options.encryption = encryption;
    return std::make_unique<TcpTransport>(std::move(options));
  };
}

EngineWorld::EngineWorld(int size, const InprocOptions& options,
                         const MakeRecorder& make_recorder)
    : hub_(std::in_place, size, options) {
  start(size, [&](int rank) { return hub_->make_transport(rank); }, make_recorder);
}

EngineWorld::EngineWorld(int size, const MakeTransport& make_transport) {
  start(size, make_transport);
}

EngineWorld::EngineWorld(const SurvivesLosses& how, int size,
                         const InprocOptions& options)
    : hub_(std::in_place, size, options) {
  start(size, [&](int rank) { return hub_->make_transport(rank); }, {}, &how);
}

void EngineWorld::start(int size, const MakeTransport& make_transport,
                        const MakeRecorder& make_recorder,
                        const SurvivesLosses* survives_losses) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Peer> peers;
  for (const int rank : ranks) {
    EngineConfig config;
    config.rank = rank;
    config.size = size;
    config.job = "test";
    config.machine = "here";
    config.allocate = allocate;
    config.survives_losses = survives_losses != nullptr;
    if (survives_losses != nullptr) config.look_at_process = survives_losses->look;
    if (make_recorder) config.recorder = make_recorder(rank);
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(make_transport(rank));
    engines_.push_back(
        std::make_unique<Engine>(std::move(config), std::move(transports)));
    peers.push_back({rank, "host" + std::to_string(rank), "here", 1000 + rank,
                     engine(rank).offers()});
  }
  for (const int rank : ranks) {
    engine(rank).start(peers);
    engine(rank).add_group(kWorld, ranks, std::vector<int>(ranks.size(), 0));
  }
}

void EngineWorld::kill(int rank) { hub_->cut_off(rank); }

void EngineWorld::run(const std::function<void(int rank, Engine& engine)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank, engine(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

void await(const std::function<bool()>& done) {
  const Clock::time_point limit = Clock::now() + kDeadline;
  while (!done() && Clock::now() < limit) std::this_thread::sleep_for(1ms);
  CHECK(done());
}

Call make_call(Engine& engine, Kind kind, std::string name,
               std::span<const float> input, std::span<float> output,
               std::uint64_t group) {
  Call call;
  call.kind = kind;
  call.name = std::move(name);
  call.group = engine.group(group);
  call.dtype = DType::kFloat32;
  call.shape = {static_cast<std::int64_t>(input.size())};
  call.input = std::as_bytes(input);
  call.output = std::as_writable_bytes(output);
  call.deadline = Clock::now() + kDeadline;
  return call;
}

void check_failure(const Status& status, Code code, const std::string& part) {
  CHECK_EQ(static_cast<int>(status.code), static_cast<int>(code));
  if (status.text.find(part) == std::string::npos) CHECK_EQ(status.text, part);
}

Status run_call(Engine& engine, Call call) {
  const Clock::time_point limit = call.deadline + 5s;
  const RequestId id = engine.submit(std::move(call), Engine::Caller::kWaits);
  const std::optional<Status> status = engine.wait(id, limit);
  if (!status) return {Code::kInternal, "wait() gave up after the deadline", -1};
  engine.release(id);
  return *status;
}

Status run_calls(Engine& engine, std::vector<Call> calls) {
  std::vector<RequestId> ids;
  for (Call& call : calls) ids.push_back(engine.submit(std::move(call)));
  Status first;
  for (const RequestId id : ids) {
    const std::optional<Status> status = engine.wait(id, Clock::now() + kDeadline);
    if (!status) return {Code::kInternal, "wait() gave up after the deadline", -1};
    if (first.ok()) first = *status;
    engine.release(id);
  }
  return first;
}

}  // namespace bluecomm::test
