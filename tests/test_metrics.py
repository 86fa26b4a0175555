"""Metrics against closed forms, brute force and degenerate inputs."""

from time import process_time  # CPU time: others share the machine

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from pmcl.metrics import (
    agreement,
    alarm,
    apart,
    c2st,
    coverage,
    importance_diagnostics,
    khat_threshold,
    learned,
    median_squared_distance,
    mmd2_unbiased,
    null_mmd2,
    pit,
    posterior_discrepancy,
    resample,
    standardise,
    tarp,
    unlike,
)


def gaussian_log_ratio(rng, size, *, mean=0.0, sd=1.0):
    """Log ratio of N(mean, sd^2) over N(0, 1) at draws of the latter."""
    z = rng.normal(size=size)
    return stats.norm.logpdf(z, mean, sd) - stats.norm.logpdf(z)


# importance weights


def test_khat_of_a_known_heavy_tail_has_the_right_sign():
    log_ratio = gaussian_log_ratio(np.random.default_rng(1), (50, 4000), sd=2.0)
    khat = importance_diagnostics(log_ratio).khat
    assert abs(khat.mean() - 0.66) < 0.07
    # the other way round the weights are bounded
    assert np.all(importance_diagnostics(-log_ratio).khat < 0)


@pytest.mark.parametrize("shape", [0.3, 0.6, 1.0])
def test_khat_is_the_shape_of_pareto_weights(shape):
    # exp(k E) with E exponential is Pareto with shape k, whatever the constant
    log_ratio = shape * np.random.default_rng(2).exponential(size=(20, 4000)) - 700.0
    khat = importance_diagnostics(log_ratio).khat
    # sd of one estimate is about (1 + k) / sqrt(190 tail draws); the prior pulls 5 % to 0.5
    expected = shape + 10 / 199 * (0.5 - shape)
    assert abs(khat.mean() - expected) < 4 * (1 + shape) / np.sqrt(189 * 20)


@pytest.mark.parametrize("mean", [0.2, 0.7])
def test_efficiency_and_error_have_the_closed_form_of_shifted_gaussians(mean):
    n_draws = 200_000
    log_ratio = gaussian_log_ratio(np.random.default_rng(3), n_draws, mean=mean)
    result = importance_diagnostics(log_ratio)
    assert result.efficiency == pytest.approx(np.exp(-(mean**2)), rel=0.02)
    error = np.sqrt(np.expm1(mean**2) / n_draws)
    assert result.log_evidence_error == pytest.approx(error, rel=0.02)
    assert abs(result.log_evidence) < 4 * error


def test_efficiency_has_the_closed_form_of_a_wider_target():
    # E_q[w^2] = 1 / (sd sqrt(2 - sd^2)), finite below sd^2 = 2
    log_ratio = gaussian_log_ratio(np.random.default_rng(4), 400_000, sd=1.1)
    expected = 1.1 * np.sqrt(2 - 1.1**2)
    assert importance_diagnostics(log_ratio).efficiency == pytest.approx(expected, rel=0.01)


def conjugate_normal(rng, n_observed=12):
    """Observations of theta ~ N(0, 1), x_i ~ N(theta, 1): posterior mean, sd, log evidence."""
    x = rng.normal(0.8, 1.0, n_observed)
    sd = 1 / np.sqrt(1 + n_observed)
    covariance = np.eye(n_observed) + 1.0
    evidence = stats.multivariate_normal(np.zeros(n_observed), covariance).logpdf(x)
    return x, sd**2 * x.sum(), sd, evidence


def conjugate_log_ratio(theta, x, mean, sd):
    joint = stats.norm.logpdf(theta)
    joint = joint + stats.norm.logpdf(x, theta[..., None], 1.0).sum(-1)
    return joint - stats.norm.logpdf(theta, mean, sd)


