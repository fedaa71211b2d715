//! Files well formed and not.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::{Path, PathBuf};

use common::gguf::{ARRAY, I32, STRING, U8, U32, Writer, array, read, string};
use kernels::DType;
use model::gguf::{Array, Value};
use model::{Gguf, ModelError};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The file is refused, and the message has every one of `parts`.
#[track_caller]
fn check_refused(bytes: Vec<u8>, parts: &[&str]) {
    let message = read(bytes).expect_err("the file should be refused").to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing from: {message}");
    }
}

fn f32_tensor(name: &str) -> Writer {
    Writer::default().tensor(name, 0, &[4, 2], (0..32).collect())
}

#[test]
fn reads_what_was_written() {
    for version in [2, 3] {
        let mut writer = Writer::default()
            .raw("u8", U8, &[200])
            .raw("i8", 1, &(-5i8).to_le_bytes())
            .raw("u16", 2, &60_000u16.to_le_bytes())
            .raw("i16", 3, &(-300i16).to_le_bytes())
            .u32("u32", 7)
            .raw("i32", I32, &(-7i32).to_le_bytes())
            .f32("f32", 0.5)
            .bool("bool", true)
            .string("string", "walk")
            .raw("u64", 10, &u64::MAX.to_le_bytes())
            .raw("i64", 11, &i64::MIN.to_le_bytes())
            .raw("f64", 12, &0.25f64.to_le_bytes())
            .strings("strings", &["a", "", "ßç"])
            .i32s("i32s", &[-1, 0, 1])
            .raw("empty", ARRAY, &array(U32, 0, &[]))
            .raw("nested", ARRAY, &array(ARRAY, 2, &[array(U8, 1, &[9]), array(STRING, 1, &string("x"))].concat()))
            .tensor("a", 0, &[4, 2], (0..32).collect())
            .tensor("b", 2, &[32, 1, 1, 3], vec![7; 54]);
        writer.version = version;
        let gguf = writer.read().unwrap();
        let metadata = gguf.metadata();
        assert_eq!(metadata.get_u64("u8").unwrap(), 200);
        assert_eq!(metadata.find("i8"), Some(&Value::I8(-5)));
        assert_eq!(metadata.get_u64("u16").unwrap(), 60_000);
        assert_eq!(metadata.find("i16"), Some(&Value::I16(-300)));
        assert_eq!(metadata.get_u64("u64").unwrap(), u64::MAX);
        assert_eq!(metadata.find("i64"), Some(&Value::I64(i64::MIN)));
        assert_eq!((metadata.get_f32("f32").unwrap(), metadata.get_f32("f64").unwrap()), (0.5, 0.25));
        assert!(metadata.get_bool("bool").unwrap());
        assert_eq!(metadata.get_str("string").unwrap(), "walk");
        assert_eq!(metadata.get_array_str("strings").unwrap().iter().collect::<Vec<_>>(), ["a", "", "ßç"]);
        assert_eq!(metadata.get_array_i64("i32s").unwrap(), [-1, 0, 1]);
        assert!(metadata.get_array_u64("empty").unwrap().is_empty());
        let Some(Value::Array(Array::Array(nested))) = metadata.find("nested") else { panic!("no nested array") };
        assert_eq!(nested[0], Array::U8([9].into()));
        assert_eq!(metadata.iter().next().unwrap().0, "u8");
        assert_eq!(metadata.len(), 16);

        let names: Vec<_> = gguf.tensors().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let a = gguf.tensor("a").unwrap();
        assert_eq!((a.info.dtype, a.info.shape.as_slice(), a.info.byte_len), (DType::F32, &[4, 2][..], 32));
        assert_eq!(a.data, (0..32).collect::<Vec<u8>>());
        assert_eq!(gguf.tensor("b").unwrap().data, vec![7; 54]);
        assert!(gguf.find("c").is_none());
        assert!(gguf.tensor("c").unwrap_err().to_string().contains("`c`"));
    }
}

#[test]
fn look_ups_name_the_key() {
    let gguf =
        Writer::default().raw("n", I32, &(-1i32).to_le_bytes()).string("s", "x").i32s("a", &[-1]).read().unwrap();
    let metadata = gguf.metadata();
    let messages = [
        (metadata.get_u64("gone").unwrap_err(), "no metadata key `gone`"),
        (metadata.get_u64("n").unwrap_err(), "`n` is -1"),
        (metadata.get_u64("s").unwrap_err(), "`s` holds string where an integer is expected"),
        (metadata.get_array_u64("a").unwrap_err(), "`a` holds -1"),
        (metadata.get_array_f32("a").unwrap_err(), "`a` holds array of i32 where an array of f32 is expected"),
    ];
    for (error, part) in messages {
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.to_string().contains("test.gguf"), "{error}");
    }
    assert_eq!(metadata.find_u64("gone").unwrap(), None);
}

