/* blobmsg.native._native: the module. */

#include "native.h"

PyObject *blobmsg_new_fields(PyTypeObject *type, PyObject *Py_UNUSED(args),
                             PyObject *Py_UNUSED(kwargs))
{
    return type->tp_alloc(type, 0);
}

int blobmsg_init_fields(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args),
                        PyObject *Py_UNUSED(kwargs))
{
    return 0;
}

static int execute(PyObject *module)
{
    if (blobmsg_add_rows(module) < 0 || blobmsg_add_record_step(module) < 0 ||
        blobmsg_add_cells(module) < 0 || blobmsg_add_message(module) < 0)
        return -1;
    return blobmsg_add_segment(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#ifdef Py_mod_multiple_interpreters /* the types are the process's */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "The inner loops of the record path, in C.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