def test_evidence_and_its_error_of_a_conjugate_normal_model():
    rng = np.random.default_rng(5)
    x, mean, sd, evidence = conjugate_normal(rng)
    proposal = mean + 0.3 * sd, 1.2 * sd
    theta = rng.normal(*proposal, size=(400, 500))
    result = importance_diagnostics(conjugate_log_ratio(theta, x, *proposal))
    z = (result.log_evidence - evidence) / result.log_evidence_error
    assert abs(z.mean()) < 4 / np.sqrt(400) + 0.05  # the log's own bias is -error / 2 here
    assert 0.9 < z.std() < 1.1
    assert np.all(result.khat < khat_threshold(500))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exact_posterior_is_perfect(dtype):
    rng = np.random.default_rng(6)
    x, mean, sd, evidence = conjugate_normal(rng)
    log_ratio = conjugate_log_ratio(rng.normal(mean, sd, size=(3, 1000)), x, mean, sd)
    result = importance_diagnostics(log_ratio.astype(dtype))
    assert np.all(result.khat == -np.inf)
    np.testing.assert_allclose(result.efficiency, 1.0, rtol=1e-9)
    np.testing.assert_allclose(result.log_evidence, evidence, rtol=1e-6)
    np.testing.assert_allclose(result.log_weights, -np.log(1000), atol=1e-5)


@pytest.mark.parametrize("n_draws", [50, 1000, 4000])
def test_weights_that_are_nearly_equal_have_no_tail_to_be_judged(n_draws):
    eps = np.random.default_rng(8).normal(size=(200, n_draws))
    # a proposal that is right but for its far tails: the fitted shapes would lie anywhere
    nearly = 0.004 * np.maximum(np.abs(eps) - 2, 0) ** 2
    assert (importance_diagnostics(nearly).khat == -np.inf).all()
    # and one whose every tail is too light, by which the shape is 0.9
    assert (importance_diagnostics(0.45 * eps**2).khat > -np.inf).all()


@pytest.mark.parametrize("n_draws", [1, 2, 24, 25, 1000])
def test_constant_ratios_of_any_number_of_draws(n_draws):
    result = importance_diagnostics(np.full(n_draws, -1234.5))
    assert result.khat == -np.inf
    assert result.efficiency == 1.0
    assert result.log_evidence == pytest.approx(-1234.5, abs=1e-9)
    assert result.log_evidence_error == (np.inf if n_draws == 1 else 0.0)


def test_raw_numbers_agree_with_brute_force():
    log_ratio = np.random.default_rng(7).normal(-800, 1.5, size=(2, 3, 300))
    result = importance_diagnostics(log_ratio)
    assert result.khat.shape == result.efficiency.shape == (2, 3)
    w = np.exp(log_ratio + 800)
    np.testing.assert_allclose(result.efficiency, w.sum(-1) ** 2 / (300 * (w**2).sum(-1)))
    np.testing.assert_allclose(result.log_evidence, np.log(w.mean(-1)) - 800)
    error = w.std(-1, ddof=1) / w.mean(-1) / np.sqrt(300)
    np.testing.assert_allclose(result.log_evidence_error, error)


def test_smoothed_weights_are_normalised_keep_their_order_and_their_body():
    log_ratio = gaussian_log_ratio(np.random.default_rng(8), (4, 1000), sd=2.0)
    smoothed = importance_diagnostics(log_ratio).log_weights
    np.testing.assert_allclose(logsumexp(smoothed, axis=-1), 0.0, atol=1e-12)
    for raw, new in zip(log_ratio, smoothed, strict=True):
        order = np.argsort(raw)
        assert np.all(np.diff(new[order]) >= 0)
        body = order[: 1000 - 94]  # 3 sqrt(1000) draws are the tail
        np.testing.assert_allclose(np.ptp((new - raw)[body]), 0.0, atol=1e-9)
        assert np.ptp((new - raw)[order[1000 - 94 :]]) > 1e-3


def test_smoothing_lowers_the_error_of_the_estimated_variance():
    # E_p[z^2] = 2.25 from draws of N(0, 1): infinite variance for the raw weights
    rng = np.random.default_rng(9)
    z = rng.normal(size=(400, 1000))
    log_ratio = stats.norm.logpdf(z, 0, 1.5) - stats.norm.logpdf(z)
    raw = np.exp(log_ratio - logsumexp(log_ratio, axis=-1, keepdims=True))
    smooth = np.exp(importance_diagnostics(log_ratio).log_weights)
    raw_rmse, smooth_rmse = (
        np.sqrt(np.mean((np.sum(w * z**2, axis=-1) - 2.25) ** 2)) for w in (raw, smooth)
    )
    assert smooth_rmse < raw_rmse