#[test]
fn knows_every_tensor_type() {
    let kinds = [0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39];
    assert_eq!(kinds.len(), DType::ALL.len());
    for kind in kinds {
        let gguf = Writer::default().tensor("t", kind, &[256], vec![0; 1024]).read().unwrap();
        let info = gguf.tensors().next().unwrap().clone();
        assert_eq!(info.byte_len, info.dtype.row_bytes(256).unwrap());
    }
    check_refused(
        Writer::default().tensor("blk.0.w", 16, &[256], vec![0; 66]).bytes(),
        &["type 16 (IQ2_XXS)", "blk.0.w", "Q4_K", "test.gguf"],
    );
    check_refused(Writer::default().tensor("t", 99, &[256], vec![]).bytes(), &["type 99 of tensor"]);
}

#[test]
fn refuses_other_files_and_versions() {
    check_refused(b"".to_vec(), &["truncated"]);
    check_refused(b"GG".to_vec(), &["truncated"]);
    check_refused(b"PK\x03\x04 a zip file".to_vec(), &["PK", "GGUF format"]);
    let with_version = |version| Writer { version, ..f32_tensor("t") }.bytes();
    check_refused(with_version(1), &["version 1"]);
    check_refused(with_version(4), &["version 4", "only 2 and 3"]);
    check_refused(with_version(3u32.swap_bytes()), &["big-endian"]);
}

#[test]
fn refuses_counts_that_cannot_be_true() {
    for count in [u64::MAX, 1 << 60, 1 << 32, 1000] {
        check_refused(Writer { tensor_count: Some(count), ..f32_tensor("t") }.bytes(), &["tensors are announced"]);
        check_refused(Writer { pair_count: Some(count), ..f32_tensor("t") }.bytes(), &["pairs are announced"]);
        let huge = [&U8.to_le_bytes()[..], &count.to_le_bytes()].concat();
        check_refused(Writer::default().raw("k", ARRAY, &huge).bytes(), &["\"k\"", "elements are announced"]);
        let huge = [&STRING.to_le_bytes()[..], &count.to_le_bytes()].concat();
        check_refused(Writer::default().raw("k", ARRAY, &huge).bytes(), &["\"k\"", "strings are announced"]);
        check_refused(Writer::default().raw("k", STRING, &count.to_le_bytes()).bytes(), &["\"k\"", "announced"]);
    }
}

#[test]
fn refuses_bad_metadata() {
    check_refused(Writer::default().u32("k", 1).u32("k", 2).bytes(), &["\"k\"", "given before"]);
    check_refused(Writer::default().u32("", 1).bytes(), &["0 bytes long"]);
    check_refused(Writer::default().raw("k", 13, &[0; 8]).bytes(), &["\"k\"", "value type 13"]);
    check_refused(Writer::default().raw("k", ARRAY, &array(13, 1, &[0; 8])).bytes(), &["\"k\"", "value type 13"]);
    let invalid = [&2u64.to_le_bytes()[..], &[b'a', 0xff]].concat();
    check_refused(Writer::default().raw("k", STRING, &invalid).bytes(), &["\"k\"", "UTF-8"]);
    let deep = (0..20).fold(array(U8, 1, &[1]), |inner, _| array(ARRAY, 1, &inner));
    check_refused(Writer::default().raw("k", ARRAY, &deep).bytes(), &["\"k\"", "deep"]);
    for alignment in [0, 3, 48, u32::MAX] {
        check_refused(Writer::default().u32("general.alignment", alignment).bytes(), &["general.alignment"]);
    }
}

#[test]
fn honours_the_alignment() {
    for alignment in [1, 8, 64, 4096] {
        let writer = f32_tensor("a").tensor("b", 0, &[1], vec![1, 2, 3, 4]).u32("general.alignment", alignment);
        let gguf = Writer { alignment: alignment as usize, ..writer }.read().unwrap();
        assert_eq!(gguf.tensor("b").unwrap().data, [1, 2, 3, 4][..]);
    }
}

