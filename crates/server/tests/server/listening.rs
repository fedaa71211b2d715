//! Addresses that can and cannot be taken.

use server::{BindError, bind};

#[tokio::test]
async fn port_zero_takes_a_free_port() {
    let listener = bind("127.0.0.1:0").await.unwrap();
    assert_ne!(listener.address().port(), 0);
}

#[tokio::test]
async fn a_port_in_use_is_named_with_what_to_do() {
    let listener = bind("127.0.0.1:0").await.unwrap();
    let address = listener.address().to_string();
    let error = bind(&address).await.unwrap_err();
    assert!(matches!(&error, BindError::InUse { address: named } if *named == address), "{error}");
    assert!(error.to_string().starts_with(&format!("{address} is in use by another program: stop")), "{error}");
}

#[tokio::test]
async fn addresses_that_mean_nothing_or_belong_to_others_are_named() {
    for address in ["", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999"] {
        let error = bind(address).await.unwrap_err();
        assert!(matches!(error, BindError::Unresolved { .. }), "{address}: {error}");
    }
    // Reserved for documentation: no machine has it.
    let error = bind("192.0.2.1:0").await.unwrap_err();
    assert!(matches!(error, BindError::NotLocal { .. }), "{error}");
}