def test_nan_is_a_draw_of_weight_zero():
    clean = gaussian_log_ratio(np.random.default_rng(10), 900, mean=0.5)
    for bad in (np.nan, -np.inf):
        result = importance_diagnostics(np.append(clean, np.full(100, bad)))
        reference = importance_diagnostics(clean)
        assert result.finite_fraction == pytest.approx(0.9)
        assert result.khat == pytest.approx(float(reference.khat))
        assert result.efficiency == pytest.approx(0.9 * reference.efficiency)
        assert result.log_evidence == pytest.approx(reference.log_evidence + np.log(0.9))
        assert np.all(result.log_weights[900:] == -np.inf)
        np.testing.assert_allclose(result.log_weights[:900], reference.log_weights)


def test_plus_infinity_is_an_alarm_that_leaves_the_rest_usable():
    clean = gaussian_log_ratio(np.random.default_rng(11), 999, mean=0.5)
    result = importance_diagnostics(np.append(clean, np.inf))
    assert result.khat == np.inf
    assert result.finite_fraction == pytest.approx(0.999)
    assert result.log_weights[-1] == -np.inf
    assert np.isfinite(result.log_evidence)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_no_usable_draw(bad):
    good = np.random.default_rng(12).normal(size=100)
    result = importance_diagnostics(np.stack([np.full(100, bad), good]))
    assert result.khat[0] == np.inf
    assert result.efficiency[0] == 0.0
    assert result.finite_fraction.tolist() == [0.0, 1.0]
    np.testing.assert_allclose(result.log_weights[0], -np.log(100))
    assert result.log_evidence[0] == -np.inf
    assert result.log_evidence_error[0] == np.inf
    alone = importance_diagnostics(good)
    for field, field_alone in zip(result, alone, strict=True):
        np.testing.assert_array_equal(field[1], field_alone)


@pytest.mark.parametrize(
    "log_ratio",
    [
        np.random.default_rng(13).normal(size=1000) * 1e5,
        np.random.default_rng(13).normal(size=24),
        np.where(np.arange(1000) == 0, 0.0, -np.inf),
        np.where(np.arange(1000) < 10, np.arange(1000.0), np.nan),
        np.where(np.arange(1000) == 0, 0.0, -800.0 - np.arange(1000.0)),
        np.array([0.0, 5.0]),
    ],
    ids=["huge spread", "24 draws", "one draw", "ten draws", "one draw owns all", "two draws"],
)
def test_hopeless_or_too_few_draws_are_never_called_good(log_ratio):
    result = importance_diagnostics(log_ratio)
    assert result.khat > khat_threshold(log_ratio.size)
    assert result.efficiency < 0.6
    assert not any(np.isnan(field).any() for field in result)
    assert logsumexp(result.log_weights) == pytest.approx(0.0, abs=1e-12)


def test_bounded_weights_with_a_tied_tail_have_no_tail():
    log_ratio = np.where(np.arange(1000) % 3 == 0, 1.0, 0.0)
    result = importance_diagnostics(log_ratio)
    assert result.khat == -np.inf
    w = np.exp(log_ratio)
    assert result.efficiency == pytest.approx(w.sum() ** 2 / (1000 * (w**2).sum()))


def test_a_hundred_datasets_take_less_than_a_fifth_of_a_second():
    log_ratio = gaussian_log_ratio(np.random.default_rng(14), (100, 1000), sd=1.3)
    importance_diagnostics(log_ratio[:1])
    times = []
    for _ in range(5):
        start = process_time()
        importance_diagnostics(log_ratio)
        times.append(process_time() - start)
    assert min(times) < 0.2


