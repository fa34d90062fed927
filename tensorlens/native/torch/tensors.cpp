// Reads live tensors into columns, without running their code and without creating Python objects
// of storages, shapes and gradients, which would take microseconds each and remain.
//
// Uses only c10's headers and links only libc10, to compile in a few seconds with the user's
// compiler. The caller holds the GIL and keeps the tensors alive. What a tensor's class may
// override is read from the field, as an accessor may run Python code or throw.

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include "exported.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <unordered_map>
#include <vector>

// Functions of CPython's stable ABI, from the running interpreter: on many machines Python.h is a
// package of its own.
using PyObject = struct _object;
using PyTypeObject = struct _typeobject;
extern "C" PyObject* PyList_GetItem(PyObject*, ssize_t);
extern "C" PyObject* PyObject_Type(PyObject*);
extern "C" int PyType_IsSubtype(PyTypeObject*, PyTypeObject*);
extern "C" void Py_DecRef(PyObject*);

namespace {

constexpr uint8_t kRequiresGrad = 1;
constexpr uint8_t kIrregular = 2;

// A hash in which every bit depends on every bit of the key.
uint64_t mixed_hash(uint64_t key) {
  key = (key ^ (key >> 32)) * 0x9E3779B97F4A7C15ull;
  key = (key ^ (key >> 29)) * 0x9E3779B97F4A7C15ull;
  return key ^ (key >> 32);
}

// A hash that keeps neighbours in memory close, as they mostly come in that order.
uint64_t local_hash(uint64_t address) {
  return mixed_hash(address >> 12) ^ (address >> 6);
}

// A map from addresses, but 0, to numbers: open addressing with linear probing.
class Index {
 public:
  // Returns the number of `key`, after setting it to `fresh` if there was none.
  int32_t number(uint64_t key, int32_t fresh) {
    if (2 * (used_ + 1) > slots_.size()) {
      resize(slots_.empty() ? 256 : 2 * slots_.size());
    }
    Slot& slot = slots_[place(key)];
    if (slot.key == 0) {
      slot = Slot{key, fresh};
      ++used_;
    }
    return slot.number;
  }

  // Returns -1 if `key` has no number.
  int32_t find(uint64_t key) const {
    if (key == 0 || slots_.empty()) {
      return -1;
    }
    const Slot& slot = slots_[place(key)];
    return slot.key == 0 ? -1 : slot.number;
  }

  void expect(size_t more) {
    size_t wanted = 256;
    while (wanted < 2 * (used_ + more)) {
      wanted *= 2;
    }
    if (wanted > slots_.size()) {
      resize(wanted);
    }
  }

  void clear() {
    slots_.clear();
    used_ = 0;
  }

  void prefetch(uint64_t key) const {
    if (!slots_.empty()) {
      __builtin_prefetch(&slots_[local_hash(key) & (slots_.size() - 1)]);
    }
  }

 private:
  struct Slot {
    uint64_t key = 0;
    int32_t number = -1;
  };

  size_t place(uint64_t key) const {
    size_t index = local_hash(key) & (slots_.size() - 1);
    while (slots_[index].key != 0 && slots_[index].key != key) {
      index = (index + 1) & (slots_.size() - 1);
    }
    return index;
  }

