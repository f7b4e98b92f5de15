"""What clients learn from and with: data sets, their split among clients, models, and cohorts trained together."""

import os

# Intel's MKL, with which PyTorch multiplies, chooses kernels by where arrays lie in memory; on AMD's processors the
# last bits differ. "AUTO" keeps it from that, at no cost that could be measured. It is read at the first product.
os.environ.setdefault("MKL_CBWR", "AUTO")
