#include "window/window_request.h"

namespace bluecomm {

std::string_view window_call_name(RequestKind kind) {
  switch (kind) {
    case RequestKind::kWinCreate:
      return "win_create";
    case RequestKind::kWinPut:
      return "win_put";
    case RequestKind::kWinAccumulate:
      return "win_accumulate";
    case RequestKind::kWinGet:
      return "win_get";
    case RequestKind::kWinUpdate:
      return "win_update";
    case RequestKind::kWinMutex:
      return "win_mutex";
    case RequestKind::kFirstOperation:
    case RequestKind::kSend:
    case RequestKind::kRecv:
      break;  // not about windows
  }
  return "unknown";
}

}  // namespace bluecomm