  void resize(size_t size) {
    std::vector<Slot> before(size);
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.key != 0) {
        slots_[place(slot.key)] = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

// Distinct sizes and strides.
class Shapes {
 public:
  // Returns the number of a shape; `hint` is the likely one, or -1.
  int32_t number(const int64_t* values, size_t length, int32_t hint) {
    if (hint >= 0 && starts_[hint + 1] - starts_[hint] == static_cast<int64_t>(length) &&
        std::equal(values, values + length, values_.begin() + starts_[hint])) {
      return hint;
    }
    key_.assign(reinterpret_cast<const char*>(values), length * sizeof(int64_t));
    const auto fresh = static_cast<int32_t>(numbers_.size());
    const auto [place, is_fresh] = numbers_.try_emplace(key_, fresh);
    if (is_fresh) {
      values_.insert(values_.end(), values, values + length);
      starts_.push_back(static_cast<int64_t>(values_.size()));
    }
    return place->second;
  }

  std::vector<int64_t> values_;
  std::vector<int64_t> starts_{0};

 private:
  std::unordered_map<std::string, int32_t> numbers_;
  std::string key_;
};

// Never constructed: gives access to protected members of tensors.
struct Fields : c10::TensorImpl {
  using Policy = c10::TensorImpl::SizesStridesPolicy;

  static bool customizes(const c10::TensorImpl& tensor, Policy policy) {
    return (tensor.*(&Fields::matches_policy))(policy);
  }
  static const c10::impl::SizesAndStrides& layout(const c10::TensorImpl& tensor) {
    return tensor.*(&Fields::sizes_and_strides_);
  }
  static int64_t offset(const c10::TensorImpl& tensor) {
    return tensor.*(&Fields::storage_offset_);
  }
  static int64_t elements(const c10::TensorImpl& tensor) {
    return tensor.*(&Fields::numel_);
  }
  static const caffe2::TypeMeta& dtype(const c10::TensorImpl& tensor) {
    return tensor.*(&Fields::data_type_);
  }
  static c10::Device device(const c10::TensorImpl& tensor) {
    const auto& device = tensor.*(&Fields::device_opt_);
    return device.has_value() ? *device : c10::Device(c10::kCPU);
  }
};

bool is_defined(const c10::TensorImpl* tensor) {
  return tensor != nullptr && tensor != c10::UndefinedTensorImpl::singleton();
}

const c10::TensorImpl* gradient_of(const c10::TensorImpl& tensor) {
  // at::Tensor, which is not in c10, is one intrusive pointer
  const c10::TensorImpl* gradient =
      *reinterpret_cast<c10::TensorImpl* const*>(&tensor.grad());
  return is_defined(gradient) ? gradient : nullptr;
}

// Older versions of torch have another function: the overload that compiles is used.
template <typename Slot>
auto python_object(const Slot* slot, int) -> decltype(slot->load_pyobj()) {
  return slot->load_pyobj();
}
template <typename Slot>
auto python_object(const Slot* slot, long) -> decltype(slot->_unchecked_untagged_pyobj()) {
  return slot->_unchecked_untagged_pyobj();
}

std::string dtype_name(c10::ScalarType type) {
  try {
    return std::string(c10::getDtypeNames(type).first);
  } catch (...) {
    return "undefined";
  }
}

bool wraps(c10::DispatchKeySet keys) {
  return keys.has_any(c10::DispatchKeySet(
      {c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
       c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::FuncTorchGradWrapper}));
}

enum Kind : int32_t { kForeign, kTensor, kFake };

struct Row {
  int32_t number;
  bool fresh;
};

class Scan {
 public:
  Scan(size_t offset, PyTypeObject* tensor_type) : offset_(offset), tensor_type_(tensor_type) {
    std::fill(std::begin(dtype_numbers_), std::end(dtype_numbers_), int16_t{-1});
  }

  // Returns the number of fake tensors, which are left out.
  int64_t add(PyObject* tensors, int64_t length, PyTypeObject* fake_type, int32_t* rows) {
    fake_type_ = fake_type;
    // by the next call another type may have the address
    kinds_.clear();
    last_type_ = 0;
    rows_by_impl_.expect(static_cast<size_t>(length));
    rows_by_storage_.expect(static_cast<size_t>(length));
    int64_t fakes = 0;
    for (int64_t begin = 0; begin < length; begin += kBatch) {
      fakes += add_batch(tensors, begin, std::min(length, begin + kBatch), rows);
    }
    return fakes;
  }

  void rows_of(const uint64_t* objects, int64_t length, int32_t* rows) {
    Index index;
    index.expect(object_.size());
    for (size_t row = 0; row < object_.size(); ++row) {
      index.prefetch(object_[std::min(row + kPrefetched, object_.size() - 1)]);
      if (object_[row] != 0) {
        index.number(object_[row], static_cast<int32_t>(row));
      }
    }
    for (int64_t at = 0; at < length; ++at) {
      index.prefetch(objects[std::min<int64_t>(at + kPrefetched, length - 1)]);
      rows[at] = index.find(objects[at]);
    }
  }

  std::vector<int64_t> nbytes_;
  std::vector<uint64_t> storage_;
  std::vector<int64_t> storage_nbytes_;
  std::vector<int64_t> offsets_;
  std::vector<int16_t> device_;
  std::vector<int16_t> dtype_;
  std::vector<int32_t> shape_;
  std::vector<int32_t> stride_;
  std::vector<uint64_t> object_;
  std::vector<uint8_t> flags_;
  std::vector<int32_t> first_;
  // rows that have a gradient, in order, and the row of the gradient
  std::vector<int32_t> owners_;
  std::vector<int32_t> gradients_;
  Shapes shapes_;
  std::vector<std::string> device_names_;
  std::vector<std::string> dtype_names_;

 private:
  // Nearly all time is spent waiting for memory: each tensor's object, what that points to, and
  // so on. So each step is done for a batch of tensors before the next step.
  static constexpr int64_t kBatch = 64;
  static constexpr size_t kPrefetched = 16;

  int64_t add_batch(PyObject* tensors, int64_t begin, int64_t end, int32_t* rows) {
    PyObject* objects[kBatch];
    const c10::TensorImpl* found[kBatch];
    const int64_t length = end - begin;
    int64_t fakes = 0;
    for (int64_t index = 0; index < length; ++index) {
      objects[index] = PyList_GetItem(tensors, begin + index);
      __builtin_prefetch(objects[index]);
    }
    for (int64_t index = 0; index < length; ++index) {
      const Kind kind = kind_of(objects[index]);
      fakes += kind == kFake;
      found[index] = kind == kTensor ? tensor_of(objects[index]) : nullptr;
      fetch_tensor(found[index]);
    }
    for (int64_t index = 0; index < length; ++index) {
      fetch_storage(found[index]);
    }
    for (int64_t index = 0; index < length; ++index) {
      fetch_slot(found[index]);
    }
    for (int64_t index = 0; index < length; ++index) {
      const c10::TensorImpl* tensor = found[index];
      rows[begin + index] = is_defined(tensor) ? add_tensor(*tensor, objects[index]) : -1;
    }
    return fakes;
  }

  const c10::TensorImpl* tensor_of(const PyObject* object) const {
    return *reinterpret_cast<c10::TensorImpl* const*>(
        reinterpret_cast<const char*>(object) + offset_);
  }

  void fetch_tensor(const c10::TensorImpl* tensor) const {
    if (tensor != nullptr) {
      const auto* start = reinterpret_cast<const char*>(tensor);
      for (size_t line = 0; line < sizeof(c10::TensorImpl); line += 64) {
        __builtin_prefetch(start + line);
      }
      rows_by_impl_.prefetch(reinterpret_cast<uint64_t>(tensor));
    }
  }

  static c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
    return tensor.unsafe_storage().unsafeGetStorageImpl();
  }

  static void fetch_storage(const c10::TensorImpl* tensor) {
    if (tensor != nullptr) {
      const auto* start = reinterpret_cast<const char*>(storage_of(*tensor));
      __builtin_prefetch(start);
      __builtin_prefetch(start + 64);
    }
  }

  void fetch_slot(const c10::TensorImpl* tensor) const {
    c10::StorageImpl* const storage = tensor == nullptr ? nullptr : storage_of(*tensor);
    if (storage != nullptr) {
      rows_by_storage_.prefetch(address_of(storage));
    }
  }

  // No checked accessors: they may throw, or make a deferred copy.
  static uint64_t address_of(c10::StorageImpl* storage) {
    return reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get());
  }

