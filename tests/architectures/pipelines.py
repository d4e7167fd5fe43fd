"""Estimators and pipelines of scikit-learn beyond trees, by skl2onnx."""

import numpy as np

from .registry import Converted, architecture
from .trees import data, sklearn

rows = architecture(("converter",), batch=(6, 11))
PLAIN = {"zipmap": False}


def labelled(estimator, options: dict | None = None) -> Converted:
    features, labels, _ = data()
    return sklearn(estimator.fit(features, labels), options)


def measured(estimator, options: dict | None = None) -> Converted:
    features, _, number = data()
    return sklearn(estimator.fit(features, number), options)


@rows
def logistic_regression():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return labelled(make_pipeline(StandardScaler(), LogisticRegression()))


@rows
def polynomial_ridge():
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures

    return measured(make_pipeline(MinMaxScaler(), PolynomialFeatures(2), Ridge()))


@rows
def support_vectors():
    from sklearn.svm import SVC

    return labelled(SVC(probability=False), PLAIN)


@rows
def support_vector_regression():
    from sklearn.svm import SVR

    return measured(SVR())


@rows
def nearest_neighbours():
    from sklearn.neighbors import KNeighborsClassifier

    return labelled(KNeighborsClassifier(3), PLAIN)


@rows
def nearest_neighbours_regression():
    from sklearn.neighbors import KNeighborsRegressor

    return measured(KNeighborsRegressor(3))


@rows
def gaussian_process():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    return measured(GaussianProcessRegressor(RBF(3.0), alpha=0.5, optimizer=None))


@rows
def gaussian_mixture():
    from sklearn.mixture import GaussianMixture

    return labelled(GaussianMixture(3, random_state=0))


@rows
def naive_bayes():
    from sklearn.naive_bayes import GaussianNB

    return labelled(GaussianNB(), PLAIN)


@rows
def perceptron_classifier():
    from sklearn.neural_network import MLPClassifier

    return labelled(MLPClassifier((16,), max_iter=50, random_state=0), PLAIN)


@rows
def k_means():
    from sklearn.cluster import KMeans

    return labelled(KMeans(4, n_init=1, random_state=0))


@rows
def principal_components():
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    return measured(make_pipeline(PCA(3), LinearRegression()))


@rows
def voting():
    from sklearn.ensemble import VotingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    members = [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=4))]
    return labelled(VotingClassifier(members, voting="soft", flatten_transform=False), PLAIN)


@rows
def stacking():
    from sklearn.ensemble import StackingRegressor
    from sklearn.linear_model import Lasso, LinearRegression
    from sklearn.tree import DecisionTreeRegressor

    members = [("a", Lasso(0.1)), ("b", DecisionTreeRegressor(max_depth=4))]
    return measured(StackingRegressor(members, LinearRegression()))


@rows
def columns_of_types():
    """Numbers are imputed and scaled, words become one-hot; then a forest."""
    import pandas
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    words = np.array(["red", "green", "blue"])

    def table(count, seed):
        generator = np.random.default_rng(seed)
        numbers = generator.normal(size=(count, 2)).astype(np.float32)
        numbers[::4, 0] = np.nan
        return numbers, words[generator.integers(3, size=count)]

    numbers, colours = table(100, 0)
    frame = pandas.DataFrame({"a": numbers[:, 0], "b": numbers[:, 1], "colour": colours})
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["colour"]),
        ]
    )
    estimator = make_pipeline(columns, RandomForestClassifier(5, max_depth=4, random_state=0))
    estimator.fit(frame, (numbers[:, 1] > 0) ^ (colours == "red"))

    def model(batch):
        types = [(name, FloatTensorType([batch, 1])) for name in ("a", "b")]
        return to_onnx(
            estimator,
            initial_types=[*types, ("colour", StringTensorType([batch, 1]))],
            target_opset={"": 18, "ai.onnx.ml": 3},
        )

    def inputs(batch):
        numbers, colours = table(batch, 1)
        return {
            "a": numbers[:, :1],
            "b": numbers[:, 1:],
            "colour": colours[:, None].astype(object),
        }

    return Converted(model, inputs)


