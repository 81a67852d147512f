// A device "cuda:0" in the memory of the host, for a build of PyTorch without CUDA. Every operation runs its
// kernel for CPUs on the same bytes. What a GPU would refuse is refused: operands on two devices, and within
// a capture whatever needs a number on the CPU.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <map>
#include <set>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using c10::Stream;

const Device GPU(c10::kCUDA, 0);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<at::CPUGeneratorImpl>(); }
};

// A tensor over the bytes of another one's storage, on the other device.
at::Tensor over(const c10::Storage& bytes, const at::Tensor& like, Device device) {
  auto* held = new c10::Storage(bytes);
  c10::DataPtr pointer(
      bytes.mutable_data(), held, [](void* kept) { delete static_cast<c10::Storage*>(kept); }, device);
  auto* allocator = c10::GetAllocator(c10::kCPU);
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), bytes.nbytes(), std::move(pointer), allocator, /*resizable=*/true);
  auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// Of the storage of one tensor, with the shape and the place of another one.
at::Tensor view_of(const at::Tensor& held, const at::Tensor& shape) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(held.storage()), held.key_set(), shape.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return view;
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  TORCH_CHECK(tensor.layout() == c10::kStrided, "the rehearsal's GPU holds dense tensors only");
  return over(tensor.storage(), tensor, Device(c10::kCPU));
}

struct Recorded {
  std::string launch;  // a kernel's number, or empty
  std::optional<c10::OperatorHandle> op;
  std::vector<IValue> arguments, results;
};

std::map<int64_t, std::vector<Recorded>> captured;
int64_t capturing = 0, captures = 0;
bool zeros = false;  // whether new memory is zeros, where kernels do not write what they should

// The value as it is now: later the shape of a tensor may be changed in place.
IValue as_now(const IValue& value) {
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda())
    return view_of(value.toTensor(), value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& one : value.toTensorList()) list.push_back(as_now(at::Tensor(one)).toTensor());
    return list;
  }
  return value;
}

struct Argument {
  at::Tensor given, host;
};

IValue converted(const IValue& value, std::vector<Argument>& seen) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    auto host = on_host(tensor);
    if (tensor.defined()) seen.push_back({tensor, host});
    return host;
  }
  if (value.isDevice()) return value.toDevice().is_cuda() ? IValue(Device(c10::kCPU)) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> hosts;
    for (const auto& one : value.toTensorList()) hosts.push_back(converted(at::Tensor(one), seen).toTensor());
    return hosts;
  }
  if (value.isList()) {
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i)
      if (list.get(i).isTensor()) list.set(i, converted(list.get(i), seen));
    return list;
  }
  return value;
}

// The result on the GPU: of the same storage as an argument, if it is a view of one.
at::Tensor on_gpu(const at::Tensor& result, const std::vector<Argument>& seen) {
  if (!result.defined() || result.is_cuda() || !result.has_storage()) return result;
  for (const auto& [given, host] : seen) {
    if (host.is_same(result)) return given;
    if (given.is_cuda() && host.storage().unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl())
      return view_of(given, result);
  }
  return over(result.storage(), result, GPU);
}

IValue returned(const IValue& value, const std::vector<Argument>& seen) {
  if (value.isTensor()) return on_gpu(value.toTensor(), seen);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& one : value.toTensorList()) list.push_back(on_gpu(one, seen));
    return list;
  }
  return value;
}

// Within a capture new results are zeros, so that what is computed from them stays within its bounds.
void blank(const IValue& value, const std::vector<Argument>& seen) {
  if (value.isTensorList()) {
    for (const auto& one : value.toTensorList()) blank(at::Tensor(one), seen);
    return;
  }
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_cuda()) return;
  for (const auto& [given, host] : seen)
    if (given.storage().unsafeGetStorageImpl() == value.toTensor().storage().unsafeGetStorageImpl()) return;
  on_host(value.toTensor()).zero_();
}

// A result that was resized: the argument takes its bytes and its shape.
void adopt(const Argument& argument) {
  const auto& [given, host] = argument;
  if (!given.is_cuda()) return;
  if (given.storage().mutable_data() != host.storage().mutable_data()) {
    auto* held = new c10::Storage(host.storage());
    given.storage().set_data_ptr_noswap(c10::DataPtr(
        held->mutable_data(), held, [](void* kept) { delete static_cast<c10::Storage*>(kept); }, GPU));
    given.storage().unsafeGetStorageImpl()->set_nbytes(host.storage().nbytes());
  }
  if (given.sizes() != host.sizes() || given.strides() != host.strides())
    given.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
}

const std::set<std::string> WAIT = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal",
                                    "aten::masked_select", "aten::_unique2", "aten::unique_dim"};
const std::set<std::string> MIXED = {"aten::copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_",
                                     "aten::index_put", "aten::set_", "aten::_to_copy"};

void refuse(const c10::OperatorHandle& op, const std::vector<Argument>& seen) {
  const auto& name = op.schema().name();
  bool there = false, here = false;
  for (const auto& [given, host] : seen) {
    there |= given.is_cuda();
    here |= !given.is_cuda() && given.dim() > 0;
  }
  TORCH_CHECK(!(there && here) || MIXED.count(name), name,
              ": Expected all tensors to be on the same device, but found cuda:0 and cpu");
  if (!capturing) return;
  TORCH_CHECK(!WAIT.count(name), name, ": operation not permitted when stream is capturing");
  TORCH_CHECK(!(there && here && name == "aten::copy_"), name,
              ": copies between GPU and CPU are not permitted when stream is capturing");
}

