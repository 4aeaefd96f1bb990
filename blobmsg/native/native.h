/* What the C files of blobmsg.native share. Each function and type has a twin in Python, which
 * serves where no compiler built this: blobmsg/record_step.py with the fields of
 * blobmsg/core/step_fields.py, and blobmsg/format/segment.py. */

#ifndef BLOBMSG_NATIVE_H
#define BLOBMSG_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_BIG_ENDIAN
#error "the formats are little-endian: the Python code serves here"
#endif
#if SIZEOF_VOID_P < 8
#error "lengths are added up in 64 bits: the Python code serves here"
#endif

/* Add the types and functions of a file to the module; -1 with an exception on failure. */
int blobmsg_add_record_step(PyObject *module);
int blobmsg_add_segment(PyObject *module);

#endif