  static PyTypeObject* type_of(PyObject* object) {
    PyObject* type = PyObject_Type(object);
    // the object keeps its type alive
    Py_DecRef(type);
    return reinterpret_cast<PyTypeObject*>(type);
  }

  Kind kind_of(PyObject* object) {
    PyTypeObject* const type = type_of(object);
    const auto address = reinterpret_cast<uint64_t>(type);
    if (address != last_type_) {
      last_type_ = address;
      last_kind_ = kinds_.find(address);
      if (last_kind_ < 0) {
        last_kind_ = kinds_.number(address, kind_of_type(type));
      }
    }
    return static_cast<Kind>(last_kind_);
  }

  Kind kind_of_type(PyTypeObject* type) const {
    if (!PyType_IsSubtype(type, tensor_type_)) {
      return kForeign;
    }
    return fake_type_ != nullptr && PyType_IsSubtype(type, fake_type_) ? kFake : kTensor;
  }

  // Adds a tensor, its gradient, the gradient's gradient and so on.
  int32_t add_tensor(const c10::TensorImpl& first, PyObject* object) {
    Row row = add_row(first, object);
    const int32_t result = row.number;
    const c10::TensorImpl* tensor = &first;
    while (row.fresh) {
      tensor = gradient_of(*tensor);
      if (tensor == nullptr) {
        break;
      }
      object = python_object(tensor->pyobj_slot(), 0);
      if (object != nullptr && kind_of(object) != kTensor) {
        break;
      }
      const Row gradient = add_row(*tensor, object);
      owners_.push_back(row.number);
      gradients_.push_back(gradient.number);
      row = gradient;
    }
    return result;
  }

