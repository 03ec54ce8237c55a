//! Generating text with a [`Gpt2`].

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trainer::prelude::*;

use crate::gpt2::{Cache, Gpt2};

/// How a text is continued: greedily, with the most likely token each time, unless
/// [`sample`](Generate::sample) is called.
#[derive(Clone, Debug)]
pub struct Generate {
    tokens: i64,
    stop: Option<i64>,
    sampling: Option<Sampling>,
    cache: bool,
}

impl Generate {
    /// Creates options that generate this number of tokens.
    #[must_use]
    pub fn new(tokens: i64) -> Self {
        Generate { tokens, stop: None, sampling: None, cache: true }
    }

    /// Ends a text when this token is generated; the token itself is not included. By default,
    /// texts do not end early.
    #[must_use]
    pub fn stop(mut self, token: i64) -> Self {
        self.stop = Some(token);
        self
    }

    /// Draws each token from the distribution that the model predicts.
    #[must_use]
    pub fn sample(mut self, sampling: Sampling) -> Self {
        self.sampling = Some(sampling);
        self
    }

    /// Whether to cache the keys and values of earlier tokens. Otherwise, the entire text is read
    /// again for each token. Defaults to `true`.
    #[must_use]
    pub fn cache(mut self, cache: bool) -> Self {
        self.cache = cache;
        self
    }
}

/// How tokens are drawn. The same seed yields the same texts. Drawing uses a separate random number
/// generator and leaves that of libtorch unchanged, so it does not affect a run that trains.
///
/// As in `transformers`, the temperature is applied first, then `top_k`, then `top_p`.
///
/// ```standalone_crate
/// use models::{Generate, Gpt2, Gpt2Config, Sampling};
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// let vs = nn::VarStore::new(Device::Cpu);
/// let sizes = Gpt2Config { n_embd: 16, n_layer: 2, n_head: 2, ..Gpt2Config::small() };
/// let config = Gpt2Config { vocab_size: 256, ..sizes };
/// let gpt2 = Gpt2::new(&vs.root(), &config);
/// let how = Generate::new(10).sample(Sampling::new(7).temperature(0.8).top_k(40).top_p(0.95));
///
/// tch::manual_seed(1);
/// let next = Tensor::rand([1], (Kind::Float, Device::Cpu));
/// tch::manual_seed(1);
/// gpt2.generate(&Tensor::from_slice(&[1i64, 2, 3]).unsqueeze(0), &how)?;
/// assert_eq!(Tensor::rand([1], (Kind::Float, Device::Cpu)), next);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sampling {
    seed: u64,
    temperature: f64,
    top_k: Option<usize>,
    top_p: f64,
}

impl Sampling {
    /// Creates options that draw from the whole distribution of the model, with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Sampling { seed, temperature: 1.0, top_k: None, top_p: 1.0 }
    }

    /// Divides the logits by a temperature: below 1, likely tokens become more likely.
    #[must_use]
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Draws from the `k` most likely tokens only.
    #[must_use]
    pub fn top_k(mut self, k: usize) -> Self {
        self.top_k = Some(k);
        self
    }

    /// Draws from the smallest set of the most likely tokens whose probabilities add up to at least
    /// `p` (nucleus sampling; Holtzman et al., 2019).
    #[must_use]
    pub fn top_p(mut self, p: f64) -> Self {
        self.top_p = p;
        self
    }

    fn check(&self) -> Result<()> {
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            return Err(Error::msg(format!(
                "`.temperature({})`: expected a positive number; for the most likely token, do not call `.sample(…)`",
                self.temperature
            )));
        }
        if self.top_k == Some(0) {
            return Err(Error::msg("`.top_k(0)` leaves no token: expected at least 1"));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::msg(format!("`.top_p({})`: expected more than 0 and at most 1", self.top_p)));
        }
        Ok(())
    }

    /// Returns the tokens that can be drawn, most likely first, and their probabilities. These are
    /// normalized over the `top_k` tokens before `top_p` removes some, so they may add up to less
    /// than 1.
    fn candidates(&self, logits: &[f64]) -> Vec<(usize, f64)> {
        let mut candidates: Vec<_> =
            logits.iter().map(|logit| logit / self.temperature).enumerate().collect();
        // Equally likely tokens keep their order, so that the result is deterministic.
        candidates.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        candidates.truncate(self.top_k.unwrap_or(usize::MAX));
        let largest = candidates[0].1;
        for (_, value) in &mut candidates {
            *value = (*value - largest).exp();
        }
        let total: f64 = candidates.iter().map(|(_, value)| value).sum();
        let mut sum = 0.0;
        let mut kept = 0;
        for (_, value) in &mut candidates {
            *value /= total;
            if kept == 0 || sum < self.top_p {
                kept += 1;
            }
            sum += *value;
        }
        candidates.truncate(kept);
        candidates
    }

    /// Draws a token.
    fn draw(&self, logits: &[f64], rng: &mut ChaCha8Rng) -> usize {
        let candidates = self.candidates(logits);
        let total: f64 = candidates.iter().map(|(_, probability)| probability).sum();
        let mut rest = rng.gen_range(0.0..1.0) * total;
        for (token, probability) in &candidates {
            rest -= probability;
            if rest < 0.0 {
                return *token;
            }
        }
        candidates[candidates.len() - 1].0 // reached only because of rounding
    }
}

