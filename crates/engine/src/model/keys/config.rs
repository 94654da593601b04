//! `config.json` and `generation_config.json`.

use super::{Keys, Rule, Table};

#[rustfmt::skip]
pub(in crate::model) const CONFIG: Table = Table {
    file: "config.json",
    keys: &[
        Keys {
            rule: Rule::Read,
            about: "the family: `llama`, `mistral`, `qwen2` or `qwen3`; all others are refused, such as Gemma, \
                Phi, Granite, SmolLM3 and mixtures of experts",
            names: &["model_type", "architectures"],
        },
        Keys {
            rule: Rule::Read,
            about: "sizes",
            names: &[
                "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
                "intermediate_size", "vocab_size", "max_position_embeddings",
            ],
        },
        Keys {
            rule: Rule::Read,
            about: "epsilon of the norms",
            names: &["rms_norm_eps"],
        },
        Keys {
            rule: Rule::Read,
            about: "rotary frequencies: types `default`, `linear`, `llama3` and `yarn`; others, and frequencies \
                per type of layer, are refused",
            names: &["rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"],
        },
        Keys {
            rule: Rule::Read,
            about: "the activation: `silu` (also called `swish`), all others are refused",
            names: &["hidden_act", "hidden_activation"],
        },
        Keys {
            rule: Rule::Read,
            about: "biases of queries, keys and values (Qwen2 always has them); a bias after attention or of the \
                feed-forward layer must be 0",
            names: &["attention_bias", "qkv_bias", "mlp_bias"],
        },
        Keys {
            rule: Rule::Read,
            about: "the output head is the embedding; where it is not, a missing head is an error",
            names: &["tie_word_embeddings"],
        },
        Keys {
            rule: Rule::Read,
            about: "a window of attention shortens the context to the window, with a warning",
            names: &["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"],
        },
        Keys {
            rule: Rule::Read,
            about: "tokens that end an answer, with those of the other files",
            names: &["eos_token_id"],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "quantised weights (`fp8`, `gptq`, `awq`, `bitsandbytes`, `compressed-tensors`, `mxfp4` and \
                others)",
            names: &["quantization_config", "compression_config", "quantization"],
        },
        Keys {
            rule: Rule::Only(&["1"]),
            about: "scaling of embeddings, residuals, attention or logits (Granite, MiniCPM, Cohere, Gemma)",
            names: &[
                "embedding_multiplier", "residual_multiplier", "logits_scaling",
                "logit_scale", "scale_emb", "embedding_scale", "mup_width_scale",
                "lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier",
            ],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "another scale of attention or layers (Granite, Gemma, MiniCPM)",
            names: &["query_pre_attn_scalar", "attention_scale", "attention_multiplier", "dim_model_base", "scale_depth", "mlp_multipliers"],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "soft capping of logits or scores (Gemma 2)",
            names: &["final_logit_softcapping", "attn_logit_softcapping"],
        },
        Keys {
            rule: Rule::Only(&["1"]),
            about: "rotary embedding of a part of the head (Phi, GLM)",
            names: &["partial_rotary_factor", "rope_percentage", "rotary_pct"],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "rotary embedding of its own kind",
            names: &["rotary_dim", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "mrope_section"],
        },
        Keys {
            rule: Rule::Only(&["false"]),
            about: "rotary embedding of its own kind",
            names: &["rope_interleaved", "rope_interleave", "alibi", "use_dynamic_ntk", "use_logn_attn"],
        },
        Keys {
            rule: Rule::Only(&["[1*]"]),
            about: "layers without rotary embedding (SmolLM3)",
            names: &["no_rope_layers"],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "layers without rotary embedding (SmolLM3)",
            names: &["no_rope_layer_interval"],
        },
        Keys {
            rule: Rule::Only(&["0", "1"]),
            about: "a mixture of experts",
            names: &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"],
        },
        Keys {
            rule: Rule::Only(&["0"]),
            about: "a mixture of experts",
            names: &[
                "n_shared_experts", "num_shared_experts", "moe_intermediate_size",
                "shared_expert_intermediate_size", "shared_intermediate_size",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "only a mixture of experts uses it, which is refused",
            names: &[
                "num_experts_per_tok", "router_aux_loss_coef", "router_jitter_noise", "output_router_logits",
                "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "moe_layer_freq",
                "first_k_dense_replace",
            ],
        },
        Keys {
            rule: Rule::Only(&["false"]),
            about: "a norm of queries and keys that the family does not have",
            names: &["qk_norm", "use_qk_norm", "qk_layernorm", "qk_layer_norms", "use_qk_norm_rope"],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "clipping of queries, keys and values",
            names: &["clip_qkv"],
        },
        Keys {
            rule: Rule::Only(&["false"]),
            about: "another structure of layers",
            names: &[
                "parallel_attn", "use_parallel_residual", "add_cross_attention", "is_encoder_decoder",
                "tie_encoder_decoder", "use_bidirectional_attention", "use_attention_sinks",
            ],
        },
        Keys {
            rule: Rule::Only(&["true"]),
            about: "attention to later tokens, or layers without parts",
            names: &["is_causal", "use_rms_norm"],
        },
        Keys {
            rule: Rule::Only(&["{}", "[]"]),
            about: "layers that differ",
            names: &["pruned_heads", "block_configs", "layers_block_type"],
        },
        Keys {
            rule: Rule::Only(&["0"]),
            about: "layers of another kind",
            names: &[
                "num_nextn_predict_layers", "kv_lora_rank", "q_lora_rank", "num_kv_shared_layers",
                "attention_chunk_size", "cross_attention_layers",
            ],
        },
        Keys {
            rule: Rule::Only(&["{}"]),
            about: "code of the repository",
            names: &["auto_map"],
        },
        Keys {
            rule: Rule::Only(&[]),
            about: "a model of more than text",
            names: &["text_config", "vision_config", "audio_config"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "the tensors say their type",
            names: &["torch_dtype", "dtype", "use_bfloat16"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "training",
            names: &[
                "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
                "attn_pdrop", "hidden_dropout_prob", "mlp_dropout", "classifier_dropout", "gradient_checkpointing",
                "keys_to_ignore_at_inference",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "how other programs compute the same",
            names: &[
                "use_cache", "pretraining_tp", "base_model_tp_plan", "base_model_pp_plan", "_attn_implementation",
                "_attn_implementation_autoset", "_flash_attn_2_enabled", "attn_implementation",
                "cache_implementation", "torchscript", "chunk_size_feed_forward", "fused_qkv", "fused_mlp",
                "use_flash_attn", "experts_implementation",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "the tokenizer says where these tokens go",
            names: &[
                "bos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
                "decoder_start_token_id", "tokenizer_class",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "names and notes",
            names: &[
                "_name_or_path", "name_or_path", "transformers_version", "transformers.js_config", "model_name",
                "license", "is_llama_config", "unsloth_*", "finetuning_task", "task_specific_params",
                "problem_type", "id2label", "label2id", "num_labels", "return_dict", "return_dict_in_generate",
                "output_attentions", "output_hidden_states", "output_scores", "is_decoder",
                "cross_attention_hidden_size", "tf_legacy_loss", "prefix", "diversity_penalty",
                "encoder_no_repeat_ngram_size", "remove_invalid_values",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "how to sample: requests say it",
            names: &[
                "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
                "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "early_stopping", "max_length",
                "min_length", "max_new_tokens", "num_return_sequences",
            ],
        },
        Keys {
            rule: Rule::Only(&["1"]),
            about: "search over several answers",
            names: &["num_beams", "num_beam_groups"],
        },
        Keys {
            rule: Rule::Only(&["[]"]),
            about: "tokens that are forced or forbidden",
            names: &[
                "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
                "forced_eos_token_id", "exponential_decay_length_penalty",
            ],
        },
    ],
};

#[rustfmt::skip]
pub(in crate::model) const GENERATION: Table = Table {
    file: "generation_config.json",
    keys: &[
        Keys {
            rule: Rule::Read,
            about: "tokens that end an answer, with those of the other files",
            names: &["eos_token_id"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "how to sample: requests say it",
            names: &[
                "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff",
                "eta_cutoff", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "early_stopping",
                "max_length", "min_length", "max_new_tokens", "min_new_tokens", "max_time", "stop_strings",
                "num_return_sequences", "renormalize_logits", "diversity_penalty", "encoder_no_repeat_ngram_size",
                "encoder_repetition_penalty", "remove_invalid_values", "max_window_size", "chat_format",
            ],
        },
        Keys {
            rule: Rule::Only(&["1"]),
            about: "search over several answers, or guidance",
            names: &["num_beams", "num_beam_groups", "guidance_scale"],
        },
        Keys {
            rule: Rule::Only(&["[]"]),
            about: "tokens that are forced or forbidden",
            names: &[
                "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "force_words_ids",
                "forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids", "sequence_bias",
                "exponential_decay_length_penalty", "watermarking_config",
            ],
        },
        Keys {
            rule: Rule::Only(&["0"]),
            about: "another way to choose tokens",
            names: &["penalty_alpha", "dola_layers"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "the tokenizer says where these tokens go",
            names: &["bos_token_id", "pad_token_id", "unk_token_id", "decoder_start_token_id"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "how other programs compute the same",
            names: &[
                "use_cache", "cache_implementation", "cache_config", "return_legacy_cache", "prefill_chunk_size",
                "assistant_*", "num_assistant_tokens", "num_assistant_tokens_schedule", "is_assistant",
                "prompt_lookup_num_tokens", "target_lookbehind", "compile_config", "disable_compile", "low_memory",
                "token_healing",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "names and notes",
            names: &[
                "_from_model_config", "transformers_version", "trust_remote_code", "output_attentions",
                "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
                "generation_kwargs",
            ],
        },
    ],
};
