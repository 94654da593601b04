//! Training: AdamW on a weighted cross entropy, stopped when held-out samples get no better.

use candle_core::{Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use indicatif::ProgressBar;
use serde::Serialize;
use tokenrouter_core::keyed::{Purpose, draw_u64};

use super::net::Net;
use super::scale::Inputs;

/// Samples in a batch when nothing is learnt.
const EVALUATION_BATCH: usize = 4096;

/// How to train.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hyperparameters {
    pub(super) epochs: usize,
    /// Epochs without a better validation loss after which training ends.
    pub(super) patience: usize,
    pub(super) batch: usize,
    pub(super) learning_rate: f64,
    pub(super) weight_decay: f64,
    /// Share of the hidden states and embeddings that is replaced by 0 in every update.
    pub(super) dropout: f64,
    /// Seed of the order of samples and of the dropout.
    pub(super) seed: u64,
}

/// How training went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct History {
    /// Loss on the samples to fit and on those to validate, before training and after each epoch.
    pub(super) losses: Vec<(f64, f64)>,
    /// The epoch whose parameters were kept; 0 is before training.
    pub(super) best_epoch: usize,
}

/// Inputs with their targets.
pub(super) struct Labelled {
    pub(super) inputs: Inputs,
    /// 1 or 0, `[n]`.
    pub(super) targets: Tensor,
}

impl Labelled {
    pub(super) fn new(inputs: Inputs, targets: impl Iterator<Item = bool>) -> Result<Self> {
        let targets = Tensor::from_iter(targets.map(|target| f32::from(u8::from(target))), &Device::Cpu)?;
        Ok(Self { inputs, targets })
    }

    fn count(&self) -> usize {
        self.targets.elem_count()
    }

    fn batch(&self, indices: Vec<u32>) -> Result<Self> {
        let count = indices.len();
        let indices = Tensor::from_vec(indices, count, &Device::Cpu)?;
        Ok(Self { inputs: self.inputs.select(&indices)?, targets: self.targets.index_select(&indices, 0)? })
    }
}

/// Binary cross entropy of `sigmoid(logits)`, where a positive sample counts `positive_weight` times. The one of
/// `candle_nn` has no weight and takes the logarithm of a sigmoid, which is infinite for large logits.
fn loss(logits: &Tensor, targets: &Tensor, positive_weight: f64) -> Result<Tensor> {
    // ln(1 + exp(z)) = max(z, 0) + ln(1 + exp(-|z|)), which does not overflow.
    let softplus = |z: &Tensor| z.relu()? + (z.abs()?.neg()?.exp()? + 1.0)?.log()?;
    let positive = (targets * softplus(&logits.neg()?)?)?;
    let negative = ((1.0 - targets)? * softplus(logits)?)?;
    ((positive * positive_weight)? + negative)?.mean_all()
}

/// Mean loss without learning.
fn mean_loss(net: &Net, samples: &Labelled, positive_weight: f64) -> Result<f64> {
    let mut sum = 0.0;
    for start in (0..samples.count()).step_by(EVALUATION_BATCH) {
        let end = samples.count().min(start + EVALUATION_BATCH);
        let batch = samples.batch((start as u32..end as u32).collect())?;
        let mean = loss(&net.forward(&batch.inputs)?.detach(), &batch.targets, positive_weight)?;
        sum += f64::from(mean.to_scalar::<f32>()?) * (end - start) as f64;
    }
    Ok(sum / samples.count() as f64)
}

