//! A model over RDMA, where `FABRIC_TEST_RDMA` says that there are ports; see `scripts/check-rdma`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::Group;
use engine::Request;
use fabric::Transport;

#[test]
fn rdma_brings_the_tokens_that_shared_memory_brings() {
    if std::env::var_os("FABRIC_TEST_RDMA").is_none() {
        return;
    }
    let ids = |layout, transport| {
        let group = Group::start("tiny-llama", layout, transport);
        let prompt = (0..40).map(|index| 3 + index * 31 % 256).collect();
        let request = Request { prompt, max_tokens: Some(12), ignore_end: true, ..Request::default() };
        let ids = group.run(request).ids();
        group.stop().into_iter().for_each(|rank| rank.unwrap());
        ids
    };
    for layout in [(2, 1), (1, 2)] {
        let expected = ids(layout, Transport::SharedMemory);
        assert_eq!(expected.len(), 12);
        assert_eq!(ids(layout, Transport::Rdma), expected, "{layout:?}");
    }
}