void on_bytes(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  std::vector<IValue> arguments(stack->end() - count, stack->end());
  stack->erase(stack->end() - count, stack->end());
  std::vector<Argument> seen;
  std::vector<std::vector<Argument>> each(count);
  for (size_t i = 0; i < count; ++i) {
    stack->push_back(converted(arguments[i], each[i]));
    seen.insert(seen.end(), each[i].begin(), each[i].end());
  }
  refuse(op, seen);
  const bool empty = schema.name().find("empty") != std::string::npos;
  std::vector<Argument> written;
  for (size_t i = 0; i < count; ++i)
    if (const auto* alias = schema.arguments()[i].alias_info(); alias && alias->isWrite())
      written.insert(written.end(), each[i].begin(), each[i].end());
  std::vector<at::Tensor> before;  // within a capture nothing is computed
  if (capturing)
    for (const auto& argument : written) before.push_back(argument.host.clone());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  std::vector<IValue> then;
  if (capturing)
    for (const auto& argument : arguments) then.push_back(as_now(argument));
  for (const auto& argument : written) adopt(argument);
  const size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) (*stack)[i] = returned((*stack)[i], seen);
  if (zeros && empty)
    for (size_t i = stack->size() - results; i < stack->size(); ++i) blank((*stack)[i], seen);
  if (capturing) {
    for (size_t i = 0; i < written.size(); ++i)
      if (written[i].host.sizes() == before[i].sizes()) written[i].host.copy_(before[i]);
    for (size_t i = stack->size() - results; i < stack->size(); ++i) blank((*stack)[i], seen);
    std::vector<IValue> given;
    for (size_t i = stack->size() - results; i < stack->size(); ++i) given.push_back(as_now((*stack)[i]));
    captured[capturing].push_back({"", op, then, given});
  }
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  on_bytes(op, stack);
}

at::Tensor& copy_(at::Tensor& into, const at::Tensor& from, bool) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{into, from, false};
  on_bytes(op, &stack);
  return into;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes,
                        c10::SymIntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), offset.expect_int());
  return self;
}

at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const int64_t count = source.nbytes() / self.dtype().itemsize();
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef{count}, c10::IntArrayRef{1});
  self.unsafeGetTensorImpl()->set_storage_offset(0);
  return self;
}

// CUDA graphs. Launches of Triton's kernels are Python's: they stand in the graph by their numbers.
int64_t begin() {
  capturing = ++captures;
  captured[capturing];
  return capturing;
}
void end() { capturing = 0; }
void make_zeros() { zeros = true; }
bool is_capturing() { return capturing != 0; }
void launched(int64_t number) {
  if (capturing) captured[capturing].push_back({std::to_string(number), std::nullopt, {}, {}});
}
void forget(int64_t graph) { captured.erase(graph); }

void same_bytes(const IValue& now, const IValue& then) {
  if (then.isTensor() && then.toTensor().defined() && then.toTensor().is_cuda()) {
    auto to = on_host(then.toTensor()), from = on_host(now.toTensor());
    if (to.mutable_data_ptr() != from.mutable_data_ptr()) to.copy_(from);
  } else if (then.isTensorList()) {
    auto to = then.toTensorList(), from = now.toTensorList();
    for (size_t i = 0; i < to.size(); ++i) same_bytes(from.get(i), to.get(i));
  }
}

// Replays from a place on, up to the next launch; returns (place, number of the launch), or -1 at the end.
std::tuple<int64_t, int64_t> replay(int64_t graph, int64_t place) {
  auto& recorded = captured.at(graph);
  c10::InferenceMode inference(false);
  at::NoGradGuard no_grad;
  for (; place < static_cast<int64_t>(recorded.size()); ++place) {
    auto& one = recorded[place];
    if (!one.op) return {place + 1, std::stoll(one.launch)};
    if (one.op->schema().name().rfind("aten::empty", 0) == 0) continue;  // there is nothing in it
    torch::jit::Stack stack(one.arguments.begin(), one.arguments.end());
    try {
      on_bytes(*one.op, &stack);
      for (size_t i = 0; i < one.results.size(); ++i) same_bytes(stack[i], one.results[i]);
    } catch (c10::Error& error) {
      TORCH_CHECK(false, "replaying ", one.op->schema(), ": ", error.what_without_backtrace());
    }
  }
  return {-1, -1};
}

}  // namespace

namespace at {
using CUDAHooks = Hooks;  // PyTorch asks for this name
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", copy_);
  m.impl("set_.source_Storage", set_whole);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}

TORCH_LIBRARY(rehearsal, m) {
  m.def("host(Tensor tensor) -> Tensor", on_host);
  m.def("begin() -> int", begin);
  m.def("end() -> ()", end);
  m.def("make_zeros() -> ()", make_zeros);
  m.def("capturing() -> bool", is_capturing);
  m.def("launched(int number) -> ()", launched);
  m.def("forget(int graph) -> ()", forget);
  m.def("replay(int graph, int place) -> (int, int)", replay);
}
