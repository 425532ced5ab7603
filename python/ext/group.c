/* _tide.Group: parameters that are gathered and reduced together. */
#include "ext.h"

/* (outer, rows, inner, dtype name); -1 with an exception. */
static int parse_param(PyObject *item, tide_param *param)
{
    PyObject *tuple = PySequence_Tuple(item);
    int good =
        tuple && PyArg_ParseTuple(tuple, "O&O&O&O&", ext_to_u64, &param->outer,
                                  ext_to_u64, &param->rows, ext_to_u64,
                                  &param->inner, ext_to_dtype, &param->dtype);

    Py_XDECREF(tuple);
    return good ? 0 : -1;
}

/* A new array of the sequence's parameters; NULL with an exception. */
static tide_param *parse_params(PyObject *params, size_t *count)
{
    Py_ssize_t length = PySequence_Size(params);
    tide_param *array;

    if (length < 0)
        return NULL;
    array = PyMem_Calloc(length ? (size_t)length : 1, sizeof(*array));
    if (!array)
        return (tide_param *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = PySequence_GetItem(params, i);
        int failed = !item || parse_param(item, &array[i]);

        Py_XDECREF(item);
        if (failed) {
            PyMem_Free(array);
            return NULL;
        }
    }
    *count = (size_t)length;
    return array;
}

static void group_drop(PyObject *object)
{
    ext_group *self = (ext_group *)object;
    ext_comm *comm = self->owner;
    tide_group *group = self->group;

    self->group = NULL;
    if (group && ext_comm_is_mine(comm))
        EXT_RUN(comm, tide_group_free(group));
}

PyObject *ext_group_new(ext_comm *comm, PyObject *params, const char *name)
{
    tide_group *group = NULL;
    tide_status status;
    ext_group *self;
    size_t count = 0;
    tide_param *array = parse_params(params, &count);

    if (!array)
        return NULL;
    EXT_RUN(comm,
            status = tide_group_create(comm->comm, array, count, name, &group));
    PyMem_Free(array);
    if (status)
        return ext_raise(status);
    self = ext_new(ext_group_type);
    if (!self) {
        EXT_RUN(comm, tide_group_free(group));
        return NULL;
    }
    self->owner = comm;
    self->group = group;
    self->child = (ext_child){.object = (PyObject *)self, .drop = group_drop};
    ext_comm_adopt(comm, &self->child);
    return (PyObject *)self;
}

static void group_dealloc(PyObject *object)
{
    ext_group *self = (ext_group *)object;

    group_drop(object);
    ext_comm_release(self->owner, &self->child);
    ext_free(object);
}

/* NULL with Error set when the communicator was left. */
static const tide_layout *layout_of(PyObject *object)
{
    ext_group *self = (ext_group *)object;

    if (self->group)
        return tide_group_layout(self->group);
    ext_raise_text(TIDE_ERR_INVALID, "the communicator was left");
    return NULL;
}

static PyObject *describe_param(const tide_param_layout *entry)
{
    const tide_param *param = &entry->param;

    return Py_BuildValue("{sK sK sK ss sK sK sK sK sK sK sK}", "outer",
                         (unsigned long long)param->outer, "rows",
                         (unsigned long long)param->rows, "inner",
                         (unsigned long long)param->inner, "dtype",
                         tide_dtype_name(param->dtype), "shard_rows",
                         (unsigned long long)entry->shard_rows, "shard_elems",
                         (unsigned long long)entry->shard_elems, "shard_bytes",
                         (unsigned long long)entry->shard_bytes, "shard_offset",
                         (unsigned long long)entry->shard_offset, "out_offset",
                         (unsigned long long)entry->out_offset, "storage_bytes",
                         (unsigned long long)entry->storage_bytes, "grad_elems",
                         (unsigned long long)entry->grad_elems);
}

