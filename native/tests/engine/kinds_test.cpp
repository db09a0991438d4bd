#include "engine/kinds.h"

#include <algorithm>
#include <set>
#include <vector>

#include "engine/envelope.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

// A valid call of one of two ranks that are each other's only neighbor. `input` and
// `output` have four elements.
Call call_of(Engine& engine, const KindInfo& kind, int rank,
             std::span<const float> input, std::span<float> output) {
  if (kind.kind == Kind::kReducescatter) output = output.first(output.size() / 2);
  if (kind.kind == Kind::kReduce && rank != 0) output = {};
  if (kind.shape == ShapeRule::kAllButFirst) output = {};
  if (kind.shape == ShapeRule::kNoTensor) input = output = {};
  Call call = make_call(engine, kind.kind, std::string(kind.name), input, output);
  call.sources = call.destinations = {{1 - rank, 1.0}};
  if (kind.kind == Kind::kScatter) call.splits = {0, 0};
  return call;
}

TEST(kinds, have_names_of_their_own) {
  std::set<std::string_view> names;
  for (const KindInfo& kind : all_kinds()) {
    names.insert(kind.name);
    CHECK_EQ(kind_name(kind.kind), kind.name);
    CHECK(kind_from_name(kind.name) == kind.kind);
  }
  CHECK_EQ(names.size(), kKindCount);
  CHECK(!kind_from_name("all_reduce").has_value());
  CHECK_EQ(kind_name(Kind::kCount), "unknown operation");
}

TEST(kinds, are_accepted_by_peers) {
  for (const KindInfo& kind : all_kinds()) {
    Envelope sent;
    sent.kind = kind.kind;
    const auto got = read_envelope(to_header(sent, 0));
    REQUIRE(got.has_value());
    CHECK(got->kind == kind.kind);
  }
  Envelope unknown;
  unknown.kind = Kind::kCount;
  CHECK(!read_envelope(to_header(unknown, 0)).has_value());
}

TEST(kinds, run_and_are_counted) {
  EngineWorld world(2);
  // Two machines, for the operations between machines.
  for (int rank : {0, 1}) world.engine(rank).add_group(2, {0, 1}, {0, 1});
  world.run([&](int rank, Engine& engine) {
    const std::vector<float> input(4, 1.0F);
    std::vector<float> output(4);
    for (const KindInfo& kind : all_kinds()) {
      Call call = call_of(engine, kind, rank, input, output);
      call.group = engine.group(2);
      CHECK_EQ(run_call(engine, std::move(call)).text, "");
    }
    const Stats stats = engine.stats();
    for (const KindInfo& kind : all_kinds()) {
      const auto counted = std::find_if(
          stats.kinds.begin(), stats.kinds.end(),
          [&](const auto& entry) { return entry.first == request_kind(kind.kind); });
      CHECK(counted != stats.kinds.end());
      if (counted == stats.kinds.end()) continue;
      CHECK_EQ(counted->second.calls, 1U);
      CHECK_EQ(counted->second.failures, 0U);
    }
  });
}

}  // namespace
}  // namespace bluecomm::test
