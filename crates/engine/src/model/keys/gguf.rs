//! Metadata of GGUF files. `{arch}` is the value of `general.architecture`.

use super::{Keys, Rule, Table};

#[rustfmt::skip]
pub(in crate::model) const GGUF: Table = Table {
    file: "GGUF metadata",
    keys: &[
        Keys {
            rule: Rule::Read,
            about: "the family: `llama`, `qwen2` or `qwen3`; all others are refused",
            names: &["general.architecture"],
        },
        Keys {
            rule: Rule::Read,
            about: "sizes",
            names: &[
                "{arch}.context_length", "{arch}.embedding_length", "{arch}.block_count",
                "{arch}.feed_forward_length", "{arch}.attention.head_count", "{arch}.attention.head_count_kv",
                "{arch}.attention.key_length", "{arch}.attention.value_length", "{arch}.rope.dimension_count",
                "{arch}.vocab_size", "general.alignment",
            ],
        },
        Keys {
            rule: Rule::Read,
            about: "what a student can write, and the embedding that it was trained with",
            names: &["tokenrouter.output.token_ids", "tokenrouter.embedding.sha256"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "how a student was made",
            names: &["tokenrouter.*"],
        },
        Keys {
            rule: Rule::Read,
            about: "epsilon of the norms",
            names: &["{arch}.attention.layer_norm_rms_epsilon"],
        },
        Keys {
            rule: Rule::Read,
            about: "rotary frequencies: types `none`, `linear` and `yarn`, and the tensor `rope_freqs.weight`; \
                others are refused",
            names: &[
                "{arch}.rope.freq_base", "{arch}.rope.scaling.type", "{arch}.rope.scaling.factor",
                "{arch}.rope.scale_linear", "{arch}.rope.scaling.original_context_length",
                "{arch}.rope.scaling.attn_factor", "{arch}.rope.scaling.yarn_attn_factor",
                "{arch}.rope.scaling.yarn_beta_fast", "{arch}.rope.scaling.yarn_beta_slow",
            ],
        },
        Keys {
            rule: Rule::Only(&["1", "-1"]),
            about: "another mixture of frequencies",
            names: &["{arch}.rope.scaling.yarn_ext_factor"],
        },
        Keys {
            rule: Rule::Only(&["0"]),
            about: "another scale of attention",
            names: &["{arch}.rope.scaling.yarn_log_multiplier"],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "rotary embedding of its own kind",
            names: &["{arch}.rope.dimension_sections", "{arch}.rope.freq_base_swa", "{arch}.rope.scaling.alpha"],
        },
        Keys {
            rule: Rule::Read,
            about: "a window of attention shortens the context to the window, with a warning",
            names: &["{arch}.attention.sliding_window"],
        },
        Keys {
            rule: Rule::Only(&["0", "1"]),
            about: "a mixture of experts",
            names: &["{arch}.expert_count"],
        },
        Keys {
            rule: Rule::Only(&["0"]),
            about: "a mixture of experts",
            names: &[
                "{arch}.expert_used_count", "{arch}.expert_shared_count", "{arch}.expert_feed_forward_length",
                "{arch}.expert_shared_feed_forward_length",
            ],
        },
        Keys {
            rule: Rule::Only(&["1"]),
            about: "scaling of embeddings, residuals, attention or logits",
            names: &["{arch}.embedding_scale", "{arch}.residual_scale", "{arch}.logit_scale"],
        },
        Keys {
            rule: Rule::Only(&["0"]),
            about: "another scale of attention, capping, or clipping",
            names: &[
                "{arch}.attention.scale", "{arch}.attn_logit_softcapping", "{arch}.final_logit_softcapping",
                "{arch}.attention.clamp_kqv", "{arch}.attention.max_alibi_bias",
            ],
        },
        Keys {
            rule: Rule::Only(&["true"]),
            about: "attention to later tokens",
            names: &["{arch}.attention.causal"],
        },
        Keys {
            rule: Rule::Only(&["false"]),
            about: "another structure of layers",
            names: &["{arch}.use_parallel_residual", "{arch}.swin_norm"],
        },
        Keys {
            rule: Rule::Only(&["0"]),
            about: "layers of another kind",
            names: &[
                "{arch}.nextn_predict_layers", "{arch}.attention.kv_lora_rank", "{arch}.attention.q_lora_rank",
                "{arch}.pooling_type", "{arch}.attention.shared_kv_layers",
            ],
        },
        Keys {
            rule: Rule::Read,
            about: "parts of a model: all are read, whichever is named",
            names: &["split.no", "split.count", "split.tensors.count"],
        },
        Keys {
            rule: Rule::Read,
            about: "the tokenizer: `gpt2`, with the pre-tokenizers `smollm`, `gpt-2`, `default`, `llama-bpe` and \
                `qwen2`",
            names: &[
                "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges",
                "tokenizer.ggml.token_type",
            ],
        },
        Keys {
            rule: Rule::Read,
            about: "the first token of prompts, and tokens that end an answer",
            names: &[
                "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
            ],
        },
        Keys {
            rule: Rule::Only(&["false"]),
            about: "a change of prompts that this tokenizer does not make",
            names: &[
                "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_space_prefix",
                "tokenizer.ggml.remove_extra_whitespaces",
            ],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "a normalizer of its own",
            names: &["tokenizer.ggml.precompiled_charsmap"],
        },
        Keys {
            rule: Rule::Read,
            about: "the chat template",
            names: &["tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.chat_template.*"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "not used by byte-level BPE",
            names: &[
                "tokenizer.ggml.scores", "tokenizer.ggml.token_type_count", "tokenizer.ggml.unknown_token_id",
                "tokenizer.ggml.padding_token_id", "tokenizer.ggml.seperator_token_id",
                "tokenizer.ggml.separator_token_id", "tokenizer.ggml.cls_token_id", "tokenizer.ggml.mask_token_id",
                "tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id",
                "tokenizer.ggml.middle_token_id", "tokenizer.ggml.fim_*", "tokenizer.ggml.added_tokens",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "the same tokenizer in another form, or the tensors say it",
            names: &[
                "tokenizer.huggingface.json", "tokenizer.rwkv.world", "{arch}.tensor_data_layout",
                "{arch}.leading_dense_block_count",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "how the model was trained",
            names: &["{arch}.rope.scaling.finetuned", "training.*"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "names and notes",
            names: &["general.*", "quantize.*", "imatrix.*", "GGUF.*", "llama.cpp.*", "mradermacher.*"],
        },
    ],
};
