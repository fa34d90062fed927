// RNN, LSTM and GRU: with cuDNN each is one operator, `_cudnn_rnn`, which ATen calls through the
// dispatch stubs registered below. The operator itself has a meta kernel.

#pragma once

#include <ATen/native/RNN.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/item.h>

#include <tuple>
#include <vector>

namespace {

enum Mode : int64_t { kRnnRelu = 0, kRnnTanh = 1, kLstm = 2, kGru = 3 };  // cudnnRNNMode_t

struct Options {
  Mode mode;
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;
};

// Returns all weights as one tensor if they fill one storage, else an undefined tensor.
at::Tensor flat_weights(at::TensorList weights) {
  int64_t total = 0;
  for (const auto& weight : weights) total += weight.numel();
  for (const auto& weight : weights) {
    if (!weight.storage().is_alias_of(weights[0].storage()) ||
        weight.scalar_type() != weights[0].scalar_type()) {
      return {};
    }
  }
  const auto nbytes = total * static_cast<int64_t>(weights[0].element_size());
  if (static_cast<int64_t>(weights[0].storage().nbytes()) != nbytes) return {};
  const at::NoGradGuard no_grad;
  return weights[0].detach().as_strided({total}, {1}, 0);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> recurrent(
    const at::Tensor& input,
    const at::Tensor& hx,
    const at::Tensor& cx,
    at::TensorList weights,
    at::IntArrayRef batch_sizes,
    const Options& options) {
  const bool projected = cx.defined() && cx.size(2) != hx.size(2);
  const int64_t hidden_size = projected ? cx.size(2) : hx.size(2);
  const int64_t projection = projected ? hx.size(2) : 0;
  const int64_t per_layer = (options.has_biases ? 4 : 2) + (projected ? 1 : 0);
  auto result = at::_cudnn_rnn(
      input, weights, per_layer, flat_weights(weights), hx, cx, options.mode, hidden_size,
      projection, options.layers, options.batch_first, options.dropout, options.train,
      options.bidirectional, batch_sizes, /*dropout_state=*/at::Tensor());
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

// One by one, as a fake tensor's values are not in its memory.
std::vector<int64_t> sizes_of(const at::Tensor& batch_sizes) {
  std::vector<int64_t> sizes;
  for (int64_t step = 0; step < batch_sizes.size(0); ++step) {
    sizes.push_back(batch_sizes.select(0, step).item<int64_t>());
  }
  return sizes;
}

void lstm(
    at::Tensor& output, at::Tensor& hy, at::Tensor& cy, const at::Tensor& input,
    at::TensorList hx, at::TensorList weights, bool has_biases, int64_t layers, double dropout,
    bool train, bool bidirectional, bool batch_first) {
  const Options options{kLstm, has_biases, layers, dropout, train, bidirectional, batch_first};
  std::tie(output, hy, cy) = recurrent(input, hx[0], hx[1], weights, {}, options);
}

void lstm_packed(
    at::Tensor& output, at::Tensor& hy, at::Tensor& cy, const at::Tensor& data,
    const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList weights, bool has_biases,
    int64_t layers, double dropout, bool train, bool bidirectional) {
  const Options options{kLstm, has_biases, layers, dropout, train, bidirectional, false};
  std::tie(output, hy, cy) =
      recurrent(data, hx[0], hx[1], weights, sizes_of(batch_sizes), options);
}

template <Mode mode>
void gru_or_rnn(
    at::Tensor& output, at::Tensor& hy, const at::Tensor& input, const at::Tensor& hx,
    at::TensorList weights, bool has_biases, int64_t layers, double dropout, bool train,
    bool bidirectional, bool batch_first) {
  const Options options{mode, has_biases, layers, dropout, train, bidirectional, batch_first};
  std::tie(output, hy, std::ignore) = recurrent(input, hx, at::Tensor(), weights, {}, options);
}

template <Mode mode>
void gru_or_rnn_packed(
    at::Tensor& output, at::Tensor& hy, const at::Tensor& data, const at::Tensor& batch_sizes,
    const at::Tensor& hx, at::TensorList weights, bool has_biases, int64_t layers, double dropout,
    bool train, bool bidirectional) {
  const Options options{mode, has_biases, layers, dropout, train, bidirectional, false};
  std::tie(output, hy, std::ignore) =
      recurrent(data, hx, at::Tensor(), weights, sizes_of(batch_sizes), options);
}

void register_recurrent() {
  using namespace at::native;
  lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&lstm_packed);
  gru_cudnn_stub.set_cuda_dispatch_ptr(&gru_or_rnn<kGru>);
  gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&gru_or_rnn_packed<kGru>);
  rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&gru_or_rnn<kRnnTanh>);
  rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&gru_or_rnn_packed<kRnnTanh>);
  rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&gru_or_rnn<kRnnRelu>);
  rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&gru_or_rnn_packed<kRnnRelu>);
}

}  // namespace
