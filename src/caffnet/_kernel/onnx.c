/* The operator Solve of the domain "caffnet" for ONNX Runtime: session_options.register_custom_ops_library(library).

     Solve(f, A, lower, upper, numbers, w?, metric?) -> value, status, active
     with row_kinds, soft, search, strict, on_infeasible

   f (B, n), A (m, n) or (B, m, n), bounds (m,) or (B, m), w (B, n) or absent, the metric (n, n), (1, n) if it is
   diagonal, either with B in front, or absent; all float32 or all float64. numbers (float64): the norm,
   then the fields of CaffnetTolerances. on_infeasible is "raise": the run fails; "nearest"; "nan".

   ONNX Runtime hands over a table of functions, whose order never changes. The few that are called here are declared by
   their place in it, so that no header of ONNX Runtime is needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* ---------------------------------------------------------------------------------------------- ONNX Runtime */

typedef struct Opaque Opaque; /* any object of ONNX Runtime */
typedef Opaque *Error;        /* NULL if there is no error */
typedef void (*Function)(void);

typedef struct {
    Function at[100];
} Api;

typedef struct {
    const Api *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} ApiBase;

enum { FLOAT = 1, INT8 = 3, DOUBLE = 11 }; /* element types */
enum { REQUIRED = 0, OPTIONAL = 1 };
enum { ERROR_INVALID_ARGUMENT = 2, ERROR_RUNTIME = 6 };
enum { API_VERSION = 16 }; /* the first with compute functions that can fail */

#define CREATE_STATUS(api) ((Error(*)(int, const char *))(api)->at[0])
#define CREATE_DOMAIN(api) ((Error(*)(const char *, Opaque **))(api)->at[26])
#define ADD_OPERATOR(api) ((Error(*)(Opaque *, const void *))(api)->at[27])
#define ADD_DOMAIN(api) ((Error(*)(Opaque *, Opaque *))(api)->at[28])
#define TENSOR_DATA(api) ((Error(*)(Opaque *, void **))(api)->at[51])
#define DIMENSIONS_COUNT(api) ((Error(*)(const Opaque *, size_t *))(api)->at[61])
#define DIMENSIONS(api) ((Error(*)(const Opaque *, int64_t *, size_t))(api)->at[62])
#define TENSOR_SHAPE(api) ((Error(*)(const Opaque *, Opaque **))(api)->at[65])
#define ATTRIBUTE_INT(api) ((Error(*)(const Opaque *, const char *, int64_t *))(api)->at[86])
#define ATTRIBUTE_TEXT(api) ((Error(*)(const Opaque *, const char *, char *, size_t *))(api)->at[87])
#define INPUT_COUNT(api) ((Error(*)(const Opaque *, size_t *))(api)->at[88])
#define INPUT(api) ((Error(*)(const Opaque *, size_t, const Opaque **))(api)->at[90])
#define OUTPUT(api) ((Error(*)(Opaque *, size_t, const int64_t *, size_t, Opaque **))(api)->at[91])
#define RELEASE_SHAPE(api) ((void (*)(Opaque *))(api)->at[99])

typedef struct Operator Operator;
struct Operator {
    uint32_t version;
    void *(*create_kernel)(const Operator *, const Api *, const Opaque *);
    const char *(*get_name)(const Operator *);
    const char *(*get_provider)(const Operator *);
    int (*get_input_type)(const Operator *, size_t);
    size_t (*get_input_count)(const Operator *);
    int (*get_output_type)(const Operator *, size_t);
    size_t (*get_output_count)(const Operator *);
    void (*compute)(void *, Opaque *);
    void (*destroy)(void *);
    int (*get_input_kind)(const Operator *, size_t);
    int (*get_output_kind)(const Operator *, size_t);
    int (*get_input_memory)(const Operator *, size_t);
    int (*variadic[4])(const Operator *);
    Error (*create_kernel_v2)(const Operator *, const Api *, const Opaque *, void **);
    Error (*compute_v2)(void *, Opaque *);
};

/* ---------------------------------------------------------------------------------------------- one node */

enum { F, A, LOWER, UPPER, NUMBERS, W, METRIC, INPUTS };

typedef struct {
    const Api *api;
    int64_t search, strict, single;
    int nearest, raises;
    size_t rows; /* how many row_kinds there are */
    char *kinds, *soft; /* soft: empty if there is none */
} Node;

/* The text of an attribute, to be freed; NULL where it is missing. */
static char *text_of(const Api *api, const Opaque *info, const char *name) {
    size_t size = 0;
    (void)ATTRIBUTE_TEXT(api)(info, name, NULL, &size);
    char *text = (char *)calloc(size + 1, 1);
    if (text && size && ATTRIBUTE_TEXT(api)(info, name, text, &size)) {
        free(text);
        return NULL;
    }
    return text;
}

static void destroy(void *kernel) {
    Node *node = (Node *)kernel;
    if (node) {
        free(node->kinds);
        free(node->soft);
    }
    free(node);
}