#[test]
fn refuses_bad_tensors() {
    let change = |change: fn(&mut common::gguf::TensorRecord)| {
        let mut writer = f32_tensor("first").tensor("odd", 0, &[4, 2], vec![0; 32]);
        change(&mut writer.tensors[1]);
        writer.bytes()
    };
    check_refused(change(|tensor| tensor.name = "first".into()), &["\"first\"", "used before"]);
    check_refused(change(|tensor| tensor.dimensions = vec![]), &["\"odd\"", "0 dimensions"]);
    check_refused(change(|tensor| tensor.dimensions = vec![1; 5]), &["\"odd\"", "5 dimensions"]);
    check_refused(change(|tensor| tensor.dimensions = vec![4, 0]), &["\"odd\"", "zero"]);
    check_refused(change(|tensor| tensor.dimensions = vec![1 << 40, 1 << 40]), &["\"odd\"", "multiply"]);
    check_refused(change(|tensor| tensor.dimensions = vec![u64::MAX]), &["\"odd\""]);
    check_refused(change(|tensor| tensor.kind = 2), &["\"odd\"", "4 values", "Q4_0", "32 at a time"]);
    check_refused(change(|tensor| tensor.offset = Some(33)), &["\"odd\"", "not a multiple of the alignment 32"]);
    check_refused(change(|tensor| tensor.offset = Some(0)), &["\"odd\"", "overlaps tensor \"first\""]);
    check_refused(change(|tensor| tensor.offset = Some(1 << 20)), &["\"odd\"", "ends at", "download it again"]);
    check_refused(change(|tensor| tensor.offset = Some(u64::MAX - 31)), &["\"odd\"", "ends at"]);
}

#[test]
fn refuses_a_file_cut_anywhere() {
    let whole = f32_tensor("t").strings("words", &["one", "two"]).u32("n", 1).bytes();
    assert!(read(whole.clone()).is_ok());
    for length in 0..whole.len() {
        check_refused(whole[..length].to_vec(), &["test.gguf"]);
    }
    let cut = whole[..whole.len() - 1].to_vec();
    check_refused(cut, &["the file has", "but the tensor ends at", "download it again"]);
}

#[test]
fn opens_a_split_model_by_any_part() {
    let part = |number: usize| golden(&format!("tiny-llama-split-{number:05}-of-00003.gguf"));
    let whole = Gguf::open(&golden("tiny-llama-q4_0.gguf")).unwrap();
    for number in 1..=3 {
        let gguf = Gguf::open(&part(number)).unwrap();
        assert_eq!(gguf.files(), [part(1), part(2), part(3)]);
        assert_eq!(gguf.tensors().len(), whole.tensors().len());
        for tensor in whole.tensors() {
            assert_eq!(gguf.tensor(&tensor.name).unwrap().data, whole.tensor(&tensor.name).unwrap().data);
        }
        assert_eq!(gguf.metadata().get_str("general.architecture").unwrap(), "llama");
    }
}

#[test]
fn refuses_parts_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = |number: usize| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
    let part = |number: u32, count: u32, tensors: u32, name: &str| {
        let writer = Writer::default().tensor(name, 0, &[1], vec![0; 4]);
        writer.u32("split.no", number).u32("split.count", count).u32("split.tensors.count", tensors).bytes()
    };
    let open = |second: Option<Vec<u8>>| {
        std::fs::write(path(1), part(0, 2, 2, "a")).unwrap();
        match second {
            Some(bytes) => std::fs::write(path(2), bytes).unwrap(),
            None => std::fs::remove_file(path(2)).unwrap_or_default(),
        }
        Gguf::open(&path(1))
    };
    let refused = |second, part: &str| {
        let message = open(second).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("m-0000"), "{message}");
    };
    assert_eq!(open(Some(part(1, 2, 2, "b"))).unwrap().tensors().len(), 2);
    refused(None, "part 2 of 2 is needed");
    refused(Some(part(0, 2, 2, "b")), "the name says part 2 of 2 but the file says part 1 of 2");
    refused(Some(part(1, 3, 2, "b")), "the file says part 2 of 3");
    refused(Some(part(1, 2, 2, "a")), "`a` is in two parts");
    refused(Some(Writer::default().bytes()), "no metadata key `split.no`");
    std::fs::write(path(1), part(0, 2, 9, "a")).unwrap();
    std::fs::write(path(2), part(1, 2, 9, "b")).unwrap();
    assert!(Gguf::open(&path(1)).unwrap_err().to_string().contains("should have 9 tensors but its parts hold 2"));
    let renamed = folder.path().join("renamed.gguf");
    std::fs::write(&renamed, part(0, 2, 2, "a")).unwrap();
    assert!(Gguf::open(&renamed).unwrap_err().to_string().contains("must keep their names"));
    assert!(matches!(read(part(0, 2, 2, "a")), Err(ModelError::Split { .. })));
}

#[test]
fn names_a_file_that_cannot_be_opened() {
    let error = Gguf::open(Path::new("/nowhere/model.gguf")).unwrap_err();
    assert!(matches!(error, ModelError::Map(_)));
    assert!(error.to_string().contains("/nowhere/model.gguf"));
}

#[test]
fn shows_values_shortened() {
    let words: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let gguf = Writer::default().strings("w", &words).string("s", &"x".repeat(500)).read().unwrap();
    let shown = |key| gguf.metadata().find(key).unwrap().to_string();
    assert_eq!(shown("w"), r#"["0", "1", "2", "3", "4", "5", … 100 in all]"#);
    assert!(shown("s").len() < 120 && shown("s").contains("500 bytes"));
}
