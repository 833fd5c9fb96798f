/* mstar.h - everything: the ragged attention wrappers, the ops, graph configs, the model layer. */
#ifndef MSTAR_H
#define MSTAR_H

#include "mstar/attention.h"
#include "mstar/base.h"
#include "mstar/device.h"
#include "mstar/graph.h"
#include "mstar/model.h"
#include "mstar/node.h"
#include "mstar/ops.h"
#include "mstar/ragged.h"
#include "mstar/region.h"
#include "mstar/runner.h"
#include "mstar/step.h"
#include "mstar/tensor.h"

#endif