static Error create(const Api *api, const Opaque *info, int single, void **kernel) {
    Node *node = (Node *)calloc(1, sizeof *node);
    char *mode = text_of(api, info, "on_infeasible");
    Error error = NULL;
    if (node) {
        node->api = api;
        node->single = single;
        node->kinds = text_of(api, info, "row_kinds");
        node->soft = text_of(api, info, "soft");
        error = ATTRIBUTE_INT(api)(info, "search", &node->search);
        if (!error) error = ATTRIBUTE_INT(api)(info, "strict", &node->strict);
    }
    if (!error && (!node || !node->kinds || !node->soft || !mode)) error = CREATE_STATUS(api)(ERROR_INVALID_ARGUMENT, "caffnet.Solve: an attribute is missing.");
    if (!error) {
        node->rows = strlen(node->kinds);
        node->nearest = !strcmp(mode, "nearest");
        node->raises = !strcmp(mode, "raise");
    }
    free(mode);
    if (error) destroy(node);
    else *kernel = node;
    return error;
}

typedef struct {
    const void *data;
    size_t axes;
    int64_t size[3];
} Array;

static Error read_input(const Api *api, const Opaque *context, size_t index, Array *array) {
    const Opaque *value = NULL;
    Opaque *shape = NULL;
    size_t count = 0;
    memset(array, 0, sizeof *array);
    Error error = INPUT_COUNT(api)(context, &count);
    if (error || index >= count) return error;
    error = INPUT(api)(context, index, &value);
    if (error || !value) return error;
    void *data = NULL;
    error = TENSOR_DATA(api)((Opaque *)(uintptr_t)value, &data);
    if (!error) error = TENSOR_SHAPE(api)(value, &shape);
    if (!error) error = DIMENSIONS_COUNT(api)(shape, &array->axes);
    if (!error && array->axes > 3) error = CREATE_STATUS(api)(ERROR_INVALID_ARGUMENT, "caffnet.Solve: an input has more than three axes.");
    if (!error) error = DIMENSIONS(api)(shape, array->size, array->axes);
    if (shape) RELEASE_SHAPE(api)(shape);
    array->data = data;
    return error;
}

/* Whether an array holds `core` numbers for each of B samples, or once for all; its step in *step. */
static int fits(const Array *array, size_t axes, int64_t samples, int64_t lines, int64_t width, int64_t *step) {
    size_t core = array->axes == axes + 1 ? 1 : 0;
    if (array->axes != axes && !core) return 0;
    if (core && array->size[0] != samples && array->size[0] != 1) return 0;
    if (axes == 2 && array->size[core] != lines) return 0;
    if (array->size[core + axes - 1] != width) return 0;
    *step = core && array->size[0] > 1 ? lines * width : 0;
    return 1;
}

static Error say(const Node *node, const CaffnetBatch *batch, int64_t bad) {
    char text[160];
    int64_t first = 0;
    while (!CAFFNET_HAS_NO_ANSWER(batch->status[first])) first++;
    if (batch->status[first] == CAFFNET_INVALID)
        snprintf(text, sizeof text, "caffnet.Solve: the data of sample %lld contain NaN or infinite numbers.", (long long)first);
    else
        snprintf(text, sizeof text, "caffnet.Solve: no point satisfies the constraints of %lld of %lld samples; sample %lld is the first.",
                 (long long)bad, (long long)batch->samples, (long long)first);
    return CREATE_STATUS(node->api)(ERROR_RUNTIME, text);
}