def test_empty_batch_and_wrong_shapes():
    assert importance_diagnostics(np.zeros((0, 10))).khat.shape == (0,)
    for bad in (1.0, np.zeros((3, 0))):
        with pytest.raises(ValueError, match="log_ratio: expected shape"):
            importance_diagnostics(bad)


def test_khat_threshold():
    assert khat_threshold(100) == pytest.approx(0.5)
    assert khat_threshold(1000) == pytest.approx(2 / 3)
    assert khat_threshold(10_000) == 0.7
    with pytest.raises(ValueError, match="n_draws"):
        khat_threshold(1)


# resampling


def test_resampling_counts_are_within_one_of_expected_and_unbiased():
    rng = np.random.default_rng(15)
    weights = rng.dirichlet(np.full(30, 0.3))
    weights[[0, 7, 29]] = 0.0
    weights /= weights.sum()
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights) + 345.0  # normalised or not
    counts = np.stack(
        [np.bincount(resample(log_weights, 50, rng), minlength=30) for _ in range(4000)]
    )
    assert np.all(np.abs(counts - 50 * weights) < 1)
    assert np.all(counts[:, [0, 7, 29]] == 0)
    # a count is one of two neighbouring integers, so its sd is at most 1/2
    assert np.max(np.abs(counts.mean(0) - 50 * weights)) < 4.5 * 0.5 / np.sqrt(4000)


def test_resampling_order_is_random_and_seeded():
    uniform = np.zeros(200)
    index = resample(uniform, 200, np.random.default_rng(16))
    assert sorted(index) == list(range(200))
    assert abs(stats.spearmanr(index, np.arange(200)).statistic) < 0.3
    np.testing.assert_array_equal(index, resample(uniform, 200, np.random.default_rng(16)))
    assert resample(uniform, 0, np.random.default_rng(0)).shape == (0,)


@pytest.mark.parametrize("start", [0.0, np.nextafter(1.0, 0.0)])
def test_resampling_at_either_end_takes_no_draw_of_weight_zero(start):
    class EndPoint:
        def random(self):
            return start

        def permutation(self, x):
            return x

    index = resample(np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf]), 1_000_000, EndPoint())
    assert set(index) == {1, 3}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.full(3, -np.inf), "at least one finite"),
        (np.array([0.0, np.nan]), "1 NaN"),
        (np.array([0.0, np.inf]), "largest value of inf"),
        (np.zeros((2, 3)), r"expected shape \(draws,\)"),
        (np.zeros(0), r"expected shape \(draws,\)"),
    ],
)
def test_resampling_refuses(bad, message):
    with pytest.raises(ValueError, match=message):
        resample(bad, 5, np.random.default_rng(0))


# discrepancy


