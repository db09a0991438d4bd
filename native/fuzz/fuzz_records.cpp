// Fuzzes the receiver of an encrypted stream whose bytes an attacker changes, repeats,
// removes, inserts and reorders. The receiver must return the frames that were sent, in
// order and unchanged, up to the first difference, and nothing after it.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "fuzz/recorded_frames.h"

namespace {

using namespace bluecomm;
using namespace bluecomm::stream;
using Bytes = std::vector<std::byte>;

// Appends a record and its tag.
void seal(DirectionCipher& sealer, std::span<const std::byte> record, Bytes& out) {
  const std::size_t before = out.size();
  out.resize(before + record.size() + kTagNbytes);
  const std::array parts{record};
  sealer.seal(parts, out.data() + before);
}

// Applies one change that `input` chooses to the bytes on their way.
void meddle(Bytes& bytes, fuzz::Input& input) {
  const auto at = static_cast<std::ptrdiff_t>(input.number() % bytes.size());
  const auto end = std::min<std::ptrdiff_t>(at + 1 + input.byte(),
                                            static_cast<std::ptrdiff_t>(bytes.size()));
  const auto begin = bytes.begin();
  switch (input.byte() % 5) {
    case 0:
      bytes[static_cast<std::size_t>(at)] ^= std::byte(1 << input.byte() % 8);
      break;
    case 1:
      bytes.erase(begin + at, begin + end);
      break;
    case 2: {
      const Bytes copy(begin + at, begin + end);
      bytes.insert(bytes.begin() + end, copy.begin(), copy.end());
      break;
    }
    case 3: {
      const auto strange = input.take(input.byte());
      bytes.insert(begin + at, strange.begin(), strange.end());
      break;
    }
    case 4:
      std::rotate(begin, begin + at, bytes.end());
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto mode = input.byte() % 2 == 0 ? Encryption::kAuth : Encryption::kFull;
  const std::size_t piece = 1 + input.byte();
  const StreamKeys there{.send = Digest{std::byte{1}}, .receive = Digest{std::byte{2}}};
  const StreamKeys here{.send = there.receive, .receive = there.send};
  RecordCipher sender(mode, there);

  std::string sent;
  Bytes wire;
  for (int count = input.byte() % 8; count > 0; --count) {
    Frame frame{.kind = FrameKind::kMessage};
    const auto payload = input.take(input.byte());
    frame.length = static_cast<std::uint32_t>(payload.size());
    seal(sender.sealer, bytes_of(frame), wire);
    if (!payload.empty()) seal(sender.sealer, payload, wire);
    sent.append(reinterpret_cast<const char*>(&frame), sizeof frame);
    sent.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  }
  const Bytes honest = wire;
  while (!input.empty() && !wire.empty()) meddle(wire, input);

  RecordCipher receiver(mode, here);
  const auto got = fuzz::parse_frames(wire, piece, &receiver.opener);
  MUST(sent.starts_with(got.log));
  if (wire == honest) MUST(got.log == sent);
  RecordCipher again(mode, here);
  MUST(fuzz::parse_frames(wire, SIZE_MAX, &again.opener) == got);
  return 0;
}
