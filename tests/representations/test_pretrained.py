"""Encoders that a user brings, from memory and from disk, with both methods."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from encoder_helpers import moved, train_briefly

import pate_tf
from pate_tf.models.encoder import Encoder, SavedEncoder
from pate_tf.representations import catalogue
from pate_tf.representations.catalogue import Representation
from pate_tf.representations.pretrained import ModelPart
from pate_tf.serving.served import ServedStudent

DIGITS = pate_tf.Data.load("digits")
SHAPE = DIGITS.dataset.input_shape


def small(shape=SHAPE, seed=0) -> keras.Model:
    """Returns a small encoder with fixed weights, as if it had been trained elsewhere."""
    inputs = keras.Input(shape)
    actual = keras.layers.Rescaling(1 / 16)(inputs)
    weights = keras.initializers.RandomNormal(seed=seed)
    actual = keras.layers.Conv2D(24, 3, activation="relu", kernel_initializer=weights)(actual)
    return keras.Model(inputs, keras.layers.Flatten()(keras.layers.MaxPooling2D(2)(actual)))


def centred(model, pool, inputs):
    """Returns products of centered outputs, divided by their norms."""
    mean = model.predict(np.asarray(pool, np.float32), verbose=0).mean(axis=0)
    outputs = model.predict(np.asarray(inputs, np.float32), verbose=0) - mean
    outputs /= np.abs(outputs).max()
    outputs /= np.linalg.norm(outputs, axis=1, keepdims=True)
    return outputs @ outputs.T


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    with pytest.MonkeyPatch.context() as patch:
        train_briefly(patch, 3, 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    small().save(folder / "small.keras")
    small((12, 10, 3)).save(folder / "colours.keras")
    return folder


def test_file_model_and_function_are_the_same_encoder(folder):
    sources = (
        Representation(f"encoder:{folder}/small.keras"),
        Representation(small()),
        Representation(lambda dataset: small(dataset.input_shape)),
    )
    expected = centred(small(), DIGITS.pool.inputs, DIGITS.pool.inputs)
    for source in sources:
        assert source.fit(DIGITS.pool) is source
        features = source.transform(DIGITS.pool)
        np.testing.assert_allclose(features @ features.T, expected, atol=1e-4)


def test_images_are_brought_to_the_models_size_and_colours(folder):
    images = DIGITS.pool.inputs.astype(np.float32)
    resized = tf.image.resize(np.repeat(images, 3, axis=3), (12, 10))
    expected = centred(small((12, 10, 3)), resized, resized[:5])
    encoder = Representation(f"encoder:{folder}/colours.keras").fit(DIGITS.pool)
    features = encoder.transform(images[:5])
    np.testing.assert_allclose(features @ features.T, expected, atol=1e-3)


@pytest.mark.parametrize("of_teachers", [True, False])
def test_labels_are_by_an_encoder_and_the_statement_names_it(folder, tmp_path, of_teachers):
    mine = {"representation": f"encoder:{folder}/small.keras", "directory": tmp_path}
    teachers, sums = pate_tf.Teachers("ridge", num_teachers=40, **mine), pate_tf.FeatureSums(**mine)
    source = (teachers if of_teachers else sums).fit(DIGITS.private, DIGITS.pool)
    with pate_tf.Labeller(source, epsilon=20.0, delta=1e-5) as labeller:
        labels = labeller.label(DIGITS.pool)
        student = pate_tf.Student("supervised", steps=5).fit(DIGITS.pool, labels)
        published = student.publish(tmp_path / "released")
    given = labels.training_labels
    truth = DIGITS.public.pool.true_labels[np.asarray(given.query_indices)]
    assert (np.asarray(given.labels) == truth).mean() > 0.6
    assert published.statement.encoder.startswith("small.keras, weights ")
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert "holder vouches that no private record" in page and str(folder) not in page


def test_another_encoder_at_the_same_path_is_another_run(folder, tmp_path):
    path = tmp_path / "mine.keras"
    for seed in (0, 1):
        small(seed=seed).save(path)
        catalogue.encoder_of.cache_clear()
        teachers = pate_tf.Teachers(
            "ridge", num_teachers=5, representation=f"encoder:{path}", directory=tmp_path / "run"
        )
        if seed:
            with pytest.raises(ValueError, match="has teachers with other settings: encoder"):
                teachers.fit(DIGITS.private, DIGITS.pool)
            stored = pate_tf.Teachers.load(tmp_path / "run")
            with pate_tf.Labeller(stored, pate_tf.LaplaceNoisyMax(scale=0.5)) as labeller:
                with pytest.raises(ValueError, match="has changed since the teachers were"):
                    labeller.label(DIGITS.pool, 9)
                assert not labeller.spent().num_queries
        else:
            teachers.fit(DIGITS.private, DIGITS.pool)


def test_what_is_no_encoder_is_refused_in_one_line(folder, tmp_path):
    keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Lambda(lambda images: images)]
    ).save(tmp_path / "code.keras")
    inputs = keras.Input(SHAPE)
    flat = keras.layers.Flatten()(inputs)
    for name, message in (
        (f"encoder:{tmp_path}/none.keras", "is missing. Other encoders"),
        (f"encoder:{tmp_path}", "is missing. Other encoders"),
        (f"encoder:{tmp_path}/code.keras", "is not a Keras model, is damaged, or contains code"),
        (0.0 * flat + 1.0, "all inputs have the same outputs"),
        (keras.ops.log(flat - 99.0), "the model's outputs aren't finite"),
        (keras.ops.reshape(flat, (-1, 7, 64)), r"InvalidArgumentError \(Input to reshape"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            is_named = isinstance(name, str)
            Representation(name if is_named else keras.Model(inputs, name)).fit(DIGITS.pool)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="before transform"):
        Representation("raw").transform(DIGITS.pool)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Returns a file of weights of a small MobileNet."""
    path = tmp_path_factory.mktemp("weights") / "small.weights.h5"
    keras.utils.set_random_seed(0)
    network = keras.applications.MobileNet(alpha=0.25, weights=None, input_shape=(96, 96, 3))
    network.save_weights(path)
    return path


