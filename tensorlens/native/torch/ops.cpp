// Reports to the recorder which operator and which node of autograd runs on a thread.
//
// Separate from the counter, as it needs libtorch_cpu and the headers of ATen and autograd, which
// take several times as long to compile.

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <ATen/SparseTensorImpl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "exported.hpp"
#include "operator_hooks.hpp"

#include <cstdint>
#include <cstring>
#include <memory>

namespace {

OperatorHooks g_hooks;
at::CallbackHandle g_op_callback = at::INVALID_CALLBACK_HANDLE;
at::CallbackHandle g_node_callback = at::INVALID_CALLBACK_HANDLE;

using torch::autograd::AccumulateGrad;

// The AccumulateGrad node that runs on this thread, and the address of its last gradient.
thread_local const AccumulateGrad* t_node = nullptr;
thread_local const void* t_gradient = nullptr;

const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return nullptr;
  }
  // no checked accessors: they may throw, or make a deferred copy
  return tensor.unsafeGetTensorImpl()
      ->unsafe_storage()
      .unsafeGetStorageImpl()
      ->_mutable_data_ptr_no_checks()
      .get();
}

void note_gradient(const at::Tensor& gradient, const void* owner) {
  const void* const memory = memory_of(gradient);
  if (memory != nullptr && memory != t_gradient) {
    t_gradient = memory;
    g_hooks.gradient(memory, owner);
  }
}

void begin_accumulation(const at::RecordFunction& function) {
  t_node = nullptr;
  if (std::strstr(function.name(), "AccumulateGrad") == nullptr) {
    return;
  }
  const auto node = torch::autograd::get_current_node();
  t_node = dynamic_cast<const AccumulateGrad*>(node.get());
  t_gradient = nullptr;
}

// A leaf has its gradient before its hooks run, which may remove it again.
void note_gradients() {
  if (t_node == nullptr || !t_node->variable.defined()) {
    return;
  }
  try {
    const at::Tensor& gradient = t_node->variable.unsafeGetTensorImpl()->grad();
    const void* const owner = memory_of(t_node->variable);
    if (gradient.defined() && gradient.layout() == at::kSparse) {
      const auto* sparse = static_cast<const at::SparseTensorImpl*>(gradient.unsafeGetTensorImpl());
      note_gradient(sparse->indices(), owner);
      note_gradient(sparse->values(), owner);
    } else {
      note_gradient(gradient, owner);
    }
  } catch (...) {
    // an irregular tensor: its gradient stays without a name
  }
}

void end_accumulation() {
  note_gradients();
  t_node = nullptr;
}

std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction& function) {
  note_gradients();
  g_hooks.op_begins(function.name(), function.seqNr(), function.threadId());
  return nullptr;
}

void end_op(const at::RecordFunction&, at::ObserverContext*) {
  g_hooks.op_ends();
}

std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& function) {
  begin_accumulation(function);
  g_hooks.node_begins(function.name(), function.seqNr(), function.forwardThreadId());
  return nullptr;
}

void end_node(const at::RecordFunction&, at::ObserverContext*) {
  end_accumulation();
  g_hooks.node_ends();
}

}  // namespace

TL_EXPORT void tl_ops_connect(OperatorHooks* hooks) {
  hooks->peek_sequence_number = &at::sequence_number::peek;
  g_hooks = *hooks;
}

TL_EXPORT void tl_ops_start() {
  if (g_op_callback == at::INVALID_CALLBACK_HANDLE) {
    g_op_callback = at::addGlobalCallback(
        at::RecordFunctionCallback(begin_op, end_op).scopes({at::RecordScope::FUNCTION}));
    g_node_callback = at::addGlobalCallback(
        at::RecordFunctionCallback(begin_node, end_node)
            .scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
}

TL_EXPORT void tl_ops_stop() {
  if (g_op_callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(g_op_callback);
    at::removeCallback(g_node_callback);
    g_op_callback = g_node_callback = at::INVALID_CALLBACK_HANDLE;
  }
}
