//! The decode path allocates nothing after warm-up.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;

use kernels::KvType;
use model::{Alone, Blueprint, Gguf, Placement, Shard, ShardOptions, Stretch};

#[test]
fn a_decode_step_allocates_nothing() {
    for name in ["tiny-llama-q4_1.gguf", "tiny-gemma3.gguf", "tiny-qwen2.gguf", "tiny-qwen3moe-q4_0.gguf"] {
        let file = Gguf::open(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap();
        let blueprint = Blueprint::from_gguf(&file).unwrap();
        let options =
            ShardOptions { threads: 2, slots: 3, context: 128, kv_blocks: 12, step_tokens: 16, kv_type: KvType::F16 };
        let placement = Placement::whole(blueprint.layers.len());
        let mut shard = Shard::load(&file, &blueprint, &placement, options).unwrap();
        let mut logits = vec![0.0; 2 * blueprint.vocabulary];
        let mut step = |position: usize| {
            let stretch = |slot| Stretch { slot, first_position: position, tokens: 1 };
            shard.embed(&[position as u32, 7]);
            shard.run_layers(&[stretch(2), stretch(0)], &mut Alone).unwrap();
            shard.logits(&[0, 1], &mut logits, blueprint.vocabulary);
        };
        step(0);
        let counted = allocation_counter::measure(|| (1..100).for_each(&mut step));
        assert_eq!(counted.count_total, 0, "{name} allocated {} times in 99 steps", counted.count_total);
    }
}