def test_a_network_by_name_takes_its_weights_from_a_file_without_its_top(weights):
    network = keras.applications.MobileNet(
        alpha=0.25, weights=None, include_top=False, pooling="avg", input_shape=(96, 96, 3)
    )
    network.load_weights(weights)
    images = np.repeat(DIGITS.pool.inputs * (255 / 16), 3, axis=3)
    prepared = keras.applications.mobilenet.preprocess_input(
        tf.image.resize(images, (96, 96), antialias=True)
    )
    encoder = Representation(f"MobileNet@96:{weights}").fit(DIGITS.pool)
    features = encoder.transform(DIGITS.pool)
    expected = centred(network, prepared, prepared)
    np.testing.assert_allclose(features @ features.T, expected, atol=0.02)


def test_wrong_names_and_files_are_refused_in_one_line(weights, monkeypatch):
    built, build = [], keras.applications.MobileNetV2

    def counting(*, alpha=1.0, **given):
        built.append(alpha)
        return build(alpha=alpha, **given)

    monkeypatch.setattr(keras.applications, "MobileNetV2", counting)
    monkeypatch.setattr(keras.applications, "VGG16", lambda **_: {}["network"])
    for name, message in (
        ("EfficientNetV2B9", "Did you mean EfficientNetV2B"),
        (f"mobilenet:{weights}", "Did you mean MobileNet"),
        ("MobileNet:none.h5", "none.h5 is missing: weights of MobileNet"),
        ("MobileNet@8", "in NAME@SIDE the name must be"),
        (f"ResNet50:{weights}", "does not contain weights of this network"),
        (f"MobileNetV2@96:{weights}", "does not contain weights of this network"),
        ("hub:", "must be hub:PRESET or hub:FOLDER"),
        ("VGG16", "Without a network connection use VGG16:FILE"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            Representation(name).fit(DIGITS.pool)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="this encoder needs images with one or three channels"):
        Representation("VGG16").fit(
            pate_tf.Data.from_arrays(
                np.eye(4), [0, 1, 0, 1], np.eye(4), num_classes=2, value_range=(0, 1)
            ).pool
        )
    assert len(built) == 2  # with and without top, but not for each of seven widths


def test_each_input_is_encoded_once_and_the_student_is_encoder_and_linear_head(
    folder, tmp_path, monkeypatch
):
    counts = {"pool": 0, "records": 0, "saved": 0}

    def counting(name, method):
        def call(self, inputs):
            counts[name] += int(np.any(getattr(inputs, "inputs", inputs), axis=(1, 2, 3)).sum())
            return method(self, inputs)

        return call

    for name, owner, method in (
        ("pool", ModelPart, "fit"),
        ("records", Encoder, "batch_features"),
        ("saved", SavedEncoder, "batch_features"),
    ):
        monkeypatch.setattr(owner, method, counting(name, getattr(owner, method)))
    catalogue.encoder_of.cache_clear()
    name = f"encoder:{folder}/small.keras"
    sums = pate_tf.FeatureSums(representation=name, directory=tmp_path / "sums")
    sums.fit(DIGITS.private, DIGITS.pool)
    with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
        labels = labeller.label(DIGITS.pool)
        student = pate_tf.Student().fit(DIGITS.pool, labels)
        published = student.publish(tmp_path / "released", evaluate_on=DIGITS.public)
    distinct = len(np.unique(DIGITS.private.inputs, axis=0))
    assert counts == {"pool": len(DIGITS.pool), "records": distinct, "saved": 0}
    assert student.kind == "linear_head" and published.measured["student_accuracy"] > 0.85
    served = tf.saved_model.load(str(published.student_folder)).signatures["serving_default"]
    images = DIGITS.held_out.inputs
    answers = served(image=tf.constant(images))["probabilities"]
    vectors = np.asarray(sums.vectors(images), np.float32)
    logits = vectors @ student.model._weights.numpy()
    np.testing.assert_allclose(answers, tf.nn.softmax(logits), atol=1e-4)


def test_without_a_pool_and_of_teachers_the_student_is_a_linear_head(folder, tmp_path):
    name, private = f"encoder:{folder}/small.keras", DIGITS.private
    alone = pate_tf.Data.from_arrays(
        private.inputs, private.labels, num_classes=10, value_range=(0, 16)
    )
    sums = pate_tf.FeatureSums(representation=small(), directory=tmp_path / "alone")
    teachers = pate_tf.Teachers("ridge", num_teachers=40, representation=name, directory=tmp_path)
    for source, data, least in (
        (sums.fit(alone.private, alone.pool), alone, 0.8),
        (teachers.fit(private, DIGITS.pool), DIGITS, 0.65),
    ):
        with pate_tf.Labeller(source, epsilon=20.0, delta=1e-5) as labeller:
            student = pate_tf.Student().fit(data.pool, labeller.label(data.pool))
        assert student.kind == "linear_head"
        assert student.evaluate(DIGITS.held_out) > least


def test_a_folder_of_keras_hub_encodes_texts_and_the_student_takes_strings(tmp_path):
    hub = pytest.importorskip("keras_hub", reason="pip install 'pate_tf[hub]'")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    hub.tokenizers.BertTokenizer(vocabulary=words).save_to_preset(tmp_path / "bert")
    hub.models.BertBackbone(
        vocabulary_size=len(words), num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ).save_to_preset(tmp_path / "bert")
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 900)
    letters = [random.choice(list("abcdeefghij")[5 * label :][:6], 8) for label in labels]
    texts = np.array([" ".join(row) for row in letters], object)
    arrays = texts[:600], labels[:600], texts[600:], labels[600:]
    data = pate_tf.Data.from_arrays(*arrays, num_classes=2, kind="text", characters=20)
    sums = pate_tf.FeatureSums(representation=f"hub:{tmp_path}/bert", directory=tmp_path / "run")
    sums.fit(data.private, data.pool)
    with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
        student = pate_tf.Student().fit(data.pool, labeller.label(data.pool))
        published = student.publish(tmp_path / "released", evaluate_on=data.public)
    assert published.measured["student_accuracy"] > 0.9
    assert published.statement.encoder.startswith("hub:bert, weights ")
    answers = ServedStudent(published.student_folder).answer(data.held_out.inputs)[0]
    assert (answers == student.predict(np.array(texts[-len(answers) :], object))).all()
    plain = pate_tf.Data.from_arrays(*arrays, num_classes=2, kind="text")
    with pytest.raises(ValueError, match="texts must be kept as characters"):
        Representation(f"hub:{tmp_path}/bert").fit(plain.pool)