def brute_force_mmd2(a, b, bandwidth):
    def k(x, y):
        return np.exp(-sum((p - q) ** 2 for p, q in zip(x, y, strict=True)) / bandwidth)

    n, m = len(a), len(b)
    within_a = sum(k(a[i], a[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    within_b = sum(k(b[i], b[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return within_a + within_b - 2 * np.mean([k(x, y) for x in a for y in b])


def gaussian_mmd2(mean_a, sd_a, mean_b, sd_b, bandwidth):
    """Closed form for diagonal Gaussians: a difference of draws is Gaussian."""

    def expected(mean, variance):
        return np.prod(
            np.exp(-(mean**2) / (bandwidth + 2 * variance)) / np.sqrt(1 + 2 * variance / bandwidth)
        )

    zero = np.zeros_like(mean_a)
    cross = expected(mean_a - mean_b, sd_a**2 + sd_b**2)
    return expected(zero, 2 * sd_a**2) + expected(zero, 2 * sd_b**2) - 2 * cross


def test_mmd_agrees_with_brute_force():
    rng = np.random.default_rng(20)
    a, b = rng.normal(size=(13, 3)), rng.normal(1, 2, size=(9, 3))
    expected = brute_force_mmd2(a, b, 4.2)
    assert mmd2_unbiased(a, b, bandwidth=4.2) == pytest.approx(expected, rel=1e-12)
    assert mmd2_unbiased(b, a, bandwidth=4.2) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("far", [False, True])
def test_mmd_is_unbiased_for_the_closed_form_of_gaussians(far):
    rng = np.random.default_rng(21)
    mean_a, sd_a = np.array([0.0, 1.0, -0.5]), np.array([1.0, 0.5, 2.0])
    mean_b = mean_a + (np.array([0.4, -0.3, 0.2]) if far else 0.0)
    sd_b = sd_a * (np.array([1.3, 0.8, 1.0]) if far else 1.0)
    expected = gaussian_mmd2(mean_a, sd_a, mean_b, sd_b, 5.0)
    values = [
        mmd2_unbiased(
            rng.normal(mean_a, sd_a, size=(60, 3)),
            rng.normal(mean_b, sd_b, size=(40, 3)),
            bandwidth=5.0,
        )
        for _ in range(600)
    ]
    assert (expected > 0.01) if far else (abs(expected) < 1e-15)
    # the biased estimate of the null would be near 1/60 + 1/40 = 0.04 above: 4 errors are 0.003
    assert np.std(values) / np.sqrt(600) < 0.001
    assert abs(np.mean(values) - expected) < 4 * np.std(values) / np.sqrt(600)
    assert far or 0.3 < np.mean(np.array(values) < 0) < 0.9


def test_median_squared_distance():
    x = np.random.default_rng(22).normal(size=(15, 4))
    brute = [np.sum((x[i] - x[j]) ** 2) for i in range(15) for j in range(i)]
    assert median_squared_distance(x) == pytest.approx(np.median(brute))
    # 2 chi^2 with D degrees of freedom for a standard normal
    x = np.random.default_rng(23).normal(size=(2000, 5))
    assert median_squared_distance(x) == pytest.approx(2 * stats.chi2(5).median(), rel=0.03)


def test_standardise():
    rng = np.random.default_rng(24)
    reference = rng.normal([3.0, -1e6], [0.1, 20.0], size=(500, 2))
    own = standardise(reference, reference)
    np.testing.assert_allclose(own.mean(0), 0.0, atol=1e-9)
    np.testing.assert_allclose(own.std(0, ddof=1), 1.0)
    shifted = standardise(reference + 2 * reference.std(0, ddof=1), reference)
    np.testing.assert_allclose(shifted.mean(0), 2.0)


def test_a_constant_dimension_is_only_centred():
    rng = np.random.default_rng(25)
    # the mean of a thousand times 0.1 is not 0.1, and its sd is not 0
    reference = np.column_stack([rng.normal(size=1000), np.full(1000, 0.1)])
    assert np.all(standardise(reference, reference)[:, 1] == 0.0)
    result = posterior_discrepancy(reference + [0, 0.5], reference, rng=rng)
    np.testing.assert_allclose(result.signed_bias_mean, [0.0, 0.5], atol=1e-12)
    np.testing.assert_allclose(result.signed_bias_sd, [0.0, -1.0], atol=1e-12)
    stuck = posterior_discrepancy(np.ones((20, 2)), np.ones((20, 2)), rng=rng)
    assert stuck.mmd2 == 0.0
    assert stuck.bandwidth == 1.0


def test_discrepancy_of_known_bias_on_any_scale():
    rng = np.random.default_rng(26)
    mean, sd = np.array([5.0, -300.0, 0.01]), np.array([2.0, 40.0, 1e-4])
    shift, widen = np.array([0.5, -0.25, 0.0]), np.array([1.0, 1.2, 0.7])
    reference = rng.normal(mean, sd, size=(4000, 3))
    draws = rng.normal(mean + shift * sd, sd * widen, size=(4000, 3))
    result = posterior_discrepancy(draws, reference, rng=rng)
    error = 4 * np.sqrt(2 / 4000)
    np.testing.assert_allclose(result.signed_bias_mean, shift, atol=error)
    np.testing.assert_allclose(result.signed_bias_sd, widen - 1, atol=error)
    assert result.bias_mean == pytest.approx(0.25, abs=error)
    assert result.bias_sd == pytest.approx(0.5 / 3, abs=error)
    assert result.bandwidth == pytest.approx(2 * stats.chi2(3).median(), rel=0.1)
    zero, one = np.zeros(3), np.ones(3)
    expected = gaussian_mmd2(shift, widen, zero, one, result.bandwidth)
    assert result.mmd2 == pytest.approx(expected, abs=0.008)
    assert expected > 0.03


def test_discrepancy_of_all_draws_is_the_composition_of_its_parts():
    rng = np.random.default_rng(27)
    draws, reference = rng.normal(0.3, 1, (70, 2)), rng.normal(size=(90, 2))
    result = posterior_discrepancy(draws, reference, rng=rng)
    a, b = standardise(draws, reference), standardise(reference, reference)
    assert result.bandwidth == median_squared_distance(b)
    assert result.mmd2 == mmd2_unbiased(a, b, bandwidth=result.bandwidth)
    same = null_mmd2(reference, draws, rng=rng)
    assert same == result.mmd2


def test_thinning_is_even_without_repeats_and_reaches_every_draw():
    from pmcl.metrics.discrepancy import _thin

    rng = np.random.default_rng(28)
    x = np.arange(2500.0)[:, None]
    seen = np.zeros(2500)
    for _ in range(500):
        index = _thin(x, 1000, rng)[:, 0].astype(int)
        assert index.size == 1000
        assert set(np.diff(index)) <= {2, 3}
        seen[index] += 1
    # each draw is kept with probability 0.4
    assert np.all(np.abs(seen / 500 - 0.4) < 5 * np.sqrt(0.24 / 500))
    assert _thin(x, 2500, rng) is x


def test_discrepancy_of_a_thousand_draws_is_quick():
    rng = np.random.default_rng(29)
    a, b = rng.normal(size=(2, 1000, 7))
    times = []
    for _ in range(3):
        start = process_time()
        posterior_discrepancy(a, b, rng=rng)
        times.append(process_time() - start)
    assert min(times) < 0.2


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((5, 2)), np.zeros((5, 3)), "draws: expected 3 dimensions as reference has"),
        (np.zeros(5), np.zeros((5, 1)), "draws: expected shape"),
        (np.zeros((5, 1)), np.zeros((1, 1)), "reference: expected shape"),
        (np.array([[0.0], [np.nan], [1.0]]), np.zeros((5, 1)), "draws: .* got 1 of 3 with NaN"),
    ],
)
def test_discrepancy_refuses(a, b, message):
    with pytest.raises(ValueError, match=message):
        posterior_discrepancy(a, b, rng=np.random.default_rng(0))


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, np.nan, np.inf])
def test_mmd_refuses_a_bandwidth(bandwidth):
    with pytest.raises(ValueError, match="bandwidth: expected a positive"):
        mmd2_unbiased(np.eye(3), np.eye(3), bandwidth=bandwidth)


# agreement


def test_agreement_of_known_counts():
    null = np.arange(1, 201) / 200  # its 99 % quantile is 0.99
    values = np.full(100, 0.5)
    # of 100 datasets, a binomial with 1 % has at most 4 at its 99 % quantile
    for exceptions, agrees in ((0, True), (4, True), (5, False)):
        values[:exceptions] = 0.991
        result = agreement(values, null)
        assert result == (pytest.approx(0.99), exceptions, 4, agrees)
    assert agreement(np.zeros(10), null).allowed == 1
    assert agreement(np.zeros(1), null).allowed == 0
    assert agreement(np.zeros(10), null, level=0.9).allowed == stats.binom.ppf(0.99, 10, 0.1)
    assert agreement(np.zeros(10), null.reshape(20, 10)).threshold == pytest.approx(0.99)


def test_agreement_holds_for_the_reference_and_fails_for_another_posterior():
    rng = np.random.default_rng(30)

    def run(mean=0.0):
        return rng.normal(mean, 1.0, size=(150, 2))

    null = np.array([null_mmd2(run(), run(), rng=rng) for _ in range(400)])
    verdicts = []
    for _ in range(40):
        values = [posterior_discrepancy(run(), run(), rng=rng).mmd2 for _ in range(10)]
        verdicts.append(agreement(values, null).agrees)
    # fails with probability 0.004 with the true quantile; 0.03 with one as low as the 97.5 %
    assert np.mean(verdicts) > 0.9
    biased = [posterior_discrepancy(run(0.5), run(), rng=rng).mmd2 for _ in range(10)]
    assert not agreement(biased, null).agrees


@pytest.mark.parametrize(
    ("values", "null", "level", "message"),
    [
        ([], [1.0], 0.99, "mmd2: expected at least one"),
        ([1.0], [], 0.99, "null: expected at least one"),
        ([np.nan], [1.0], 0.99, "1 of them not finite"),
        ([1.0], [1.0], 1.0, "level: expected"),
    ],
)
def test_agreement_refuses(values, null, level, message):
    with pytest.raises(ValueError, match=message):
        agreement(values, null, level=level)


# classifier


def test_c2st_is_half_for_one_distribution_and_repeats():
    a, b = np.random.default_rng(40).normal(size=(2, 1000, 2))
    accuracy = c2st(a, b, random_seed=1)
    # held-out accuracy of guessing has sd 1/2 / sqrt(2000) = 0.011
    assert abs(accuracy - 0.5) < 0.04
    assert c2st(a, b, random_seed=1) == accuracy


def test_c2st_of_a_shift_is_near_the_best_possible():
    rng = np.random.default_rng(41)
    a, b = rng.normal(size=(1000, 2)), rng.normal(size=(1000, 2)) + [1.5, 0.0]
    # on any scale, and with samples of unequal size
    scale = np.array([1e-3, 1e4])
    accuracy = c2st(scale * a, scale * np.concatenate([b, b]), random_seed=2)
    assert accuracy == pytest.approx(stats.norm.cdf(0.75), abs=0.035)


def test_c2st_sees_dependence_and_is_one_for_far_samples():
    rng = np.random.default_rng(42)
    a = rng.normal(size=(500, 2))
    b = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], size=500)
    assert c2st(a, b, random_seed=3, folds=3) > 0.7
    assert c2st(a, a + 8, random_seed=3, folds=3) > 0.99


