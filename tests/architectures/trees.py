"""Tree ensembles of scikit-learn, LightGBM and XGBoost, by skl2onnx and onnxmltools."""

import numpy as np

from .registry import Converted, architecture

rows = architecture(("converter",), batch=(6, 11))
COLUMNS = 7
SEED = 0


def data(classes: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [200, 7], labels, and numbers to predict."""
    generator = np.random.default_rng(SEED)
    features = generator.normal(size=(200, COLUMNS)).astype(np.float32)
    number = features @ generator.normal(size=COLUMNS) + np.sin(3 * features[:, 0])
    labels = np.digitize(number, np.quantile(number, np.arange(1, classes) / classes))
    return features, labels, number.astype(np.float32)


def batch_of(count: int = COLUMNS):
    def inputs(batch):
        generator = np.random.default_rng(1)
        return {"x": generator.normal(size=(batch, count)).astype(np.float32)}

    return inputs


def sklearn(estimator, options: dict | None = None) -> Converted:
    """A fitted estimator of scikit-learn."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    def model(batch):
        return to_onnx(
            estimator,
            initial_types=[("x", FloatTensorType([batch, COLUMNS]))],
            target_opset={"": 18, "ai.onnx.ml": 3},
            options={id(estimator): options} if options else None,
        )

    return Converted(model, batch_of())


def onnxmltools(estimator, library: str) -> Converted:
    import onnxmltools as tools
    from onnxmltools.convert.common.data_types import FloatTensorType

    def model(batch):
        convert = getattr(tools, f"convert_{library}")
        return convert(
            estimator, initial_types=[("x", FloatTensorType([batch, COLUMNS]))], target_opset=15
        )

    return Converted(model, batch_of())


def fitted(kind: str, *, predicts: str = "labels", classes: int = 3, module: str = "ensemble",
           options: dict | None = None, **settings) -> Converted:  # fmt: skip
    from importlib import import_module

    features, labels, number = data(classes)
    estimator = getattr(import_module(f"sklearn.{module}"), kind)(random_state=SEED, **settings)
    estimator.fit(features, labels if predicts == "labels" else number)
    return sklearn(estimator, options)


@rows
def decision_tree():
    return fitted("DecisionTreeClassifier", module="tree", max_depth=5, options={"zipmap": False})


@rows
def decision_tree_regressor():
    return fitted("DecisionTreeRegressor", module="tree", predicts="number", max_depth=5)


@rows
def random_forest():
    return fitted("RandomForestClassifier", n_estimators=10, max_depth=5)


@rows
def random_forest_regressor():
    return fitted("RandomForestRegressor", predicts="number", n_estimators=10, max_depth=5)


@rows
def extra_trees():
    return fitted("ExtraTreesClassifier", n_estimators=10, max_depth=5, options={"zipmap": False})


@rows
def gradient_boosting():
    return fitted("GradientBoostingClassifier", n_estimators=10)


@rows
def gradient_boosting_binary():
    return fitted("GradientBoostingClassifier", classes=2, n_estimators=10)


@rows
def histogram_gradient_boosting():
    return fitted("HistGradientBoostingRegressor", predicts="number", max_iter=10)


@rows
def isolation_forest():
    return fitted("IsolationForest", n_estimators=10)


@rows
def ada_boost():
    return fitted("AdaBoostClassifier", n_estimators=5, options={"zipmap": False})


@rows
def lightgbm_classifier():
    from lightgbm import LGBMClassifier

    features, labels, _ = data()
    return onnxmltools(
        LGBMClassifier(n_estimators=10, verbose=-1).fit(features, labels), "lightgbm"
    )


@rows
def lightgbm_regressor():
    from lightgbm import LGBMRegressor

    features, _, number = data()
    return onnxmltools(LGBMRegressor(n_estimators=10, verbose=-1).fit(features, number), "lightgbm")


@rows
def xgboost_classifier():
    from xgboost import XGBClassifier

    features, labels, _ = data()
    return onnxmltools(XGBClassifier(n_estimators=10, max_depth=4).fit(features, labels), "xgboost")


@rows
def xgboost_regressor():
    from xgboost import XGBRegressor

    features, _, number = data()
    return onnxmltools(XGBRegressor(n_estimators=10, max_depth=4).fit(features, number), "xgboost")
