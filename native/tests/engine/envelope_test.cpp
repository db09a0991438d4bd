#include "engine/envelope.h"

#include "tests/check.h"

namespace bluecomm::test {
namespace {

Call make(Kind kind) {
  auto group = std::make_shared<Group>();
  group->id = 5;
  group->ranks = {2, 4, 6};
  group->me = 1;
  Call call;
  call.kind = kind;
  call.name = "weights";
  call.group = std::move(group);
  call.dtype = DType::kFloat32;
  call.shape = {3, 4};
  return call;
}

bool agrees(const Call& a, const Call& b) {
  return agree(make_envelope(a, Algorithm::kFlat, 1, 2, 3),
               make_envelope(b, Algorithm::kFlat, 1, 2, 3));
}

TEST(envelope, survives_the_wire) {
  Envelope sent = make_envelope(make(Kind::kBroadcast), Algorithm::kTree, 7, 8, 9);
  sent.phase = 3;
  sent.slot = 4;
  sent.scale = 0.5;
  const auto got = read_envelope(to_header(sent, 48));
  REQUIRE(got.has_value());
  CHECK(got->key == sent.key);
  CHECK(agree(*got, sent));
  CHECK_EQ(got->name_text(), "weights");
  CHECK_EQ(got->phase, 3U);
  CHECK_EQ(got->slot, 4U);
  CHECK_EQ(got->scale, 0.5);
  CHECK_EQ(got->key.epoch, 8U);
  CHECK_EQ(got->key.sequence, 9U);
}

TEST(envelope, rejects_invalid_headers) {
  const Envelope good = make_envelope(make(Kind::kBarrier), Algorithm::kFlat, 1, 2, 3);
  CHECK(!read_envelope(Header{}).has_value());
  for (void (*spoil)(Envelope&) : {
           +[](Envelope& one) { one.kind = static_cast<Kind>(99); },
           +[](Envelope& one) { one.dtype = static_cast<DType>(99); },
           +[](Envelope& one) { one.op = static_cast<ReduceOp>(99); },
           +[](Envelope& one) { one.algorithm = static_cast<Algorithm>(99); },
           +[](Envelope& one) { one.name_length = 200; },
           +[](Envelope& one) { one.local_only = 2; },
           +[](Envelope& one) { one.code = -1; },
       }) {
    Envelope bad = good;
    spoil(bad);
    CHECK(!read_envelope(to_header(bad, 0)).has_value());
  }
  Envelope abort = good;
  abort.type = MessageType::kAbort;
  CHECK(read_envelope(to_header(abort, Channel::kMaxPost)).has_value());
  CHECK(!read_envelope(to_header(abort, Channel::kMaxPost + 1)).has_value());
}

TEST(envelope, fingerprints_include_what_must_agree) {
  const Call base = make(Kind::kAllreduce);
  CHECK(agrees(base, base));
  Call other = base;
  other.shape = {12};
  CHECK(!agrees(base, other));
  other = base;
  other.dtype = DType::kInt32;
  CHECK(!agrees(base, other));
  other = base;
  other.op = ReduceOp::kMax;
  CHECK(!agrees(base, other));
  other = base;
  other.postscale = 0.5;
  CHECK(!agrees(base, other));
  other = base;
  other.local_only = true;
  CHECK(!agrees(base, other));
  CHECK(!agree(make_envelope(base, Algorithm::kRing, 1, 2, 3),
               make_envelope(base, Algorithm::kFlat, 1, 2, 3)));
}

TEST(envelope, fingerprints_omit_what_may_differ) {
  for (const Kind kind :
       {Kind::kAllgather, Kind::kAlltoall, Kind::kNeighborAllgather}) {
    Call other = make(kind);
    other.shape = {99, 4};
    CHECK(agrees(make(kind), other));
    other.shape = {3, 5};
    CHECK(!agrees(make(kind), other));
  }
  Call weights = make(Kind::kNeighborAllreduce);
  weights.sources = {{0, 0.3}};
  weights.self_weight = 0.7;
  weights.root = 2;
  CHECK(agrees(make(Kind::kNeighborAllreduce), weights));
  Call barrier = make(Kind::kBarrier);
  barrier.shape = {1};
  barrier.dtype = DType::kBool;
  CHECK(agrees(make(Kind::kBarrier), barrier));
}

TEST(envelope, unnamed_calls_and_pairs_have_keys_of_their_own) {
  Call a = make(Kind::kAllreduce);
  a.name = "";
  Call b = make(Kind::kBroadcast);
  b.name = "";
  CHECK(name_hash(a) != name_hash(b));
  CHECK_EQ(name_hash(make(Kind::kAllreduce)), name_hash(make(Kind::kBroadcast)));
  Call with_0 = make(Kind::kPairGossip);
  with_0.sources = {{0, 0.5}};
  Call with_2 = make(Kind::kPairGossip);
  with_2.sources = {{2, 0.5}};
  CHECK(name_hash(with_0) != name_hash(with_2));
}

TEST(envelope, cuts_long_names_between_characters) {
  Call call = make(Kind::kAllreduce);
  call.name = std::string(75, 'n') + "\xC3\xA4\xC3\xA4";
  const Envelope envelope = make_envelope(call, Algorithm::kFlat, 1, 2, 3);
  CHECK_EQ(envelope.name_text(), std::string(75, 'n'));
}

}  // namespace
}  // namespace bluecomm::test