def test_c2st_refuses():
    x = np.zeros((20, 2))
    with pytest.raises(ValueError, match="at least 10 draws"):
        c2st(x[:9], x, random_seed=0)
    with pytest.raises(ValueError, match="folds: expected between 2 and 20"):
        c2st(x, x, random_seed=0, folds=1)
    with pytest.raises(ValueError, match="a: expected 3 dimensions"):
        c2st(x, np.zeros((20, 3)), random_seed=0)


def test_pit_is_uniform_for_the_right_posterior_and_for_ties_and_not_for_a_wrong_one():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, size=(2000, 2))
    draws = rng.integers(0, 4, size=(2000, 30, 2))
    values = pit(draws, truth, rng)
    assert values.shape == (2000, 2)
    assert stats.kstest(values[:, 0], "uniform").pvalue > 1e-3
    wrong = pit(draws + 1, truth, rng)
    assert stats.kstest(wrong[:, 0], "uniform").pvalue < 1e-6
    with pytest.raises(ValueError, match="draws: expected shape"):
        pit(draws, truth[:, :1], rng)


def test_coverage_and_random_points_of_an_exact_posterior() -> None:
    # truth ~ N(0, 1), one observation with unit noise: the posterior is N(x / 2, 1 / 2)
    rng = np.random.default_rng(20)
    truth = rng.normal(size=(2000, 3))
    x = truth + rng.normal(size=truth.shape)
    noise = rng.normal(size=(2000, 100, 3))
    exact = x[:, None] / 2 + np.sqrt(0.5) * noise
    for draws, fits in ((exact, True), (x[:, None] / 2 + 0.5 * noise, False)):
        found = coverage(pit(draws, truth, np.random.default_rng(0)))
        inside = (found.low[:, None] <= found.observed) & (found.observed <= found.high[:, None])
        assert inside.all() == fits
        p = stats.kstest(tarp(draws, truth, np.random.default_rng(0)), "uniform").pvalue
        assert (p > 1e-3) == fits
    # Marginals are right, correlation is not: only random points see it.
    wrong = exact.copy()
    wrong[..., 1] = x[:, None, 1] / 2 + np.sqrt(0.5) * noise[..., 0]
    found = coverage(pit(wrong, truth, np.random.default_rng(0)))
    assert (found.low[:, None] <= found.observed).all()
    assert stats.kstest(tarp(wrong, truth, np.random.default_rng(0)), "uniform").pvalue < 1e-3
    z_score, contraction = learned(exact, truth)
    np.testing.assert_allclose(contraction.mean(axis=0), 0.5, atol=0.05)
    # 1.015 for 100 draws; three standard errors are 0.05
    np.testing.assert_allclose(z_score.std(axis=0), 1.015, atol=0.05)
    with pytest.raises(ValueError, match="levels: expected numbers between 0 and 1"):
        coverage(np.zeros((3, 1)), [0.5, 1.2])
    with pytest.raises(ValueError, match="draws: expected shape"):
        tarp(exact, truth[:, :2], rng)