impl Gpt2 {
    /// Continues texts. `prompts` contains their token IDs, `[batch, time]`, all of the same
    /// length. Returns the new tokens of each text, without the stop token. What is drawn for a
    /// text depends on its row and the seed, not on the other texts.
    ///
    /// ```
    /// use models::generate::{Generate, Sampling};
    /// # use models::{Gpt2, Gpt2Config};
    /// # use trainer::prelude::*;
    /// # let vs = nn::VarStore::new(Device::Cpu);
    /// # let sizes = Gpt2Config { n_embd: 16, n_layer: 2, n_head: 2, ..Gpt2Config::small() };
    /// # let config = Gpt2Config { vocab_size: 256, ..sizes };
    /// # let gpt2 = Gpt2::new(&vs.root(), &config);
    ///
    /// let prompt = Tensor::from_slice(b"Shall I compare").to_kind(Kind::Int64).unsqueeze(0);
    /// let sampling = Sampling::new(1).temperature(0.8).top_k(40).top_p(0.95);
    /// let texts = gpt2.generate(&prompt, &Generate::new(20).sample(sampling))?;
    /// assert_eq!(texts[0].len(), 20);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if a prompt is empty, if a text would become longer than `n_positions`, if
    /// a token is not in the vocabulary, or if a logit is NaN.
    pub fn generate(&self, prompts: &Tensor, how: &Generate) -> Result<Vec<Vec<i64>>> {
        tch::no_grad(|| self.continued(prompts, how))
    }

    fn continued(&self, prompts: &Tensor, how: &Generate) -> Result<Vec<Vec<i64>>> {
        if let Some(sampling) = &how.sampling {
            sampling.check()?;
        }
        self.check_prompts(prompts, how.tokens)?;
        let batch = prompts.size()[0];
        let seed = how.sampling.as_ref().map_or(0, |sampling| sampling.seed);
        let mut rngs: Vec<_> = (0..batch.unsigned_abs())
            .map(|row| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(row);
                rng
            })
            .collect();
        let device = self.device();
        let mut all = prompts.to_device(device);
        let mut unread = all.shallow_clone();
        let mut cache = Cache::new();
        let mut texts = vec![Vec::new(); rngs.len()];
        let mut stopped = vec![false; rngs.len()];
        for _ in 0..how.tokens {
            let logits = if how.cache {
                self.forward_cached(&unread, &mut cache)
            } else {
                self.forward(&all, None, None, false)
            };
            let logits = Vec::<Vec<f64>>::try_from(logits.select(1, -1).to_kind(Kind::Double))?;
            let mut next = Vec::new();
            for (row, logits) in logits.iter().enumerate() {
                if let Some(token) = logits.iter().position(|logit| logit.is_nan()) {
                    return Err(Error::msg(format!(
                        "the logit of token {token} is NaN in text {row}: are the weights loaded, and finite?"
                    )));
                }
                let token = match &how.sampling {
                    Some(sampling) => sampling.draw(logits, &mut rngs[row]),
                    None => largest(logits),
                } as i64;
                stopped[row] |= how.stop == Some(token);
                if !stopped[row] {
                    texts[row].push(token);
                }
                next.push(token);
            }
            if stopped.iter().all(|stopped| *stopped) {
                break;
            }
            unread = Tensor::from_slice(&next).unsqueeze(1).to_device(device);
            if !how.cache {
                all = Tensor::cat(&[&all, &unread], 1);
            }
        }
        Ok(texts)
    }

    fn check_prompts(&self, prompts: &Tensor, new: i64) -> Result<()> {
        let size = prompts.size();
        let &[batch, time] = &size[..] else {
            return Err(Error::msg(format!("the prompts have the shape {size:?}: expected [batch, time]")));
        };
        if batch == 0 || time == 0 {
            return Err(Error::msg(format!(
                "the prompts have the shape {size:?}: expected at least one token, for example the one that \
                 separates texts"
            )));
        }
        if prompts.kind() != Kind::Int64 {
            return Err(Error::msg(format!("the prompts are {:?}: expected Int64", prompts.kind())));
        }
        if new < 0 {
            return Err(Error::msg(format!("`Generate::new({new})`: expected at least 0")));
        }
        let positions = self.config().n_positions;
        // The model never reads the last generated token.
        if time + new - 1 > positions {
            return Err(Error::msg(format!(
                "a prompt of {time} tokens and {new} new ones do not fit into the {positions} positions of the model: \
                 shorten the prompt, or generate at most {}",
                (positions + 1 - time).max(0)
            )));
        }
        let vocabulary = self.config().vocab_size;
        let bounds = [prompts.min().int64_value(&[]), prompts.max().int64_value(&[])];
        if let Some(token) = bounds.into_iter().find(|token| !(0..vocabulary).contains(token)) {
            return Err(Error::msg(format!(
                "the prompts have the token {token}: expected at least 0 and less than {vocabulary}"
            )));
        }
        Ok(())
    }
}

