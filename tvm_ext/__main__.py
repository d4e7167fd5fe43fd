"""``python -m tvm_ext`` is ``tvm-ext``."""

import sys

from .cli import main

sys.exit(main())