# alarms


def test_an_alarm_follows_a_change_and_rarely_comes_without_one() -> None:
    rng = np.random.default_rng(30)
    delays = []
    for _ in range(50):
        x = rng.normal(size=200)
        x[100:] += 6
        found = alarm(x, 50, rate=1e-5)
        assert np.isnan(found.p_value[:50]).all()
        delays.append(int(np.argmax(found.raised)) - 100 + 1)
    assert np.median(delays) == 2
    assert min(delays) > 0
    # One odd value is not enough, however odd.
    x = rng.normal(size=200)
    x[120] = 1e6
    assert not alarm(x, 50, rate=1e-5).raised.any()
    # As many series without a change have an alarm as the rate says: 1 - exp(-1e-3 * 400).
    rate = np.mean([alarm(rng.normal(size=450), 50, rate=1e-3).raised.any() for _ in range(600)])
    assert abs(rate - (1 - np.exp(-0.4))) < 3 * np.sqrt(0.33 * 0.67 / 600)
    # A fall is seen by a two-sided alarm alone.
    x = rng.normal(size=200)
    x[100:] -= 6
    assert alarm(x, 50, rate=1e-5, two_sided=True).raised[105]
    assert not alarm(x, 50, rate=1e-5).raised.any()
    for bad in ({"baseline": 5, "rate": 1e-5}, {"baseline": 300, "rate": 1e-5}):
        with pytest.raises(ValueError, match="baseline: expected at least 10 values"):
            alarm(x, **bad)
    with pytest.raises(ValueError, match="rate: expected a number of at least 6.25e-07, "):
        alarm(x, 50, rate=0.5)