static PyObject *group_layout(PyObject *object, PyObject *ignored)
{
    const tide_layout *layout = layout_of(object);
    PyObject *list = layout ? PyList_New(0) : NULL;

    (void)ignored;
    for (size_t p = 0; list && p < tide_layout_count(layout); p++) {
        PyObject *entry = describe_param(tide_layout_param(layout, p));

        if (!entry || PyList_Append(list, entry))
            Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *group_shard_bytes(PyObject *object, void *ignored)
{
    const tide_layout *layout = layout_of(object);

    (void)ignored;
    if (!layout)
        return NULL;
    return PyLong_FromUnsignedLongLong(tide_layout_shard_bytes(layout));
}

static PyObject *group_out_elems(PyObject *object, void *ignored)
{
    const tide_layout *layout = layout_of(object);

    (void)ignored;
    if (!layout)
        return NULL;
    return PyLong_FromUnsignedLongLong(tide_layout_out_elems(layout));
}

/* {name: count} of the ops, {name: bytes} of the lanes. */
static int put_tables(PyObject *dict, const tide_plan_stats *stats)
{
    static const char *const ops[] = {
#define X(name, text) text,
        TIDE_OP_LIST(X)
#undef X
    };
    static const char *const lanes[] = {
#define X(name, text) text,
        TIDE_LANE_LIST(X)
#undef X
    };
    PyObject *op = PyDict_New(), *lane = PyDict_New();
    int failed = !op || !lane;

    for (int i = 0; !failed && i < TIDE_OP_COUNT; i++)
        failed = ext_put(op, ops[i], stats->ops[i]);
    for (int i = 0; !failed && i < TIDE_LANE_COUNT; i++)
        failed = ext_put(lane, lanes[i], stats->lane_bytes[i]);
    failed = failed || PyDict_SetItemString(dict, "ops", op) ||
             PyDict_SetItemString(dict, "lane_bytes", lane);
    Py_XDECREF(op);
    Py_XDECREF(lane);
    return failed ? -1 : 0;
}

static PyObject *describe_stats(const tide_plan_stats *stats)
{
    PyObject *dict = PyDict_New();

    if (dict && (put_tables(dict, stats) ||
                 ext_put(dict, "local_bytes", stats->local_bytes) ||
                 ext_put(dict, "rail_bytes", stats->rail_bytes) ||
                 ext_put(dict, "rounds", stats->rounds) ||
                 ext_put(dict, "buffer_bytes", stats->buffer_bytes)))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *group_stats(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"coll", "grad_dtype", "out_dtype", NULL};
    ext_group *self = (ext_group *)object;
    tide_dtype grad = TIDE_BF16, out = TIDE_F32;
    tide_plan_stats stats;
    const tide_plan *plan;
    tide_status status;
    tide_coll coll;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&O&", names,
                                     ext_to_coll, &coll, ext_to_dtype, &grad,
                                     ext_to_dtype, &out) ||
        ext_comm_check(self->owner))
        return NULL;
    EXT_RUN(self->owner,
            status = tide_group_plan(self->group, coll, grad, out, &plan));
    if (status)
        return ext_raise(status);
    tide_plan_get_stats(plan, &stats);
    return describe_stats(&stats);
}

static PyObject *group_all_gather_begin(PyObject *object, PyObject *ignored)
{
    ext_group *self = (ext_group *)object;
    tide_request *request = NULL;
    tide_status status;
    void *shard = NULL;

    (void)ignored;
    if (ext_comm_check(self->owner))
        return NULL;
    EXT_RUN(self->owner,
            status = tide_all_gather_begin(self->group, &shard, &request));
    return status ? ext_raise(status) : ext_request_new(self, request, shard);
}

static PyObject *group_reduce_scatter(PyObject *object, PyObject *args)
{
    ext_group *self = (ext_group *)object;
    tide_reduce_args reduce = {0};
    tide_request *request = NULL;
    PyObject *addresses;
    tide_status status;
    void **grads;

    if (!PyArg_ParseTuple(args, "OO&O&O&f|O&", &addresses, ext_to_dtype,
                          &reduce.grad_dtype, ext_to_address, &reduce.out,
                          ext_to_dtype, &reduce.out_dtype, &reduce.scale,
                          ext_to_address, &reduce.stream) ||
        ext_comm_check(self->owner))
        return NULL;
    grads = ext_addresses(addresses,
                          tide_layout_count(tide_group_layout(self->group)));
    if (!grads)
        return NULL;
    reduce.grad = (const void *const *)grads;
    EXT_RUN(self->owner,
            status = tide_reduce_scatter_start(self->group, &reduce, &request));
    PyMem_Free(grads);
    return status ? ext_raise(status) : ext_request_new(self, request, NULL);
}

static PyMethodDef group_methods[] = {
    {"layout", group_layout, METH_NOARGS,
     "A dict a parameter, as tide_param_layout has it."},
    {"stats", (PyCFunction)(void (*)(void))group_stats,
     METH_VARARGS | METH_KEYWORDS,
     "stats(coll, grad_dtype='bf16', out_dtype='f32'): the plan's numbers."},
    {"all_gather_begin", group_all_gather_begin, METH_NOARGS,
     "A Request whose buffer is to be filled, then started."},
    {"reduce_scatter", group_reduce_scatter, METH_VARARGS,
     "reduce_scatter(grad_addresses, grad_dtype, out_address, out_dtype,\n"
     "               scale, stream=0): a started Request. The gradients must\n"
     "keep their values until phase 'reads', the output its memory until\n"
     "'done'. On a device it runs after what the stream holds now."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef group_getset[] = {
    {"shard_bytes", group_shard_bytes, NULL, "Bytes of a packed shard.", NULL},
    {"out_elems", group_out_elems, NULL,
     "Elements of a rank's reduce-scatter output.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot group_slots[] = {
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_methods, group_methods},
    {Py_tp_getset, group_getset},
    {Py_tp_doc, "Parameters that are gathered and reduced together."},
    {0, NULL},
};

PyType_Spec ext_group_spec = {
    .name = "tide._tide.Group",
    .basicsize = sizeof(ext_group),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = group_slots,
};
