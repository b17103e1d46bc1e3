import pathlib
import sys

# `table_helpers` and `image_builders`, for the tests here and those of other folders.
sys.path.append(str(pathlib.Path(__file__).parent))