def test_distances_from_the_first_datasets() -> None:
    rng = np.random.default_rng(31)
    # Truths differ by sd 2, posteriors have sd 1: means differ by sqrt(5).
    mean = np.sqrt(5.0) * rng.normal(size=(5000, 4))
    found = np.exp(apart(mean, np.ones((5000, 4)), 1000)) - 0.3
    for part in (found[:1000], found[1000:]):  # chi2(4) / 4: mean 1, sd 0.71
        assert abs(part.mean() - 1) < 0.1
        assert abs(part.std() - np.sqrt(0.5)) < 0.1
    features = np.concatenate([rng.normal(3, 2, size=(5000, 4)), np.full((5000, 1), 7.0)], axis=1)
    found = np.exp(unlike(features, 100)) - 0.3  # the one that never changes says nothing
    for part in (found[:100], found[100:]):
        assert abs(part.mean() - 1) < 0.2
    # By hand, one of the first and one later.
    f = features[:, :4]
    others, first = np.delete(f[:100], 3, axis=0), f[:100]
    by_hand = np.mean((f[3] - others.mean(0)) ** 2 / others.var(0, ddof=1)) / (1 + 1 / 99)
    np.testing.assert_allclose(found[3], by_hand)
    by_hand = np.mean((f[200] - first.mean(0)) ** 2 / first.var(0, ddof=1)) / (1 + 1 / 100)
    np.testing.assert_allclose(found[200], by_hand)
