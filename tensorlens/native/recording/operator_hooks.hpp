// What the part that sees operators and autograd's nodes calls of the part that records, and back.

#pragma once

#include <cstdint>

struct OperatorHooks {
  void (*op_begins)(const char* name, int64_t sequence_number, uint64_t thread);
  void (*op_ends)();
  void (*node_begins)(const char* name, int64_t number, uint64_t forward_thread);
  void (*node_ends)();
  void (*gradient)(const void* data, const void* of);
  uint64_t (*peek_sequence_number)();
};
