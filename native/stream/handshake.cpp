#include "stream/handshake.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/bytes.h"
#include "stream/options.h"

namespace bluecomm::stream {
namespace {

bool is_acceptable(const Hello& hello, const Hello& me) {
  return hello.to == me.to && hello.from >= 0 && hello.from != me.to &&
         hello.epoch == me.epoch && hello.job == me.job &&
         hello.encryption == me.encryption &&
         hello.stream < static_cast<std::uint32_t>(kMaxStreams);
}

}  // namespace

Handshake Handshake::dial(std::span<const std::byte> key, const Hello& hello) {
  Handshake dialer(key, hello, {}, Step::kAwaitReply);
  dialer.put(value_bytes(hello));
  dialer.put(dialer.keyed("hello"));
  return dialer;
}

Handshake Handshake::accept(std::span<const std::byte> key, const Hello& me,
                            const Nonce& nonce) {
  return Handshake(key, me, nonce, Step::kAwaitHello);
}

Handshake::Handshake(std::span<const std::byte> key, const Hello& hello,
                     const Nonce& nonce, Step step)
    : key_(key.begin(), key.end()),
      hello_(hello),
      nonce_(nonce),
      dials_(step == Step::kAwaitReply),
      step_(step) {
  expect(step);
}

void Handshake::expect(Step step) {
  step_ = step;
  received_ = 0;
  switch (step) {
    case Step::kAwaitHello:
      input_.resize(sizeof(Hello) + sizeof(Digest));
      break;
    case Step::kAwaitReply:
      input_.resize(sizeof(Nonce) + sizeof(Digest));
      break;
    case Step::kAwaitProof:
      input_.resize(sizeof(Digest));
      break;
    case Step::kSend:
      input_.clear();
      break;
  }
}

std::span<const std::byte> Handshake::output() const {
  return std::span(output_).subspan(sent_);
}

void Handshake::sent(std::size_t nbytes) {
  sent_ += nbytes;
  if (step_ == Step::kSend && output().empty()) state_ = State::kDone;
}

std::span<std::byte> Handshake::space() {
  if (state_ != State::kRunning) return {};
  return std::span(input_).subspan(received_);
}

void Handshake::received(std::size_t nbytes) {
  received_ += nbytes;
  if (step_ == Step::kAwaitHello) {
    // Other programs mostly send less than a Hello and wait, so check the first bytes
    // immediately.
    const std::size_t known = std::min(received_, kMagic.size());
    if (std::memcmp(input_.data(), kMagic.data(), known) != 0) state_ = State::kFailed;
  }
  if (state_ != State::kRunning || received_ < input_.size()) return;
  switch (step_) {
    case Step::kAwaitHello:
      return check_hello();
    case Step::kAwaitReply:
      return check_reply();
    case Step::kAwaitProof:
      return check_proof();
    case Step::kSend:
      return;
  }
}

void Handshake::check_hello() {
  const Hello me = hello_;
  std::memcpy(&hello_, input_.data(), sizeof(Hello));
  const auto mac = std::span(input_).subspan(sizeof(Hello));
  if (!equal_in_constant_time(mac, keyed("hello")) || !is_acceptable(hello_, me)) {
    state_ = State::kFailed;
    return;
  }
  greeted_ = true;
  put(nonce_);
  put(keyed("reply"));
  expect(Step::kAwaitProof);
}

void Handshake::check_reply() {
  std::memcpy(nonce_.data(), input_.data(), sizeof(Nonce));
  const auto mac = std::span(input_).subspan(sizeof(Nonce));
  if (!equal_in_constant_time(mac, keyed("reply"))) {
    state_ = State::kFailed;
    return;
  }
  greeted_ = true;
  put(keyed("proof"));
  expect(Step::kSend);
}

void Handshake::check_proof() {
  const bool right = equal_in_constant_time(input_, keyed("proof"));
  state_ = right ? State::kDone : State::kFailed;
}

// The label prevents the MAC of one message from being accepted for another.
Digest Handshake::keyed(const char* label) const {
  const std::string_view text(label);
  const auto words = std::as_bytes(std::span(text));
  std::vector<std::byte> data(words.begin(), words.end());
  const auto hello = value_bytes(hello_);
  data.insert(data.end(), hello.begin(), hello.end());
  if (text != "hello") data.insert(data.end(), nonce_.begin(), nonce_.end());
  return hmac_sha256(key_, data);
}

std::unique_ptr<RecordCipher> Handshake::make_cipher() const {
  if (hello_.encryption == Encryption::kOff) return nullptr;
  StreamKeys keys{derive("dialer to acceptor"), derive("acceptor to dialer")};
  if (!dials_) std::swap(keys.send, keys.receive);
  return std::make_unique<RecordCipher>(hello_.encryption, keys);
}

Digest Handshake::derive(const char* label) const {
  std::vector<std::byte> salt(hello_.nonce.begin(), hello_.nonce.end());
  salt.insert(salt.end(), nonce_.begin(), nonce_.end());
  const std::string_view text(label);
  const auto words = std::as_bytes(std::span(text));
  std::vector<std::byte> info(words.begin(), words.end());
  const auto hello = value_bytes(hello_);
  info.insert(info.end(), hello.begin(), hello.end());
  return hkdf_sha256(key_, salt, info);
}

void Handshake::put(std::span<const std::byte> bytes) {
  output_.insert(output_.end(), bytes.begin(), bytes.end());
}

}  // namespace bluecomm::stream
