// The site of each allocation and free: its Python stack, and a context (thread, operator, autograd
// node, and the stack on which that node was made).

#pragma once

#include "graph_threads.hpp"
#include "log.hpp"
#include "nodes.hpp"
#include "pending_names.hpp"

#include <vector>

namespace {

struct ContextKey {
  int32_t thread, op, outer, node, forward, grad;
};

constexpr size_t kMostContexts = 1 << 20;

Numbered<ContextKey>& g_contexts = *new Numbered<ContextKey>;

std::atomic<bool> g_recording{false};

// Numbers of threads; that of a thread that has ended is used again.
class ThreadNumbers {
 public:
  int32_t take() {
    const Holding holding(lock);
    if (free_.empty()) {
      return next_++;
    }
    const int32_t number = free_.back();
    free_.pop_back();
    return number;
  }

  void give(int32_t number) {
    const Holding holding(lock);
    free_.push_back(number);
  }

  SpinLock lock;

 private:
  std::vector<int32_t> free_;
  int32_t next_ = 0;
};

ThreadNumbers& g_threads = *new ThreadNumbers;

struct ThreadNumber {
  int32_t number = -1;

  ~ThreadNumber() {
    if (number >= 0) {
      g_threads.give(number);
    }
  }
};

thread_local ThreadNumber t_thread_number;

int64_t monotonic_ns();

// Operators and autograd nodes that run on a thread. Plain data without a destructor, because
// memory is still freed while a thread ends.
struct Running {
  static constexpr int kDeep = 32;
  struct Op {
    const char* text;
    int32_t name;          // number of the text; -1 until needed
    int32_t nodes;         // running nodes when it began
    int32_t engine;        // index of the engine's innermost operator; -1: none
    int32_t engine_stack;  // of an engine's operator: the stack on which the engine runs
    int64_t sequence_number;
  };
  struct Node {
    int32_t name;
    int32_t forward;
    int32_t depth;
    int32_t engine_stack;  // the stack on which the engine runs
    uintptr_t frame;
  };
  int32_t thread;  // 1 + its number; 0 until needed
  int ops, nodes;
  Op op[kDeep];
  Node node[kDeep];
  Node last;  // the node that ended last
  ContextKey key;
  int32_t context;  // 1 + its number
  int64_t epoch;
};

constexpr Running::Node kNoNode{-1, kNoStack, -1, kNoStack, 0};

thread_local Running t_running;
std::atomic<int64_t> g_epoch{1};
// at::sequence_number::peek, which libc10 does not have
std::atomic<uint64_t (*)()> g_peek_sequence_number{nullptr};

Running& running() {
  Running& now = t_running;
  const int64_t epoch = g_epoch.load(std::memory_order_relaxed);
  if (now.epoch != epoch) {
    // ends of operators and nodes were missed while nothing recorded
    now.ops = now.nodes = 0;
    now.last = kNoNode;
    now.context = 0;
    now.epoch = epoch;
    if (now.thread == 0) {
      t_thread_number.number = g_threads.take();
      now.thread = 1 + t_thread_number.number;
    }
  }
  return now;
}

// Whether the engine is between two nodes, where it adds up the gradients of the last one.
bool is_after_last(const Running& now, int engine) {
  return engine >= 0 && now.op[engine].nodes == now.nodes && now.last.depth == now.nodes &&
      now.last.engine_stack == now.op[engine].engine_stack;
}

// Whether a node was made since the outermost operator that may make nodes began.
bool made_nodes(const Running& now, int ops) {
  const auto next = g_peek_sequence_number.load(std::memory_order_relaxed);
  for (int index = 0; index < ops && next != nullptr; ++index) {
    if (now.op[index].sequence_number >= 0) {
      return static_cast<int64_t>(next()) > now.op[index].sequence_number;
    }
  }
  return false;
}

int32_t name_of(Running::Op& op) {
  if (op.name < 0) {
    op.name = g_op_names.number(op.text);
  }
  return op.name;
}

// Returns the number of the current context; `function` is the graph function that was called, or
// -1.
int32_t current_context(Running& now, int32_t function) {
  const int ops = std::min(now.ops, Running::kDeep);
  const int nodes = std::min(now.nodes, Running::kDeep);
  ContextKey key{now.thread - 1, -1, -1, -1, kNoStack, 0};
  int engine = -1;
  if (ops > 0) {
    engine = now.op[ops - 1].engine;
    key.op = name_of(now.op[ops - 1]);
    key.outer = name_of(now.op[std::min(engine + 1, ops - 1)]);
    key.grad = made_nodes(now, ops);
  } else if (const auto node_here = g_node_here.load(std::memory_order_relaxed)) {
    key.op = node_here();
    key.outer = function;
  }
  if (is_after_last(now, engine)) {
    key.node = now.last.name;
    key.forward = now.last.forward;
  } else if (nodes > 0) {
    key.node = now.node[nodes - 1].name;
    key.forward = now.node[nodes - 1].forward;
  }
  if (now.context == 0 || std::memcmp(&key, &now.key, sizeof key) != 0) {
    now.key = key;
    const Holding holding(g_contexts.lock);
    now.context = 1 + g_contexts.number(key, kMostContexts);
  }
  return now.context - 1;
}

// The current stack and context.
struct Here {
  Captured at;
  int32_t context = -1;
  int32_t node = -1, function = -1;

  Here() noexcept {
    Running& now = t_running;
    Call call;
    g_calls.here(&call);
    try {
      running();
      context = current_context(now, call.function);
      if (g_node_here.load(std::memory_order_relaxed) != nullptr) {
        node = now.key.op;
        function = call.function;
      }
    } catch (const std::bad_alloc&) {
      // the event has no context
    }
    at = capture();
    if (at.stack == kNoStack) {
      at = call.at;
    }
  }

