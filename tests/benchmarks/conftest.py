import sys

from script_processes import REPOSITORY

sys.path.insert(0, str(REPOSITORY))  # for `import benchmarks`
