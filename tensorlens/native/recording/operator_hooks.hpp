// Functions of the part that records, called by the part that sees operators and autograd nodes.
// peek_sequence_number goes the other way.

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