/// Returns the index of the largest number. If several are equal, returns the first.
fn largest(numbers: &[f64]) -> usize {
    let mut largest = 0;
    for (nth, number) in numbers.iter().enumerate() {
        if *number > numbers[largest] {
            largest = nth;
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns logits whose softmax is these probabilities.
    fn logits(probabilities: &[f64]) -> Vec<f64> {
        probabilities.iter().map(|probability| probability.ln() + 3.0).collect()
    }

    #[test]
    fn candidates_are_the_tokens_within_top_k_and_top_p() {
        let logits = logits(&[0.1, 0.4, 0.2, 0.3]);
        let tokens = |sampling: Sampling| -> Vec<usize> {
            sampling.candidates(&logits).into_iter().map(|(token, _)| token).collect()
        };
        let all = Sampling::new(0);
        assert_eq!(tokens(all.clone()), [1, 3, 2, 0]);
        assert_eq!(tokens(all.clone().top_k(2)), [1, 3]);
        assert_eq!(tokens(all.clone().top_k(9)), [1, 3, 2, 0]);
        assert_eq!(tokens(all.clone().top_p(0.39)), [1]);
        assert_eq!(tokens(all.clone().top_p(0.41)), [1, 3]);
        assert_eq!(tokens(all.clone().top_p(0.001)), [1], "one token always remains");
        // Of the two tokens that `top_k` leaves, the first has a probability of 4/7.
        assert_eq!(tokens(all.clone().top_k(2).top_p(0.57)), [1]);
        assert_eq!(tokens(all.clone().top_k(2).top_p(0.58)), [1, 3]);
        // At a low temperature, the most likely token has nearly all of the probability.
        assert_eq!(tokens(all.temperature(0.01).top_p(0.9)), [1]);
    }

    #[test]
    fn tokens_are_drawn_in_proportion_to_their_probability() {
        let logits = logits(&[0.1, 0.4, 0.2, 0.3]);
        let mut counts = [0.0; 4];
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let sampling = Sampling::new(1).temperature(2.0);
        for _ in 0..20_000 {
            counts[sampling.draw(&logits, &mut rng)] += 1.0 / 20_000.0;
        }
        let roots = [0.1f64, 0.4, 0.2, 0.3].map(f64::sqrt);
        let total: f64 = roots.iter().sum();
        for (count, root) in counts.iter().zip(roots) {
            assert!((count - root / total).abs() < 0.02, "{counts:?}");
        }
    }

    #[test]
    fn invalid_sampling_settings_are_refused() {
        let message = |sampling: Sampling| sampling.check().unwrap_err().to_string();
        assert!(message(Sampling::new(0).temperature(0.0)).contains("expected a positive number"));
        assert!(message(Sampling::new(0).temperature(f64::NAN)).contains("expected a positive number"));
        assert!(message(Sampling::new(0).top_k(0)).contains("leaves no token"));
        assert!(message(Sampling::new(0).top_p(0.0)).contains("more than 0 and at most 1"));
        assert!(message(Sampling::new(0).top_p(1.5)).contains("more than 0 and at most 1"));
    }
}
