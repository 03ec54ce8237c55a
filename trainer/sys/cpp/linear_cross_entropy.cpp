// The cross-entropy of a linear layer without its logits: chunks of rows are multiplied with the
// weight, and the gradients of a chunk are computed at once, before the next one takes its place.
// Nothing of the size rows × classes exists. Only operators of ATen are called, so that it computes
// on any device.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "guarded.h"

namespace {

// The elements of a chunk of logits, and the least number of its rows: the product of the gradient
// of the weight reads and writes the whole gradient for each chunk.
constexpr int64_t kChunkElements = int64_t{1} << 23;
constexpr int64_t kChunkRows = 512;
// The elements in 64 bytes of `float`.
constexpr int64_t kAligned = 16;
// The classes whose logits exist in half precision at the same time.
constexpr int64_t kTile = 4096;

struct HeadOptions {
  int64_t ignored;
  double smoothing;
};

at::ScalarType accumulated_in(at::ScalarType kind) { return kind == at::kDouble ? at::kDouble : at::kFloat; }

// Sums over all rows are exact enough in double, where the device has it.
at::ScalarType summed_in(const at::Tensor& tensor) { return tensor.is_mps() ? at::kFloat : at::kDouble; }

// Throws an exception that names the first target that is neither a class nor ignored. Another
// device than the CPU would have to be waited for: its kernels report such a target.
void check_targets(const at::Tensor& targets, const at::Tensor& is_used, int64_t classes) {
  if (!targets.is_cpu() || targets.numel() == 0) return;
  auto is_wrong = targets.lt(0).logical_or_(targets.ge(classes)).logical_and_(is_used);
  if (!is_wrong.any().item<bool>()) return;
  auto row = is_wrong.nonzero()[0].item<int64_t>();
  TORCH_CHECK(false, "target ", targets[row].item<int64_t>(), " of row ", row, " is not a class: expected 0 to ", classes - 1,
              ", or the ignored index");
}

// The loss, and what its backward pass multiplies.
struct HeadResult {
  at::Tensor loss, token_losses;
  // The number of rows, or the sum of their weights, that the sums are divided by.
  at::Tensor divisor;
  // The gradients of the sum of the losses; undefined where they are not needed.
  at::Tensor of_hidden, of_weight, of_bias;
};

// `hidden` is [rows, width], `weight` [classes, width], `targets` [rows]. Products are computed in
// `kind`.
HeadResult compute_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, const at::Tensor& bias,
                        const at::Tensor& class_weights, const HeadOptions& options, at::ScalarType kind, bool needs_hidden,
                        bool needs_weight, bool needs_bias) {
  const auto rows = hidden.size(0), classes = weight.size(0), width = weight.size(1);
  const auto sums = accumulated_in(kind);
  const auto as_sums = hidden.options().dtype(sums);
  const bool is_half = kind != sums;
  const bool needs_any = needs_hidden || needs_weight || needs_bias;
  const auto own = weight.to(kind);
  const auto offsets = bias.defined() ? bias.to(sums) : at::Tensor();
  const auto of_classes = class_weights.defined() ? class_weights.to(sums) : at::Tensor();

  auto is_used = targets.ne(options.ignored);
  check_targets(targets, is_used, classes);
  auto index = targets.masked_fill(is_used.logical_not(), 0);
  // The weight of each row: 0 for an ignored one.
  auto of_rows = of_classes.defined() ? of_classes.index_select(0, index).mul_(is_used) : is_used.to(sums);
  const auto total = of_rows.sum(summed_in(hidden));
  // The share of each class in the loss of a row: (1 - ε) for its target, and ε / classes for each.
  const double share = options.smoothing / static_cast<double>(classes);
  const auto mass = of_classes.defined() ? of_classes.sum() : at::full({}, static_cast<double>(classes), as_sums);

  HeadResult result;
  result.token_losses = at::empty({rows}, as_sums);
  auto smoothed = at::zeros({}, total.options());
  if (needs_hidden) result.of_hidden = at::empty({rows, width}, as_sums);
  if (needs_weight) result.of_weight = rows == 0 ? at::zeros({classes, width}, as_sums) : at::empty({classes, width}, as_sums);
  if (needs_bias) result.of_bias = at::zeros({classes}, as_sums);

  const auto chunk = std::min(std::max<int64_t>(rows, 1), std::max(kChunkRows, kChunkElements / std::max<int64_t>(classes, 1)));
  // Rows begin at a multiple of 64 bytes, with which the product is up to 1.4 times as fast.
  const auto buffer = at::empty({chunk, (classes + kAligned - 1) / kAligned * kAligned}, as_sums).narrow(1, 0, classes);
  const auto tile = is_half ? std::min(kTile, classes) : classes;
  for (int64_t start = 0; start < rows; start += chunk) {
    const auto count = std::min(chunk, rows - start);
    auto logits = buffer.narrow(0, 0, count);
    const auto inputs = hidden.narrow(0, start, count).to(kind);
    const auto at_targets = index.narrow(0, start, count).unsqueeze(1);
    const auto used = is_used.narrow(0, start, count);
    const auto own_rows = of_rows.narrow(0, start, count);
    for (int64_t begin = 0; begin < classes; begin += tile) {
      const auto size = std::min(tile, classes - begin);
      const auto of_tile = own.narrow(0, begin, size).t();
      auto part = logits.narrow(1, begin, size);
      if (!is_half) {
        at::mm_out(part, inputs, of_tile);
      } else if (offsets.defined()) {
        // As the linear layer rounds: once, after the bias.
        part.copy_(at::addmm(bias.narrow(0, begin, size).to(kind), inputs, of_tile));
      } else {
        part.copy_(at::mm(inputs, of_tile));
      }
    }
    if (offsets.defined() && !is_half) logits.add_(offsets);
    logits.sub_(logits.amax(1, /*keepdim=*/true));
    const auto of_target = logits.gather(1, at_targets).squeeze(1);
    // The weighted sum of the logits, for the smoothed loss.
    at::Tensor of_all;
    if (options.smoothing > 0) of_all = of_classes.defined() ? logits.mv(of_classes) : logits.sum(1);
    logits.exp_();
    const auto norm = logits.sum(1);
    const auto log_norm = norm.log();
    auto losses = result.token_losses.narrow(0, start, count);
    losses.copy_(log_norm - of_target).masked_fill_(used.logical_not(), 0);
    if (options.smoothing > 0)
      smoothed.add_((log_norm * mass - of_all).masked_fill_(used.logical_not(), 0).sum(summed_in(hidden)));
    if (!needs_any) continue;

    // The gradient of the sum of the losses takes the place of the logits.
    auto of_norm = own_rows * (1 - options.smoothing);
    if (options.smoothing > 0) of_norm = of_norm + used.to(sums) * (mass * share);
    logits.mul_((of_norm / norm).unsqueeze(1));
    if (options.smoothing > 0) {
      const auto is_row = used.to(sums).unsqueeze(1);
      if (of_classes.defined())
        logits.addcmul_(is_row, of_classes.unsqueeze(0), -share);
      else
        logits.sub_(is_row, share);
    }
    logits.scatter_add_(1, at_targets, (own_rows * (options.smoothing - 1)).unsqueeze(1));
    if (needs_bias) result.of_bias.add_(logits.sum(0));
    auto of_inputs = needs_hidden ? result.of_hidden.narrow(0, start, count) : at::Tensor();
    for (int64_t begin = 0; begin < classes; begin += tile) {
      const auto size = std::min(tile, classes - begin);
      const auto part = logits.narrow(1, begin, size).to(kind);
      if (needs_hidden) {
        const auto of_tile = own.narrow(0, begin, size);
        if (!is_half)
          at::mm_out(of_inputs, part, of_tile);
        else if (begin == 0)
          of_inputs.copy_(at::mm(part, of_tile));
        else
          of_inputs.add_(at::mm(part, of_tile));
      }
      if (!needs_weight) continue;
      auto of_tile = result.of_weight.narrow(0, begin, size);
      if (is_half && start == 0)
        of_tile.copy_(at::mm(part.t(), inputs));
      else if (is_half)
        of_tile.add_(at::mm(part.t(), inputs));
      else if (start == 0)
        at::mm_out(of_tile, part.t(), inputs);
      else
        of_tile.addmm_(part.t(), inputs);
    }
  }
  auto weighted = of_classes.defined() ? result.token_losses * of_rows : result.token_losses;
  auto sum = weighted.sum(summed_in(hidden)) * (1 - options.smoothing) + smoothed * share;
  result.loss = (sum / total).to(sums);
  result.divisor = total;
  return result;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                                                const at::Tensor& weight, const at::Tensor& targets,
                                                const std::optional<at::Tensor>& given_bias,
                                                const std::optional<at::Tensor>& class_weights, int64_t ignored, double smoothing,
                                                int64_t kind, bool is_recorded) {
    // The dtype is chosen by the caller: operators in here must not choose one.
    c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    const auto bias = given_bias.value_or(at::Tensor());
    const auto needs = [&](const at::Tensor& tensor) { return is_recorded && tensor.defined() && tensor.requires_grad(); };
    auto result = compute_head(hidden, weight, targets, bias, class_weights.value_or(at::Tensor()), {ignored, smoothing}, static_cast<at::ScalarType>(kind),
                               needs(hidden), needs(weight), needs(bias));
    context->mark_non_differentiable({result.token_losses});
    context->saved_data["divisor"] = result.divisor;
    for (const auto& [name, tensor, like] : {std::tuple("hidden", result.of_hidden, hidden), std::tuple("weight", result.of_weight, weight),
                                             std::tuple("bias", result.of_bias, bias)}) {
      if (!tensor.defined()) continue;
      context->saved_data[name] = tensor;
      context->saved_data[std::string(name) + " kind"] = static_cast<int64_t>(like.scalar_type());
    }
    return {result.loss, result.token_losses};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list of_outputs) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "the loss of a linear layer has no second derivative, because its gradients are computed in the forward pass: "
                "compute the cross-entropy of whole logits");
    auto& saved = context->saved_data;
    TORCH_CHECK(saved.count("divisor") > 0,
                "a second backward pass through the loss of a linear layer, whose gradients the first one has used up: compute the loss "
                "again");
    const auto divisor = saved["divisor"].toTensor();
    saved.erase("divisor");
    const auto gradient = of_outputs[0].defined() ? of_outputs[0].to(divisor.scalar_type()) : at::zeros_like(divisor);
    // Without a row that counts, the loss is NaN and depends on nothing.
    const auto factor = (gradient / divisor).masked_fill_(divisor.eq(0), 0);
    const auto take = [&](const std::string& name) {
      if (saved.count(name) == 0) return at::Tensor();
      auto tensor = saved[name].toTensor();
      const auto kind = static_cast<at::ScalarType>(saved[name + " kind"].toInt());
      saved.erase(name);
      return tensor.mul_(factor.to(tensor.scalar_type())).to(kind);
    };
    const auto of_hidden = take("hidden"), of_weight = take("weight"), of_bias = take("bias");
    return {of_hidden, of_weight, {}, of_bias, {}, {}, {}, {}, {}};
  }
};

}  // namespace