static Error compute(void *kernel, Opaque *context) {
    const Node *node = (const Node *)kernel;
    const Api *api = node->api;
    Array in[INPUTS];
    Opaque *out[3] = {NULL, NULL, NULL};
    void *to[3] = {NULL, NULL, NULL};
    CaffnetBatch batch;
    Error error = NULL;
    memset(&batch, 0, sizeof batch);
    for (size_t k = 0; k < INPUTS && !error; k++) error = read_input(api, context, k, &in[k]);
    if (error) return error;
    int64_t samples = in[F].axes == 2 ? in[F].size[0] : 0, n = in[F].axes == 2 ? in[F].size[1] : -1, m = (int64_t)node->rows;
    const int64_t *shape_of_metric = in[METRIC].size + (in[METRIC].axes == 3);
    batch.diagonal = in[METRIC].data && shape_of_metric[0] == 1;
    int good = n >= 0 && (!node->soft[0] || strlen(node->soft) == node->rows) && fits(&in[A], 2, samples, m, n, &batch.A_step) && fits(&in[LOWER], 1, samples, 1, m, &batch.lower_step) &&
               fits(&in[UPPER], 1, samples, 1, m, &batch.upper_step) && (!in[W].data || fits(&in[W], 1, samples, 1, n, &batch.w_step)) &&
               (!in[METRIC].data || fits(&in[METRIC], 2, samples, batch.diagonal ? 1 : n, n, &batch.metric_step)) &&
               in[NUMBERS].axes == 1 && in[NUMBERS].size[0] == 1 + (int64_t)(sizeof(CaffnetTolerances) / sizeof(double));
    if (!good) return CREATE_STATUS(api)(ERROR_INVALID_ARGUMENT, "caffnet.Solve: the shapes of the inputs do not fit, or the model is of another version.");
    int64_t shape[3][2] = {{samples, n}, {samples, 0}, {samples, m}};
    for (size_t k = 0; k < 3 && !error; k++) {
        error = OUTPUT(api)(context, k, shape[k], k == 1 ? 1 : 2, &out[k]);
        if (!error) error = TENSOR_DATA(api)(out[k], &to[k]);
    }
    if (error) return error;
    batch.n = n, batch.m = m, batch.samples = samples, batch.single = node->single;
    batch.search = node->search, batch.strict = node->strict, batch.nearest = node->nearest;
    batch.f = in[F].data, batch.f_step = n, batch.w = in[W].data;
    batch.A = in[A].data, batch.lower = in[LOWER].data, batch.upper = in[UPPER].data, batch.kinds = node->kinds;
    batch.metric = in[METRIC].data;
    batch.soft = node->soft[0] ? node->soft : NULL;
    batch.value = to[0], batch.status = (int8_t *)to[1], batch.active = (int8_t *)to[2];
    batch.norm = *(const double *)in[NUMBERS].data;
    memcpy(&batch.t, (const double *)in[NUMBERS].data + 1, sizeof batch.t);
    size_t room = (size_t)caffnet_workspace(n, m, node->search, in[METRIC].data != NULL) + 64, slots = (size_t)(samples * n);
    char *memory = (char *)malloc(room + slots * sizeof(int32_t));
    if (!memory) return CREATE_STATUS(api)(ERROR_RUNTIME, "caffnet.Solve: out of memory.");
    batch.choice = (int32_t *)(void *)memory;
    uintptr_t start = (uintptr_t)(memory + slots * sizeof(int32_t));
    int64_t bad = caffnet_solve(&batch, 0, samples, (void *)((start + 63) & ~(uintptr_t)63));
    free(memory);
    return bad > 0 && node->raises ? say(node, &batch, bad) : NULL;
}

/* ---------------------------------------------------------------------------------------------- registration */

static const char *get_name(const Operator *op) {
    (void)op;
    return "Solve";
}

static const char *get_provider(const Operator *op) {
    (void)op;
    return NULL; /* the CPU */
}

static size_t count_inputs(const Operator *op) {
    (void)op;
    return INPUTS;
}

static size_t count_outputs(const Operator *op) {
    (void)op;
    return 3;
}

static int kind_of_input(const Operator *op, size_t index) {
    (void)op;
    return index >= W ? OPTIONAL : REQUIRED;
}

static int kind_of_output(const Operator *op, size_t index) {
    (void)op, (void)index;
    return REQUIRED;
}

static int memory_of_input(const Operator *op, size_t index) {
    (void)op, (void)index;
    return 0;
}

static int zero(const Operator *op) {
    (void)op;
    return 0;
}

static int float_input(const Operator *op, size_t index) {
    (void)op;
    return index == NUMBERS ? DOUBLE : FLOAT;
}

static int double_input(const Operator *op, size_t index) {
    (void)op, (void)index;
    return DOUBLE;
}

static int float_output(const Operator *op, size_t index) {
    (void)op;
    return index == 0 ? FLOAT : INT8;
}

static int double_output(const Operator *op, size_t index) {
    (void)op;
    return index == 0 ? DOUBLE : INT8;
}

static Error create_float(const Operator *op, const Api *api, const Opaque *info, void **kernel) {
    (void)op;
    return create(api, info, 1, kernel);
}

static Error create_double(const Operator *op, const Api *api, const Opaque *info, void **kernel) {
    (void)op;
    return create(api, info, 0, kernel);
}

#define OPERATOR(type)                                                                                                  \
    {API_VERSION,  NULL,          get_name,       get_provider,    type##_input,         count_inputs, type##_output,  \
     count_outputs, NULL,         destroy,        kind_of_input,   kind_of_output,       memory_of_input,              \
     {zero, zero, zero, zero},    create_##type,  compute}

static const Operator operators[] = {OPERATOR(float), OPERATOR(double)};

EXPORT Error RegisterCustomOps(Opaque *options, const ApiBase *base) {
    const Api *api = base->get_api(API_VERSION);
    Opaque *domain = NULL;
    if (!api) return NULL; /* an older ONNX Runtime, which reports the missing version itself */
    Error error = CREATE_DOMAIN(api)("caffnet", &domain);
    for (size_t k = 0; k < sizeof operators / sizeof *operators && !error; k++) error = ADD_OPERATOR(api)(domain, &operators[k]);
    return error ? error : ADD_DOMAIN(api)(options, domain);
}
