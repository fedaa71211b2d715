//! Any bytes, opened as a model: its metadata, its tensors, its tokenizer and its chat template.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use model::{ChatInput, ChatTemplate, EncodeOptions, Gguf, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes("fuzz.gguf".as_ref(), Bytes::copy_from_slice(bytes)) else { return };
    for (_, value) in gguf.metadata().iter() {
        assert!(!value.to_string().is_empty());
    }
    for info in gguf.tensors() {
        let tensor = gguf.find(&info.name).expect("a tensor that is listed is found");
        assert_eq!(tensor.data.len(), info.byte_len);
    }
    let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else { return };
    for (add_special, parse_special) in [(false, false), (true, true)] {
        let options = EncodeOptions { add_special, parse_special };
        if let Ok(tokens) = tokenizer.encode("Two <s>strands</s>,\n  one rope: 你好 e\u{301} \u{1f600}", options) {
            assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocabulary()));
            let _ = tokenizer.decode(&tokens);
        }
    }
    if let Ok(Some(template)) = ChatTemplate::from_gguf(&gguf, &tokenizer) {
        let _ = template.render(&ChatInput::default());
    }
});
