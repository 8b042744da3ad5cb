"""scikit-learn: a grid search, cross validation and a forest, in the workers of a joblib backend."""

import joblib
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

BACKEND = "loky"


def search(x, y):
    model = make_pipeline(StandardScaler(), SVC(random_state=0))
    grid = {"svc__C": [0.1, 1.0, 10.0], "svc__gamma": [0.01, 0.1], "svc__kernel": ["rbf", "linear"]}
    found = GridSearchCV(model, grid, cv=4).fit(x, y)
    print(found.best_params_, round(found.best_score_, 6))
    print(np.round(found.cv_results_["mean_test_score"], 6).tolist())


def grow(x, y):
    forest = RandomForestClassifier(n_estimators=20, random_state=0)
    print(np.round(cross_val_score(forest, x, y, cv=3), 6).tolist())
    # its own Parallel asks for shared memory, which is threads
    print(round(forest.fit(x, y).score(x, y), 6))


def fail(x, y):
    try:
        GridSearchCV(SVC(), {"C": [-1.0]}, error_score="raise").fit(x, y)
    except ValueError as error:
        print("ValueError:", str(error).splitlines()[0][:60])


def main():
    x, y = make_classification(n_samples=200, n_features=10, random_state=3)
    with joblib.parallel_config(backend=BACKEND, n_jobs=2):
        search(x, y)
        grow(x, y)
        fail(x, y)


if __name__ == "__main__":
    main()