  Event allocation(const void* data, int64_t size) const {
    return Event::allocation(reinterpret_cast<uintptr_t>(data), size, at.stack, context);
  }
};

// Requires the lock of the log.
void append_now(Event event) {
  event.time = monotonic_ns();
  g_log.append(event);
}

// Counts and records an allocation, under one lock so that both have one order.
bool record_in(const void* data, int64_t size) {
  const Here here;
  const Event event = here.allocation(data, size);
  const Holding holding(g_log.lock);
  int64_t stale = 0;
  if (!count_in(data, size, Origin{here.at.birth, here.node, here.function}, &stale)) {
    return false;
  }
  if (g_log.is_on()) {
    if (stale != 0) {
      append_now(event.as_free(stale));
    }
    append_now(event);
  }
  return true;
}

void record_out(const void* data) {
  const Here here;
  const Holding holding(g_log.lock);
  const int64_t size = count_out(data);
  if (size != 0 && g_log.is_on()) {
    append_now(here.allocation(data, size).as_free(size));
  }
}

void note_failure(int64_t size) {
  if (!g_recording.load(std::memory_order_relaxed)) {
    return;
  }
  const Here here;
  const Holding holding(g_log.lock);
  if (g_log.is_on()) {
    append_now(Event::failure(size, here.at.stack, here.context));
  }
}

// Hooks of operators and nodes, called by the part that is linked against torch.

constexpr char kEngine[] = "autograd::engine::evaluate_function: ";
// the gradient of the loss, which backward() makes first, and the Python function that makes it
constexpr char kFirstGradient[] = "aten::ones_like";
constexpr char32_t kGradientMaker[] = U"_make_grads";

// The stack of nodes made now. In backward of backward, nodes made directly by a running node take
// over its stack.
int32_t stack_of_new_nodes(const Running& now) {
  if (now.nodes > 0 && now.nodes <= Running::kDeep) {
    const Running::Node& node = now.node[now.nodes - 1];
    if (node.forward != kNoStack && node.frame == innermost_frame()) {
      return node.forward;
    }
  }
  return capture().stack;
}

// `name` stays valid until the operator ends.
void op_begins(const char* name, int64_t sequence_number, uint64_t thread) {
  if (!g_recording.load(std::memory_order_relaxed)) {
    return;
  }
  Running& now = running();
  const int index = now.ops++;
  if (index >= Running::kDeep) {
    return;
  }
  Running::Op& op = now.op[index];
  const bool is_engine = std::strncmp(name, kEngine, sizeof kEngine - 1) == 0;
  op.text = name;
  op.name = -1;
  op.nodes = now.nodes;
  op.sequence_number = sequence_number;
  op.engine = is_engine ? index : index > 0 ? now.op[index - 1].engine : -1;
  if (op.engine < 0) {
    now.last = kNoNode;
    if (index == 0 && std::strcmp(name, kFirstGradient) == 0 && is_in_function(kGradientMaker)) {
      backward_begins();
    }
  }
  if (is_engine) {
    op.engine_stack = capture().stack;
  }
  if (sequence_number >= 0) {
    g_nodes.add(thread, sequence_number, stack_of_new_nodes(now));
  }
}

void op_ends() {
  Running& now = t_running;
  if (now.epoch == g_epoch.load(std::memory_order_relaxed) && now.ops > 0) {
    --now.ops;
  }
}

void node_begins(const char* name, int64_t number, uint64_t forward_thread) {
  if (!g_recording.load(std::memory_order_relaxed)) {
    return;
  }
  Running& now = running();
  const int ops = std::min(now.ops, Running::kDeep);
  const int engine = ops > 0 ? now.op[ops - 1].engine : -1;
  const bool after_last = is_after_last(now, engine);
  const int depth = now.nodes++;
  if (depth >= Running::kDeep) {
    return;
  }
  backward_runs();
  Running::Node& node = now.node[depth];
  node.name = g_op_names.number(name);
  node.frame = innermost_frame();
  node.depth = depth;
  node.engine_stack = engine >= 0 ? now.op[engine].engine_stack : kNoStack;
  node.forward = g_nodes.find(forward_thread, number);
  if (number < 0 && after_last) {
    // a leaf's gradient is added up right after the last node that contributes to it
    node.forward = now.last.forward;
  }
}

void node_ends() {
  Running& now = t_running;
  if (now.epoch == g_epoch.load(std::memory_order_relaxed) && now.nodes > 0) {
    --now.nodes;
    if (now.nodes < Running::kDeep) {
      now.last = now.node[now.nodes];
    }
  }
}

// Notes that a block is the gradient of the tensor at `of`.
void gradient_known(const void* data, const void* of) {
  if (!g_recording.load(std::memory_order_relaxed)) {
    return;
  }
  const Event event =
      Event::gradient(reinterpret_cast<uintptr_t>(data), reinterpret_cast<uintptr_t>(of));
  const Holding holding(g_log.lock);
  if (g_log.is_on()) {
    g_log.append(event);
  }
}

// In the order in which a thread takes several of them.
SpinLock* const kEventLocks[] = {
    &g_calls.lock, &g_modules.lock, &g_stacks.lock, &g_contexts.lock,
    &g_op_names.lock, &g_threads.lock, &g_log.lock, &g_nodes.lock};

// A forked child does not continue its parent's recordings.
void stop_in_child() {
  g_recording.store(false, std::memory_order_relaxed);
  g_log.abandon();
  g_nodes.clear();
  g_calls.clear();
}

}  // namespace
