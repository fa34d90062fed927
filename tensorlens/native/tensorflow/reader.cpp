// Reads where the bytes of TensorFlow's tensors lie, without running an operation.
//
// An EagerTensor gives its handle, the handle its tensor, the tensor its buffer. A variable's
// tensor is read from the resource that its handle refers to. No reference is kept, and no buffer
// is read but those of handles.

#include "exported.hpp"

#include <cstdint>

#include <sys/types.h>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

// of Python.h, so that one binary serves every Python
struct _object {
  ssize_t references;
  void* type;
};
using PyObject = _object;

namespace tensorflow {

// what is used of it: its own header asks for others that the wheel does not have
class TensorHandle {
 public:
  enum HandleType { LOCAL = 0, PACKED = 1, REMOTE = 2 };
  HandleType Type() const;
  bool IsReady() const;
  absl::Status Tensor(const tensorflow::Tensor** tensor) const;
};

}  // namespace tensorflow

// of pywrap_tensor.h, which asks for NumPy
struct TFE_TensorHandle;
TFE_TensorHandle* EagerTensor_Handle(const PyObject* tensor);
bool EagerTensor_CheckExact(const PyObject* tensor);

namespace {

using tensorflow::Tensor;

// Kind and Row are those of frameworks/tensorflow/census/tensor_reader.py.
enum Kind : int64_t { PLAIN, VARIABLE, UNREAD };

constexpr int kMostDimensions = 8;

struct Row {
  int64_t parent;  // of a variable's value the row of its handle, else -1
  int64_t tensor;  // number of the argument
  int64_t kind;
  int64_t dtype;
  int64_t nbytes;
  uint64_t address;         // of the buffer's first byte
  int64_t buffer_nbytes;    // of the whole buffer
  uint64_t data;            // of the tensor's own first byte
  int64_t owned;            // whether an allocator gave the buffer, and not another library
  int64_t rank;             // it may be more than there is room for
  int64_t dimensions[kMostDimensions];
};

void fill(Row& row, const Tensor& tensor) {
  row.dtype = tensor.dtype();
  row.rank = tensor.dims();
  for (int each = 0; each < tensor.dims() && each < kMostDimensions; ++each)
    row.dimensions[each] = tensor.dim_size(each);
  row.nbytes = tensor.NumElements() * tensorflow::DataTypeSize(tensorflow::BaseType(tensor.dtype()));
  auto* buffer = const_cast<tensorflow::TensorBuffer*>(tensorflow::DMAHelper::buffer(&tensor));
  if (buffer == nullptr) return;
  // of handles, strings and variants what lies in the buffer
  if (row.nbytes == 0 && tensor.NumElements() > 0) row.nbytes = static_cast<int64_t>(buffer->size());
  row.data = reinterpret_cast<uint64_t>(buffer->data());
  auto* root = buffer->root_buffer();
  row.address = reinterpret_cast<uint64_t>(root->data());
  row.buffer_nbytes = static_cast<int64_t>(root->size());
  row.owned = root->OwnsMemory();
}

// fills a row with the value of the variable that a handle refers to; tells whether there is one
bool fill_value(Row& row, const Tensor& tensor) {
  const auto* handle = static_cast<const tensorflow::ResourceHandle*>(
      static_cast<const void*>(tensorflow::DMAHelper::base(&tensor)));
  if (handle == nullptr || tensor.NumElements() != 1 || !handle->IsRefCounting()) return false;
  auto found = handle->GetResource<tensorflow::Var>();
  if (!found.ok()) return false;
  auto* variable = found.value();
  // a writer may swap the tensor: it is read under its lock, and not waited for
  if (!variable->mu()->try_lock_shared()) return false;
  const bool has_value = variable->tensor()->IsInitialized();
  if (has_value) fill(row, *variable->tensor());
  variable->mu()->unlock_shared();
  return has_value;
}

}  // namespace

// Writes one row for each of the tensors, a list's items, and one more for a variable's value: there
// is room for twice as many as tensors. Gives how many. What is no EagerTensor gives a row UNREAD.
TL_EXPORT int64_t tl_tf_read(PyObject** tensors, int64_t length, Row* rows) {
  int64_t count = 0;
  for (int64_t each = 0; each < length; ++each) {
    const Tensor* tensor = nullptr;
    if (EagerTensor_CheckExact(tensors[each])) {
      auto* handle = reinterpret_cast<tensorflow::TensorHandle*>(EagerTensor_Handle(tensors[each]));
      // what is being computed is not waited for
      if (handle != nullptr && handle->Type() == tensorflow::TensorHandle::LOCAL &&
          handle->IsReady() && !handle->Tensor(&tensor).ok())
        tensor = nullptr;
    }
    const int64_t number = count++;
    rows[number] = Row{-1, each, tensor == nullptr ? UNREAD : PLAIN};
    if (tensor == nullptr) continue;
    fill(rows[number], *tensor);
    if (tensor->dtype() == tensorflow::DT_RESOURCE) {
      rows[count] = Row{number, each, VARIABLE};
      count += fill_value(rows[count], *tensor);
    }
  }
  return count;
}
