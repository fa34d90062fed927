// What runs on a thread when it allocates or frees: its Python stack, and a context, which is the
// thread, operator, autograd node, and the stack on which that node was made.

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

// A thread's number is given to another one when it has ended.
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

struct AtThreadEnd {
  int32_t number = -1;

  ~AtThreadEnd() {
    if (number >= 0) {
      g_threads.give(number);
    }
  }
};

thread_local AtThreadEnd t_at_end;

int64_t monotonic_ns();

// What runs on a thread. Plain data without a destructor: memory is freed as late as a thread's
// own end.
struct Running {
  static constexpr int kDeep = 32;
  struct Op {
    const char* text;
    int32_t name;          // number of the text, -1 until it is needed
    int32_t nodes;         // how many ran when it began
    int32_t engine;        // place of the innermost that is the engine's, -1 if none is
    int32_t engine_stack;  // of the engine's: the stack on which it runs
    int64_t sequence_number;
  };
  struct Node {
    int32_t name;
    int32_t forward;
    int32_t depth;
    int32_t engine;  // the stack on which the engine runs
    uintptr_t frame;
  };
  int32_t thread;  // 1 + its number, 0 until it is needed
  int ops, nodes;
  Op op[kDeep];
  Node node[kDeep];
  Node last;  // the one that the engine ran last
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
    // what ran when nobody recorded was not followed to its end
    now.ops = now.nodes = 0;
    now.last = kNoNode;
    now.context = 0;
    now.epoch = epoch;
    if (now.thread == 0) {
      t_at_end.number = g_threads.take();
      now.thread = 1 + t_at_end.number;
    }
  }
  return now;
}

// Whether the engine is between two nodes: it settles what it begins, and adds up what the last
// one gave.
bool is_after_last(const Running& now, int engine) {
  return engine >= 0 && now.op[engine].nodes == now.nodes && now.last.depth == now.nodes &&
      now.last.engine == now.op[engine].engine_stack;
}

bool made_nodes(const Running& now, int ops) {
  const auto next = g_peek_sequence_number.load(std::memory_order_relaxed);
  for (int place = 0; place < ops && next != nullptr; ++place) {
    if (now.op[place].sequence_number >= 0) {
      return static_cast<int64_t>(next()) > now.op[place].sequence_number;
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

// `function` is the graph function that was called, -1 for none.
int32_t context_now(Running& now, int32_t function) {
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

// What runs now: a stack, and a context's number.
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
      context = context_now(now, call.function);
      if (g_node_here.load(std::memory_order_relaxed) != nullptr) {
        node = now.key.op;
        function = call.function;
      }
    } catch (const std::bad_alloc&) {
      // the event goes without
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

// The log is locked.
void append_now(Event event) {
  event.time = monotonic_ns();
  g_log.append(event);
}

// Counts a block in and records it, both at one moment.
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

// What torch says of operators and nodes, by way of the part that is linked against it.

constexpr char kEngine[] = "autograd::engine::evaluate_function: ";
// the gradient of the loss itself, which backward() makes before anything else, and where it does
constexpr char kFirstGradient[] = "aten::ones_like";
constexpr char32_t kMakesFirst[] = U"_make_grads";

// The stack that nodes made now go back to: in backward of backward, what a node computes goes back
// to the line that the node does.
int32_t stack_of_nodes(const Running& now) {
  if (now.nodes > 0 && now.nodes <= Running::kDeep) {
    const Running::Node& node = now.node[now.nodes - 1];
    if (node.forward != kNoStack && node.frame == innermost_frame()) {
      return node.forward;
    }
  }
  return capture().stack;
}

// The name stays until the operator ends.
void op_begins(const char* name, int64_t sequence_number, uint64_t thread) {
  if (!g_recording.load(std::memory_order_relaxed)) {
    return;
  }
  Running& now = running();
  const int place = now.ops++;
  if (place >= Running::kDeep) {
    return;
  }
  Running::Op& op = now.op[place];
  const bool is_engine = std::strncmp(name, kEngine, sizeof kEngine - 1) == 0;
  op.text = name;
  op.name = -1;
  op.nodes = now.nodes;
  op.sequence_number = sequence_number;
  op.engine = is_engine ? place : place > 0 ? now.op[place - 1].engine : -1;
  if (op.engine < 0) {
    now.last = kNoNode;
    if (place == 0 && std::strcmp(name, kFirstGradient) == 0 && is_in_function(kMakesFirst)) {
      backward_begins();
    }
  }
  if (is_engine) {
    op.engine_stack = capture().stack;
  }
  if (sequence_number >= 0) {
    g_nodes.made(thread, sequence_number, stack_of_nodes(now));
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
  const int place = now.nodes++;
  if (place >= Running::kDeep) {
    return;
  }
  backward_runs();
  Running::Node& node = now.node[place];
  node.name = g_op_names.number(name);
  node.frame = innermost_frame();
  node.depth = place;
  node.engine = engine >= 0 ? now.op[engine].engine_stack : kNoStack;
  node.forward = g_nodes.find(forward_thread, number);
  if (number < 0 && after_last) {
    // a leaf's gradient is added up as soon as the last node that contributes has run
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

// Says of a block that it is the gradient of what lies at `of`.
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

void record_mark(int64_t number) {
  const Holding holding(g_log.lock);
  if (g_log.is_on()) {
    g_log.append(Event::mark(number));
  }
}

// In the order in which one thread takes several.
SpinLock* const kEventLocks[] = {
    &g_calls.lock, &g_modules.lock, &g_stacks.lock, &g_contexts.lock,
    &g_op_names.lock, &g_threads.lock, &g_log.lock, &g_nodes.lock};

// A child's memory is its own: what its parent records ends here.
void stop_in_child() {
  g_recording.store(false, std::memory_order_relaxed);
  g_log.abandon();
  g_nodes.clear();
  g_calls.forget();
}

}  // namespace
