/* The operation caffnet::solve of exported graphs, for C++ programs with libtorch: it packs the tensors and calls the
   kernel. Link it into the program, or load it before the model. schema.h is written by caffnet. */
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <atomic>
#include <string>
#include <vector>

extern "C" {
#include "kernel.h"
}
#include "schema.h"

namespace {

using at::Tensor;

int64_t search_of(c10::string_view name) {
    if (name == "full") return CAFFNET_FULL;
    if (name == "lite") return CAFFNET_LITE;
    if (name == "paper") return CAFFNET_PAPER;
    TORCH_CHECK(name == "active", "caffnet::solve: there is no search ", std::string(name));
    return CAFFNET_ACTIVE;
}

/* The distance between the samples of a tensor with `core` axes each; 0 where all share one. */
int64_t step_of(const Tensor &t, int64_t core) { return t.dim() > core && t.size(0) > 1 ? t.stride(0) : 0; }

/* The names of the rows: each after its length, -1 for a row without (run.py packs them). */
std::vector<std::string> names_of(c10::string_view packed, int64_t m) {
    std::vector<std::string> names;
    std::string text(packed);
    while (!text.empty()) {
        size_t colon = text.find(':');
        long length = std::stol(text.substr(0, colon));
        size_t size = length < 0 ? 0 : static_cast<size_t>(length);
        names.push_back(length < 0 ? "row " + std::to_string(names.size()) : text.substr(colon + 1, size));
        text = text.substr(colon + 1 + size);
    }
    for (int64_t i = static_cast<int64_t>(names.size()); i < m; i++) names.push_back("row " + std::to_string(i));
    return names;
}

/* The error for samples without an answer: it names the first of them, as in Python. */
void report(const CaffnetBatch &batch, int64_t bad, c10::string_view labels, void *memory) {
    int64_t first = 0;
    while (!CAFFNET_HAS_NO_ANSWER(batch.status[first])) first++;
    TORCH_CHECK(batch.status[first] != CAFFNET_INVALID, "The data of sample ", first, " contain NaN or infinite numbers.");
    std::vector<double> multiplier(static_cast<size_t>(batch.m));
    CaffnetProof proof;
    caffnet_conflict(&batch, first, multiplier.data(), &proof, memory);
    auto names = names_of(labels, batch.m);
    std::string rows;
    for (size_t i = 0; i < multiplier.size(); i++)
        if (multiplier[i] != 0) rows += (rows.empty() ? "" : ", ") + names[i];
    TORCH_CHECK(false, "No point satisfies the constraints of ", bad, " of ", batch.samples, " samples. Sample ", first,
                ": ", rows, ".");
}

std::tuple<Tensor, Tensor, Tensor> solve(const Tensor &f_, const std::optional<Tensor> &w_, const Tensor &A_,
                                         const Tensor &lower_, const Tensor &upper_, const std::optional<Tensor> &metric_,
                                         c10::string_view row_kinds,
                                         c10::string_view labels, c10::SymIntArrayRef, c10::string_view search, double norm,
                                         bool strict, c10::string_view on_infeasible, c10::string_view, int64_t,
                                         at::ArrayRef<double> tolerances, c10::string_view soft_rows) {
    Tensor f = f_.contiguous(), A = A_.contiguous(), lower = lower_.contiguous(), upper = upper_.contiguous();
    Tensor w = w_ ? w_->contiguous() : Tensor(), metric = metric_ ? metric_->contiguous() : Tensor();
    TORCH_CHECK(tolerances.size() * sizeof(double) == sizeof(CaffnetTolerances),
                "caffnet::solve: the model was exported by another version of caffnet.");
    CaffnetBatch batch = {};
    batch.n = f.size(1), batch.m = A.size(-2), batch.samples = f.size(0);
    batch.single = f.scalar_type() == at::kFloat;
    batch.search = search_of(search), batch.strict = strict, batch.nearest = on_infeasible == "nearest";
    batch.f = f.data_ptr(), batch.f_step = step_of(f, 1);
    if (w.defined()) batch.w = w.data_ptr(), batch.w_step = step_of(w, 1);
    batch.A = A.data_ptr(), batch.A_step = step_of(A, 2);
    batch.lower = lower.data_ptr(), batch.lower_step = step_of(lower, 1);
    batch.upper = upper.data_ptr(), batch.upper_step = step_of(upper, 1);
    if (metric.defined()) {
        batch.metric = metric.data_ptr(), batch.metric_step = step_of(metric, 2);
        batch.diagonal = metric.size(-2) == 1;
    }
    std::string kinds(row_kinds);
    batch.kinds = kinds.c_str();
    std::string soft(soft_rows);
    batch.soft = soft.empty() ? nullptr : soft.c_str();
    Tensor value = at::empty({batch.samples, batch.n}, f.options());
    Tensor status = at::empty({batch.samples}, f.options().dtype(at::kChar));
    Tensor active = at::empty({batch.samples, batch.m}, f.options().dtype(at::kChar));
    std::vector<int32_t> choice(static_cast<size_t>(batch.samples * batch.n));
    batch.value = value.data_ptr(), batch.status = status.data_ptr<int8_t>(), batch.active = active.data_ptr<int8_t>();
    batch.choice = choice.data(), batch.norm = norm;
    memcpy(&batch.t, tolerances.data(), sizeof batch.t);
    auto room = static_cast<size_t>(caffnet_workspace(batch.n, batch.m, batch.search, metric.defined())) + 64;
    auto aligned = [](std::vector<char> &bytes) {
        return reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) & ~uintptr_t(63));
    };
    std::atomic<int64_t> bad{0};
    int64_t grain = 20000 / std::max<int64_t>(batch.n * batch.m, 1) + 1; /* as native.py: what is worth a thread */
    at::parallel_for(0, batch.samples, grain, [&](int64_t first, int64_t last) {
        std::vector<char> memory(room);
        bad += caffnet_solve(&batch, first, last, aligned(memory));
    });
    if (bad > 0 && on_infeasible == "raise") {
        std::vector<char> memory(room);
        report(batch, bad, labels, aligned(memory));
    }
    return {value, status, active};
}

} // namespace

TORCH_LIBRARY(caffnet, library) { library.def(CAFFNET_SOLVE_SCHEMA); }
TORCH_LIBRARY_IMPL(caffnet, CPU, library) { library.impl("solve", solve); }