  Row add_row(const c10::TensorImpl& tensor, PyObject* object) {
    const auto fresh = static_cast<int32_t>(nbytes_.size());
    const auto impl = reinterpret_cast<uint64_t>(&tensor);
    const auto address = reinterpret_cast<uint64_t>(object);
    const int32_t row = rows_by_impl_.number(impl, fresh);
    if (row != fresh) {
      if (object_[row] == 0) {
        object_[row] = address;
      }
      return Row{row, false};
    }
    object_.push_back(address);
    device_.push_back(device_number(Fields::device(tensor)));
    dtype_.push_back(dtype_number(Fields::dtype(tensor)));
    add_extent(tensor);
    return Row{row, true};
  }

  void add_extent(const c10::TensorImpl& tensor) {
    const c10::DispatchKeySet keys = tensor.key_set();
    const bool is_meta = Fields::device(tensor).is_meta();
    c10::StorageImpl* const storage = storage_of(tensor);
    const uint64_t data = storage == nullptr || is_meta ? 0 : address_of(storage);
    const bool is_hollow = keys.has(c10::DispatchKey::Python) && data == 0;
    const bool is_irregular = storage == nullptr || is_hollow || wraps(keys) ||
        Fields::customizes(tensor, Fields::Policy::CustomStrides);
    const bool is_hidden =
        is_hollow || Fields::customizes(tensor, Fields::Policy::CustomSizes);
    add_shape(tensor, is_hidden, is_irregular);
    const auto row = static_cast<int32_t>(storage_.size());
    storage_.push_back(data);
    storage_nbytes_.push_back(data == 0 ? 0 : bytes_of(*storage));
    first_.push_back(data == 0 ? row : rows_by_storage_.number(data, row));
    const uint8_t requires_grad = tensor.requires_grad() ? kRequiresGrad : 0;
    flags_.push_back(requires_grad | (is_irregular ? kIrregular : 0));
  }

  void add_shape(const c10::TensorImpl& tensor, bool is_hidden, bool is_irregular) {
    const auto& layout = Fields::layout(tensor);
    const size_t length = is_hidden ? 0 : layout.size();
    const auto size = static_cast<int64_t>(Fields::dtype(tensor).itemsize());
    const int32_t shape = shape_.empty() ? -1 : shape_.back();
    const int32_t stride = stride_.empty() ? -1 : stride_.back();
    shape_.push_back(shapes_.number(layout.sizes_data(), length, shape));
    stride_.push_back(is_irregular ? -1 : shapes_.number(layout.strides_data(), length, stride));
    offsets_.push_back(is_irregular ? 0 : Fields::offset(tensor));
    nbytes_.push_back(is_hidden ? 0 : Fields::elements(tensor) * size);
  }