@rows
def bag_of_words():
    """TF-IDF of words, and a linear classifier."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = np.array("this is a small corpus of some words about trees and forests".split())

    def sentences(count, seed):
        generator = np.random.default_rng(seed)
        return [" ".join(generator.choice(words, 6)) for _ in range(count)]

    texts = sentences(60, 0)
    estimator = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression())
    estimator.fit(texts, ["trees" in text for text in texts])

    def model(batch):
        return to_onnx(
            estimator,
            initial_types=[("x", StringTensorType([batch, 1]))],
            options={TfidfVectorizer: {"locale": "C"}},  # which every system has
            target_opset={"": 18, "ai.onnx.ml": 3},
        )

    return Converted(
        model, lambda batch: {"x": np.array(sentences(batch, 1), dtype=object)[:, None]}
    )


def after(*steps, measures: bool = False) -> Converted:
    """A pipeline of ``steps``."""
    from sklearn.pipeline import make_pipeline

    return (measured if measures else labelled)(make_pipeline(*steps))


@rows
def robust_elastic_net():
    from sklearn.linear_model import ElasticNet
    from sklearn.preprocessing import RobustScaler

    return after(RobustScaler(), ElasticNet(0.1), measures=True)


@rows
def binned_linear():
    from sklearn.linear_model import LinearRegression
    from sklearn.preprocessing import KBinsDiscretizer

    return after(KBinsDiscretizer(4, encode="onehot-dense"), LinearRegression(), measures=True)


@rows
def power_ridge():
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import PowerTransformer

    return after(PowerTransformer(), BayesianRidge(), measures=True)


@rows
def selected_linear_svm():
    from sklearn.feature_selection import SelectKBest
    from sklearn.preprocessing import Normalizer
    from sklearn.svm import LinearSVC

    return after(Normalizer(), SelectKBest(k=4), LinearSVC())


@rows
def stochastic_gradient():
    from sklearn.linear_model import SGDClassifier

    return labelled(SGDClassifier(loss="log_loss", random_state=0), PLAIN)


@rows
def linear_discriminant():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    return labelled(LinearDiscriminantAnalysis(), PLAIN)


@rows
def quadratic_discriminant():
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

    return labelled(QuadraticDiscriminantAnalysis(), PLAIN)


@rows
def calibrated():
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.naive_bayes import GaussianNB

    return labelled(CalibratedClassifierCV(GaussianNB(), cv=2), PLAIN)


@rows
def one_against_rest():
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    return labelled(OneVsRestClassifier(LogisticRegression()), PLAIN)


@rows
def bagging():
    from sklearn.ensemble import BaggingClassifier
    from sklearn.tree import DecisionTreeClassifier

    return labelled(BaggingClassifier(DecisionTreeClassifier(max_depth=3), 5, random_state=0),
                    PLAIN)  # fmt: skip


@rows
def one_class():
    from sklearn.svm import OneClassSVM

    return labelled(OneClassSVM())


@rows
def outlier_factor():
    from sklearn.neighbors import LocalOutlierFactor

    return labelled(LocalOutlierFactor(5, novelty=True))


@rows
def kernel_components():
    from sklearn.decomposition import KernelPCA

    return labelled(KernelPCA(3, kernel="rbf"))


@rows
def gaussian_process_classifier():
    from sklearn.gaussian_process import GaussianProcessClassifier

    return labelled(GaussianProcessClassifier(optimizer=None), PLAIN)


@rows
def partial_least_squares():
    from sklearn.cross_decomposition import PLSRegression

    return measured(PLSRegression(2))


@rows
def imputed_by_neighbours():
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.impute import KNNImputer

    return after(KNNImputer(n_neighbors=3), ExtraTreesRegressor(5, max_depth=4, random_state=0),
                 measures=True)  # fmt: skip


@rows
def poisson():
    from sklearn.linear_model import TweedieRegressor

    features, _, number = data()
    return sklearn(TweedieRegressor(power=1).fit(features, np.abs(number)))
