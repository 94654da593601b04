//! `tokenizer_config.json` and `tokenizer.json`.

use super::{Keys, Rule, Table};

#[rustfmt::skip]
pub(in crate::model) const TOKENIZER_CONFIG: Table = Table {
    file: "tokenizer_config.json",
    keys: &[
        Keys {
            rule: Rule::Read,
            about: "the chat template, and the tokens that it may name; `eos_token` also ends an answer",
            names: &[
                "chat_template", "bos_token", "eos_token", "unk_token", "pad_token", "additional_special_tokens",
                "extra_special_tokens",
            ],
        },
        Keys {
            rule: Rule::Read,
            about: "whether prompts begin with `bos_token`, whatever `tokenizer.json` says",
            names: &["add_bos_token"],
        },
        Keys {
            rule: Rule::Read,
            about: "must have the ids that `tokenizer.json` gives",
            names: &["added_tokens_decoder"],
        },
        Keys {
            rule: Rule::Only(&["false"]),
            about: "an end token after every prompt, or text that is changed before it is read",
            names: &["add_eos_token", "split_special_tokens", "do_lower_case", "remove_space"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "`tokenizer.json` says it",
            names: &[
                "tokenizer_class", "add_prefix_space", "legacy", "sp_model_kwargs", "normalizer", "trim_offsets",
                "from_slow", "tokenizer_file", "vocab_file", "tokenizer_type", "fix_mistral_regex", "backend",
                "sp_model_file", "vocab_size", "clean_text", "strip_accents", "tokenize_chinese_chars",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "tokens that nothing writes",
            names: &[
                "cls_token", "sep_token", "mask_token", "prefix_token", "middle_token", "suffix_token",
                "eot_token", "fill_token", "suffix_first", "image_token", "boi_token", "eoi_token", "video_token",
                "audio_token", "vision_bos_token", "vision_eos_token",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "a text is what its tokens say: nothing is cut, padded or tidied",
            names: &[
                "clean_up_tokenization_spaces", "spaces_between_special_tokens", "errors", "model_max_length",
                "max_length", "max_len", "padding", "padding_side", "pad_to_multiple_of", "pad_token_type_id",
                "truncation", "truncation_side", "truncation_strategy", "stride", "return_token_type_ids",
                "model_input_names", "model_specific_special_tokens",
            ],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "names and notes",
            names: &[
                "name_or_path", "_name_or_path", "transformers_version", "special_tokens_map_file",
                "use_default_system_prompt", "processor_class", "auto_map", "is_local", "local_files_only",
                "unsloth_*", "use_fast", "response_schema", "chat_template_file",
            ],
        },
    ],
};

#[rustfmt::skip]
pub(in crate::model) const TOKENIZER: Table = Table {
    file: "tokenizer.json",
    keys: &[
        Keys {
            rule: Rule::Read,
            about: "by the `tokenizers` library, `ignore_merges`, `byte_fallback` and the others included",
            names: &["version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"],
        },
        Keys {
            rule: Rule::Irrelevant,
            about: "switched off: a prompt is neither cut nor filled up",
            names: &["truncation", "padding"],
        },
    ],
};