extern "C" {

// Matches `LinearCrossEntropy` in lib.rs. `bias` and `class_weights` may be null.
struct Head {
  const at::Tensor* hidden;
  const at::Tensor* weight;
  const at::Tensor* targets;
  const at::Tensor* bias;
  const at::Tensor* class_weights;
  int64_t ignored;
  double smoothing;
};

// Writes the mean cross-entropy of a linear layer and the loss of each row, which has no gradient.
// The caller has checked the shapes: [rows, width], [classes, width], [rows], [classes] and
// [classes].
char* trainer_linear_cross_entropy(const Head* head, at::Tensor** loss, at::Tensor** token_losses) {
  return guarded([&] {
    const auto optional = [](const at::Tensor* tensor) { return tensor ? std::make_optional(*tensor) : std::nullopt; };
    const auto& hidden = *head->hidden;
    const auto device = hidden.device().type();
    auto kind = hidden.scalar_type();
    const bool is_cast = at::autocast::is_autocast_enabled(device) && kind != at::kDouble;
    if (is_cast) kind = at::autocast::get_autocast_dtype(device);
    TORCH_CHECK(is_cast || kind == head->weight->scalar_type(), "the hidden states are ", kind, ", but the weight is ",
                head->weight->scalar_type(), ": convert one of them");
    const auto outputs =
        LinearCrossEntropy::apply(hidden, *head->weight, *head->targets, optional(head->bias), optional(head->class_weights), head->ignored,
                                  head->smoothing, static_cast<int64_t>(kind), at::GradMode::is_enabled());
    *loss = new at::Tensor(outputs[0]);
    *token_losses = new at::Tensor(outputs[1]);
  });
}
}
