// Reads the addresses of the buffers of TensorFlow's tensors, without running an operation.
//
// An EagerTensor has a handle, the handle a tensor, the tensor a buffer. A variable's tensor is
// read from the resource that its handle refers to. No reference is kept, and only buffers of
// handles are read.

#include "exported.hpp"

#include <cstdint>

#include <sys/types.h>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

// as in Python.h, which is not included: one binary serves every Python
struct _object {
  ssize_t references;
  void* type;
};
using PyObject = _object;

namespace tensorflow {

// the part that is used: its own header includes others that the wheel does not have
class TensorHandle {
 public:
  enum HandleType { LOCAL = 0, PACKED = 1, REMOTE = 2 };
  HandleType Type() const;
  bool IsReady() const;
  absl::Status Tensor(const tensorflow::Tensor** tensor) const;
};

}  // namespace tensorflow

// as in pywrap_tensor.h, which includes NumPy
struct TFE_TensorHandle;
TFE_TensorHandle* EagerTensor_Handle(const PyObject* tensor);
bool EagerTensor_CheckExact(const PyObject* tensor);

namespace {

using tensorflow::Tensor;

// FactKind and _ROW of frameworks/tensorflow/census/tensor_reader.py.
enum Kind : int64_t { TENSOR, VARIABLE, UNREAD };

constexpr int kMaxDimensions = 8;

struct Row {
  int64_t handle;  // row of the handle, for a variable's value; else -1
  int64_t tensor;  // index of the argument
  int64_t kind;
  int64_t dtype;
  int64_t nbytes;
  uint64_t address;       // of the buffer
  int64_t buffer_nbytes;
  uint64_t data;          // address of the tensor's first byte
  int64_t owned;          // whether an allocator made the buffer, not another library
  int64_t rank;           // may exceed kMaxDimensions
  int64_t dimensions[kMaxDimensions];
};

void fill(Row& row, const Tensor& tensor) {
  row.dtype = tensor.dtype();
  row.rank = tensor.dims();
  for (int each = 0; each < tensor.dims() && each < kMaxDimensions; ++each)
    row.dimensions[each] = tensor.dim_size(each);
  row.nbytes = tensor.NumElements() * tensorflow::DataTypeSize(tensorflow::BaseType(tensor.dtype()));
  auto* buffer = const_cast<tensorflow::TensorBuffer*>(tensorflow::DMAHelper::buffer(&tensor));
  if (buffer == nullptr) return;
  // the size of handles, strings and variants is that of their buffer
  if (row.nbytes == 0 && tensor.NumElements() > 0) row.nbytes = static_cast<int64_t>(buffer->size());
  row.data = reinterpret_cast<uint64_t>(buffer->data());
  auto* root = buffer->root_buffer();
  row.address = reinterpret_cast<uint64_t>(root->data());
  row.buffer_nbytes = static_cast<int64_t>(root->size());
  row.owned = root->OwnsMemory();
}

// Fills a row with the value of a handle's variable; returns false if there is none.
bool fill_value(Row& row, const Tensor& tensor) {
  const auto* handle = static_cast<const tensorflow::ResourceHandle*>(
      static_cast<const void*>(tensorflow::DMAHelper::base(&tensor)));
  if (handle == nullptr || tensor.NumElements() != 1 || !handle->IsRefCounting()) return false;
  auto found = handle->GetResource<tensorflow::Var>();
  if (!found.ok()) return false;
  auto* variable = found.value();
  // a writer may swap the tensor: its lock is taken, or the tensor is skipped
  if (!variable->mu()->try_lock_shared()) return false;
  const bool has_value = variable->tensor()->IsInitialized();
  if (has_value) fill(row, *variable->tensor());
  variable->mu()->unlock_shared();
  return has_value;
}

}  // namespace

// Writes a row for each tensor of a list, and one for the value of each variable; `rows` has room
// for two rows a tensor. Returns the number of rows. The row of an item of another type is UNREAD.
TL_EXPORT int64_t tl_tf_read(PyObject** tensors, int64_t length, Row* rows) {
  int64_t count = 0;
  for (int64_t each = 0; each < length; ++each) {
    const Tensor* tensor = nullptr;
    if (EagerTensor_CheckExact(tensors[each])) {
      auto* handle = reinterpret_cast<tensorflow::TensorHandle*>(EagerTensor_Handle(tensors[each]));
      // a tensor that is being computed is not waited for
      if (handle != nullptr && handle->Type() == tensorflow::TensorHandle::LOCAL &&
          handle->IsReady() && !handle->Tensor(&tensor).ok())
        tensor = nullptr;
    }
    const int64_t number = count++;
    rows[number] = Row{-1, each, tensor == nullptr ? UNREAD : TENSOR};
    if (tensor == nullptr) continue;
    fill(rows[number], *tensor);
    if (tensor->dtype() == tensorflow::DT_RESOURCE) {
      rows[count] = Row{number, each, VARIABLE};
      count += fill_value(rows[count], *tensor);
    }
  }
  return count;
}
