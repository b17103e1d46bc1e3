"""Custom classifiers, named `classifiers_for_tests:<function>`."""

import os

import numpy as np
from data_sets_for_tests import table_dataset
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, RadiusNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from pate_tf.core.dataset import Dataset

TABLE = table_dataset(4, -1.0, 1.0)


def scaled_logistic(dataset: Dataset):
    return make_pipeline(StandardScaler(), LogisticRegression())


def scaled_sgd(dataset: Dataset):
    return make_pipeline(StandardScaler(), SGDClassifier())


def boosting(dataset: Dataset):
    return GradientBoostingClassifier(n_estimators=3)


def histogram_boosting(dataset: Dataset):
    return HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=3)


def neighbours(dataset: Dataset):
    return KNeighborsClassifier(3)


def tree(dataset: Dataset):
    return DecisionTreeClassifier()


def gaussian_process(dataset: Dataset):
    return GaussianProcessClassifier()


def calibrated(dataset: Dataset):
    return CalibratedClassifierCV(LinearSVC(), cv=2)


def searched(dataset: Dataset):
    return GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)


STORABLE = [
    *(scaled_logistic, scaled_sgd, boosting, histogram_boosting, neighbours, tree),
    *(gaussian_process, calibrated, searched),
]


def refuses_negative_numbers(dataset: Dataset):
    return MultinomialNB()


def refuses_far_inputs(dataset: Dataset):
    return RadiusNeighborsClassifier(radius=1e-3)


def runs_a_command(dataset: Dataset):
    return make_pipeline(FunctionTransformer(os.system), LogisticRegression())


class Own(LogisticRegression):
    """A class that only the user's module defines."""


def own_class(dataset: Dataset):
    return Own()


class Diverged(LogisticRegression):
    def fit(self, inputs, labels):
        super().fit(inputs, labels)
        self.coef_ = self.coef_ * np.nan
        return self


def diverged(dataset: Dataset):
    return Diverged()
