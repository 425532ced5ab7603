/* The module _tide: its types, its exception, version(). */
#include "ext.h"

PyTypeObject *ext_group_type;
PyTypeObject *ext_request_type;
PyTypeObject *ext_slot_type;
PyObject *ext_error;

PyObject *ext_raise_text(tide_status status, const char *text)
{
    PyObject *error = PyObject_CallFunction(ext_error, "s", text);
    PyObject *name = PyUnicode_FromString(tide_status_name(status));

    if (error && name && !PyObject_SetAttrString(error, "status", name))
        PyErr_SetObject(ext_error, error);
    Py_XDECREF(name);
    Py_XDECREF(error);
    return NULL;
}

PyObject *ext_raise(tide_status status)
{
    const char *text = tide_last_error();

    return ext_raise_text(status, *text ? text : tide_status_text(status));
}

PyObject *ext_none(tide_status status)
{
    if (status)
        return ext_raise(status);
    Py_RETURN_NONE;
}

void *ext_new(PyTypeObject *type)
{
    return PyType_GenericAlloc(type, 0);
}

void ext_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    release(self);
    Py_DECREF(type);
}

static PyObject *module_version(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyUnicode_FromString(tide_version());
}

static PyObject *module_machine(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLongLong(tide_this_machine());
}

static PyMethodDef module_methods[] = {
    {"version", module_version, METH_NOARGS, "The version of libtide."},
    {"machine", module_machine, METH_NOARGS,
     "A number that processes of one machine share."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tide._tide",
    .m_doc = "libtide: communicators, groups, requests and slots.",
    .m_size = -1,
    .m_methods = module_methods,
};

/* Makes the type, adds it under `name` if there is one, and keeps it. */
static int add_type(PyObject *module, PyType_Spec *spec, const char *name,
                    PyTypeObject **kept)
{
    PyObject *type = PyType_FromSpec(spec);

    if (!type)
        return -1;
    if (PyModule_AddObjectRef(module, name, type)) {
        Py_DECREF(type);
        return -1;
    }
    if (kept)
        *kept = (PyTypeObject *)type;
    else
        Py_DECREF(type);
    return 0;
}

static int add_error(PyObject *module)
{
    PyObject *dict = Py_BuildValue("{ss}", "status", "");

    if (!dict)
        return -1;
    ext_error = PyErr_NewExceptionWithDoc(
        "tide.Error",
        "A call into tide failed. `status` is the name of the tide_status,\n"
        "TIDE_ERR_PEER for example; the text names rank and operation.",
        PyExc_RuntimeError, dict);
    Py_DECREF(dict);
    return ext_error ? PyModule_AddObjectRef(module, "Error", ext_error) : -1;
}

PyMODINIT_FUNC PyInit__tide(void);

PyMODINIT_FUNC PyInit__tide(void)
{
    PyObject *module = PyModule_Create(&module_def);

    if (!module)
        return NULL;
    if (add_error(module) || add_type(module, &ext_comm_spec, "Comm", NULL) ||
        add_type(module, &ext_group_spec, "Group", &ext_group_type) ||
        add_type(module, &ext_request_spec, "Request", &ext_request_type) ||
        add_type(module, &ext_slot_spec, "Slot", &ext_slot_type)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