/// Trains `net` in place; it ends with the parameters of its best epoch. The same for the same arguments.
pub(super) fn train(
    net: &Net,
    fit: &Labelled,
    validation: &Labelled,
    options: Hyperparameters,
    bar: &ProgressBar,
) -> Result<History> {
    let positives = f64::from(fit.targets.sum_all()?.to_scalar::<f32>()?);
    let weight = (fit.count() as f64 - positives) / positives.max(1.0);
    let params =
        ParamsAdamW { lr: options.learning_rate, weight_decay: options.weight_decay, ..ParamsAdamW::default() };
    let vars = net.vars();
    let mut optimizer = AdamW::new(vars.clone(), params)?;
    let measure =
        |net: &Net| -> Result<(f64, f64)> { Ok((mean_loss(net, fit, weight)?, mean_loss(net, validation, weight)?)) };
    let copy = |vars: &[Var]| vars.iter().map(|var| var.as_tensor().copy()).collect::<Result<Vec<_>>>();
    let mut losses = vec![measure(net)?];
    let (mut best, mut best_epoch, mut least) = (copy(&vars)?, 0, losses[0].1);
    for epoch in 1..=options.epochs {
        let mut order: Vec<u32> = (0..fit.count() as u32).collect();
        order.sort_by_key(|index| (draw_u64(options.seed, epoch as u64, u64::from(*index), Purpose::Route), *index));
        for (number, indices) in order.chunks(options.batch).enumerate() {
            let batch = fit.batch(indices.to_vec())?;
            let inputs = batch.inputs.dropout(options.dropout, options.seed, (epoch << 32 | number) as u64)?;
            optimizer.backward_step(&loss(&net.forward(&inputs)?, &batch.targets, weight)?)?;
        }
        let (fitted, held_out) = measure(net)?;
        bar.set_message(format!("epoch {epoch}: loss {fitted:.4}, held out {held_out:.4}"));
        losses.push((fitted, held_out));
        if held_out < least {
            (best, best_epoch, least) = (copy(&vars)?, epoch, held_out);
        } else if epoch - best_epoch >= options.patience {
            break;
        }
    }
    for (var, values) in vars.iter().zip(&best) {
        var.set(values)?;
    }
    Ok(History { losses, best_epoch })
}

#[cfg(test)]
mod tests {
    use tokenrouter_core::routing::HeadKind;

    use super::*;
    use crate::train::label::{Samples, Split};
    use crate::train::net::Size;
    use crate::train::scale::Scales;
    use crate::train::score::auc;
    use crate::train::testing::separable;

    fn options(seed: u64) -> Hyperparameters {
        Hyperparameters {
            epochs: 20,
            patience: 5,
            batch: 64,
            learning_rate: 3e-3,
            weight_decay: 0.01,
            dropout: 0.1,
            seed,
        }
    }

    #[test]
    fn separable_samples_are_told_apart() {
        let samples = separable(900, 0.2);
        let Split { fit, validation, test } = samples.split(1).expect("enough prompts");
        assert_eq!(fit.count() + validation.count() + test.count(), 900);
        let scales = Scales::of(&fit);
        let size = Size { width: fit.width, logits: fit.logits, hidden: 16, blocks: 1, expansion: 2 };
        for kind in HeadKind::ALL {
            let learn = |seed| {
                let net = Net::new(kind, size, seed).expect("a network");
                let labelled = |samples: &Samples| {
                    Labelled::new(scales.apply(samples).expect("inputs"), samples.divergent.iter().copied())
                        .expect("labels")
                };
                let (fit, validation) = (labelled(&fit), labelled(&validation));
                let bar = ProgressBar::hidden();
                let history = train(&net, &fit, &validation, options(seed), &bar).expect("trains");
                let scores = net.forward(&labelled(&test).inputs).and_then(|logits| logits.to_vec1()).expect("scores");
                (history, scores)
            };
            let (history, scores): (History, Vec<f32>) = learn(7);
            let (first, last) = (history.losses[0], history.losses[history.best_epoch]);
            assert!(last.0 < 0.7 * first.0 && last.1 < 0.7 * first.1, "{kind:?}: {history:?}");
            let area = auc(&scores, &test.divergent);
            assert!(area > 0.9, "{kind:?}: {area}");
            assert_eq!(learn(7), (history, scores), "{kind:?}: a seed gives one result");
        }
    }

    #[test]
    fn the_loss_is_the_weighted_cross_entropy() {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).expect("a tensor");
        let (z, y) = ([-80.0f32, -1.0, 0.5, 90.0], [0.0f32, 1.0, 1.0, 0.0]);
        let got = loss(&tensor(&z), &tensor(&y), 3.0).and_then(|loss| loss.to_scalar::<f32>()).expect("a loss");
        let log_sigmoid = |z: f64| -(1.0 + (-z).exp()).ln();
        let wanted = -(3.0 * log_sigmoid(-1.0) + 3.0 * log_sigmoid(0.5) + log_sigmoid(80.0) + log_sigmoid(-90.0)) / 4.0;
        assert!((f64::from(got) - wanted).abs() < 1e-4, "{got} {wanted}");
    }
}