  static int64_t bytes_of(const c10::StorageImpl& storage) {
    const c10::SymInt size = storage.sym_nbytes();
    return size.is_heap_allocated() ? 0 : size.as_int_unchecked();
  }

  int16_t device_number(c10::Device device) {
    for (size_t number = 0; number < devices_.size(); ++number) {
      if (devices_[number] == device) {
        return static_cast<int16_t>(number);
      }
    }
    devices_.push_back(device);
    device_names_.push_back(device.str());
    return static_cast<int16_t>(devices_.size() - 1);
  }

  int16_t dtype_number(caffe2::TypeMeta dtype) {
    const c10::ScalarType type =
        dtype.isScalarType() ? dtype.toScalarType() : c10::ScalarType::Undefined;
    int16_t& number = dtype_numbers_[static_cast<uint8_t>(type)];
    if (number < 0) {
      number = static_cast<int16_t>(dtype_names_.size());
      dtype_names_.push_back(dtype_name(type));
    }
    return number;
  }

  const size_t offset_;
  PyTypeObject* const tensor_type_;
  PyTypeObject* fake_type_ = nullptr;
  Index kinds_;
  uint64_t last_type_ = 0;
  int32_t last_kind_ = kForeign;

  Index rows_by_impl_;
  Index rows_by_storage_;
  std::vector<c10::Device> devices_;
  int16_t dtype_numbers_[256];
};

}  // namespace

// `offset`: of the TensorImpl pointer in a Python tensor. Returns null if no memory is left.
TL_EXPORT Scan* tl_scan_open(int64_t offset, PyTypeObject* tensor_type) {
  try {
    return new Scan(static_cast<size_t>(offset), tensor_type);
  } catch (...) {
    return nullptr;
  }
}

TL_EXPORT void tl_scan_close(Scan* scan) {
  delete scan;
}

// Writes the row of each of the first `length` items. Returns the number of fake tensors, or -1 if
// no memory is left: then the scan is unusable.
TL_EXPORT int64_t tl_scan_add(
    Scan* scan, PyObject* tensors, int64_t length, PyTypeObject* fake_type, int32_t* rows) {
  try {
    return scan->add(tensors, length, fake_type, rows);
  } catch (...) {
    return -1;
  }
}

// Returns 0, or -1 if no memory is left.
TL_EXPORT int64_t tl_scan_rows_of(
    Scan* scan, const uint64_t* objects, int64_t length, int32_t* rows) {
  try {
    scan->rows_of(objects, length, rows);
    return 0;
  } catch (...) {
    return -1;
  }
}

// Writes the numbers of rows, shapes, devices, dtypes and gradients, and the addresses of the 11
// columns, of the shapes' begins and values, of gradients' owners and of gradients. They are valid
// until the next call of tl_scan_add.
TL_EXPORT void tl_scan_look(const Scan* scan, int64_t* counts, const void** starts) {
  const size_t sizes[] = {
      scan->nbytes_.size(), scan->shapes_.starts_.size() - 1, scan->device_names_.size(),
      scan->dtype_names_.size(), scan->gradients_.size()};
  std::copy(std::begin(sizes), std::end(sizes), counts);
  const void* all[] = {
      scan->nbytes_.data(), scan->storage_.data(), scan->storage_nbytes_.data(),
      scan->offsets_.data(), scan->device_.data(), scan->dtype_.data(), scan->shape_.data(),
      scan->stride_.data(), scan->object_.data(), scan->flags_.data(), scan->first_.data(),
      scan->shapes_.starts_.data(), scan->shapes_.values_.data(), scan->owners_.data(),
      scan->gradients_.data()};
  std::copy(std::begin(all), std::end(all), starts);
}

TL_EXPORT const char* tl_scan_device(const Scan* scan, int64_t number) {
  return scan->device_names_[static_cast<size_t>(number)].c_str();
}

TL_EXPORT const char* tl_scan_dtype(const Scan* scan, int64_t number) {
  return scan->dtype_names_[static_cast<size_t>(number)].c_str();
}
