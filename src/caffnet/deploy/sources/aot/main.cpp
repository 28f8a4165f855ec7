/* Loads model.pt2 and compares it with the answers of torch in example.pt: the frame of a C++ service. */
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <iterator>

static std::vector<at::Tensor> read_tensors(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<at::Tensor> tensors;
    c10::IValue stored = torch::pickle_load(bytes);
    for (const c10::IValue &value : stored.toListRef()) tensors.push_back(value.toTensor());
    return tensors;
}

int main(int arguments, char **argument) {
    std::string folder = arguments > 1 ? argument[1] : ".";
    c10::InferenceMode guard;
    torch::inductor::AOTIModelPackageLoader model(folder + "/model.pt2");
    std::vector<at::Tensor> stored = read_tensors(folder + "/example.pt"); /* inputs, then value, status, violation */
    std::vector<at::Tensor> inputs(stored.begin(), stored.end() - 3);
    std::vector<at::Tensor> found = model.run(inputs);
    bool same = found.size() == 3;
    double near = same && found[0].scalar_type() == at::kDouble ? 1e-11 : 1e-5; /* sums in another order */
    for (size_t k = 0; same && k < 3; k++)
        same = at::allclose(found[k].to(at::kDouble), stored[stored.size() - 3 + k].to(at::kDouble), near, near, true);
    std::printf("%s, %lld samples\n", same ? "passed" : "failed", static_cast<long long>(found[0].size(0)));
    return same ? 0 : 1;
}
