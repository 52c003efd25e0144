"""Windows and steps, for every size."""

from hypothesis import given
from hypothesis import strategies as st

from ninfer_perplexity.windows import Window, chunks, windows

sizes = st.integers(2, 60).flatmap(
    lambda context: st.tuples(
        st.integers(0, 300), st.just(context), st.integers(1, context - 1)
    )
)


@given(sizes)
def test_every_token_after_the_first_is_a_target_once_in_order(size):
    num_tokens, *_ = size
    found = [t for window in windows(*size) for t in range(window.first, window.end)]
    assert found == list(range(1, num_tokens))


@given(sizes)
def test_windows_are_where_they_are_said_to_be(size):
    num_tokens, context, stride = size
    spans = [*windows(*size)]
    for index, window in enumerate(spans):
        assert window.begin == index * stride
        assert window.end == min(window.begin + context, num_tokens)
        assert window.first - window.begin == (context - stride if index else 1)


@given(sizes, st.integers(1, 40), st.data())
def test_steps_read_a_window_once_within_their_limits(size, most, data):
    most_targets = data.draw(st.integers(1, most))
    for window in windows(*size):
        steps = [*chunks(window, most, most_targets)]
        read = [token for step in steps for token in range(step.begin, step.end)]
        targets = [
            token + 1 for step in steps for token in range(step.end - step.num_targets, step.end)
        ]
        assert read == list(range(window.begin, window.end - 1))
        assert targets == list(range(window.first, window.end))
        for step in steps:
            assert 0 < step.end - step.begin <= most
            assert step.num_targets <= most_targets


def test_history_is_read_in_long_steps():
    steps = chunks(Window(0, 200, 300), 128, 64)
    assert [(step.begin, step.end, step.num_targets) for step in steps] == [
        (0, 128, 0), (128, 192, 0), (192, 256, 57), (256, 299, 43),
    ]
