"""A process that trains teachers on few digits until it is killed.

Usage: killed_teachers.py FOLDER FUNCTION_OF_API_HELPERS NUM_TEACHERS
"""

import sys

import api_helpers

import pate_tf

if __name__ == "__main__":
    folder, net, number = sys.argv[1:]
    teachers = pate_tf.Teachers(
        getattr(api_helpers, net), num_teachers=int(number), steps=5, directory=folder
    )
    teachers.fit(api_helpers.digits().private)