def test_presets_of_keras_hub_go_in_batches_and_one_that_keeps_words_is_refused(tmp_path):
    hub = pytest.importorskip("keras_hub", reason="pip install 'pate_tf[hub]'")
    sentencepiece = pytest.importorskip("sentencepiece", reason="pip install 'pate_tf[hub]'")
    models, tokenizers = hub.models, hub.tokenizers
    letters = list("abcdefghij")
    texts = np.array([" ".join(np.roll(letters, shift)[:8]) for shift in range(10)] * 12, object)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    pairs = {
        word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<mask>", *words, "ab"])
    }
    pieces = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=pieces, vocab_size=20, hard_vocab_limit=False
    )
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    for name, tokenizer, backbone in (
        ("word", tokenizers.BertTokenizer(vocabulary=words), models.BertBackbone),
        (
            "sentence",
            tokenizers.XLMRobertaTokenizer(proto=pieces.getvalue()),
            models.XLMRobertaBackbone,
        ),
        ("pair", tokenizers.RobertaTokenizer(pairs, merges=["a b"]), models.RobertaBackbone),
    ):
        tokenizer.save_to_preset(tmp_path / name)
        backbone(vocabulary_size=40, **sizes).save_to_preset(tmp_path / name)
    vit = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32, "patch_size": 8}
    models.ViTBackbone((32, 32, 3), **vit).save_to_preset(tmp_path / "image")
    hub.layers.ViTImageConverter(image_size=(32, 32)).save_to_preset(tmp_path / "image")
    labels = np.arange(120) % 2
    of_texts = pate_tf.Data.from_arrays(
        texts[:60], labels[:60], texts[60:], num_classes=2, kind="text", characters=20
    )
    for name, data in (("word", of_texts), ("sentence", of_texts), ("image", DIGITS)):
        encoder = Representation(f"hub:{tmp_path}/{name}").fit(data.pool).encoder_
        assert encoder.places > 1
        records = data.private.inputs[:24]
        changed = records.copy()
        changed[7] = records[8]
        assert moved(encoder, records, changed) == [7]
    with pytest.raises(ValueError, match="byte-pair tokenizer stores words of texts") as refused:
        Representation(f"hub:{tmp_path}/pair").fit(of_texts.pool)
    assert "\n" not in str(refused.value)
