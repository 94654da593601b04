//! Which requests an engine takes.

use super::SubmitError;
use tokenrouter_core::request::{MAX_TOP_LOGPROBS, Request};

/// What a request may ask for.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    pub(super) vocab: usize,
    /// Most tokens of a request, prompt and output.
    pub(super) token_limit: usize,
    /// Most requests that are open at a time.
    pub(super) max_open: usize,
    pub(super) has_texts: bool,
    pub(super) takes_threshold: bool,
}

impl Limits {
    /// Checks a request where `open` others are open, and shortens its output to what there is room for.
    pub(super) fn check(&self, request: Request, open: usize) -> Result<Request, SubmitError> {
        let request = self.check_content(request)?;
        if open >= self.max_open {
            return Err(SubmitError::Overloaded { open, limit: self.max_open });
        }
        Ok(request)
    }

    fn check_content(&self, mut request: Request) -> Result<Request, SubmitError> {
        if request.prompt.is_empty() {
            return Err(SubmitError::Invalid("the prompt is empty".into()));
        }
        if let Some(id) = request.prompt.iter().find(|id| **id as usize >= self.vocab) {
            let message = format!("token id {id} is outside the vocabulary of {} tokens", self.vocab);
            return Err(SubmitError::Invalid(message));
        }
        let sampling = &mut request.sampling;
        sampling.check().map_err(SubmitError::Invalid)?;
        if !sampling.stop.is_empty() && !self.has_texts {
            return Err(SubmitError::Invalid("`stop` needs text, and emulated models write none".into()));
        }
        if request.logprobs.is_some_and(|top| top > MAX_TOP_LOGPROBS) || (request.logprobs.is_some() && !self.has_texts)
        {
            return Err(SubmitError::Invalid(match self.has_texts {
                true => format!("`logprobs` asks for {:?} tokens, at most {MAX_TOP_LOGPROBS}", request.logprobs),
                false => "`logprobs` is not available: emulated models have no probabilities".into(),
            }));
        }
        if let Some(threshold) = request.routing.threshold {
            self.check_threshold(threshold)?;
        }
        if request.resumed >= request.prompt.len().min(sampling.max_tokens) {
            return Err(SubmitError::Invalid(format!(
                "`resumed` is {}, it must be below the {} tokens of the prompt and below `max_tokens` of {}",
                request.resumed,
                request.prompt.len(),
                sampling.max_tokens
            )));
        }
        let prompt = request.prompt.len() - request.resumed;
        if request.prompt.len() >= self.token_limit {
            return Err(SubmitError::TooLong { prompt, limit: self.token_limit });
        }
        sampling.max_tokens = sampling.max_tokens.min(self.token_limit - prompt);
        Ok(request)
    }

    fn check_threshold(&self, threshold: f64) -> Result<(), SubmitError> {
        if !threshold.is_finite() {
            return Err(SubmitError::Invalid(format!("`routing.threshold` is {threshold}, it must be a number")));
        }
        if !self.takes_threshold {
            let message = "`routing.threshold` is not supported: the configured routing method compares no threshold";
            return Err(SubmitError::Invalid(message.into()));
        }
        Ok(())
    }
}
