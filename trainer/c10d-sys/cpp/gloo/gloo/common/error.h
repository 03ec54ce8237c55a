#include "gloo_decls.h"
