//! The commands about links and collectives.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Stdio;

use common::{command, failure, json, run};

#[test]
fn collectives_give_a_row_for_each_size() {
    for (transport, name) in [("shm", "shared memory"), ("tcp", "TCP")] {
        let arguments = ["bench", "collectives", "--ranks", "2", "--transport", transport];
        let rows = json(&[&arguments[..], &["--sizes", "0,1K,300000", "--seconds", "0", "--json"]].concat());
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1024, 300_000]);
        for row in rows {
            assert_eq!((row["collective"].as_str(), row["ranks"].as_u64()), (Some("all_reduce"), Some(2)));
            assert_eq!(row["transport"].as_str(), Some(name));
            assert!(row["median_us"].as_f64().unwrap() > 0.0 && row["p99_us"].as_f64() >= row["median_us"].as_f64());
            assert!(row["bus_gb_s"].as_f64().unwrap() >= 0.0);
        }
    }
}

#[test]
fn several_collectives_of_more_ranks_than_cores_can_be_measured() {
    let collectives = "all_reduce,reduce_scatter,all_gather,all_to_all,broadcast,barrier";
    let arguments = ["bench", "collectives", "--ranks", "3", "--sizes", "12K", "--seconds", "0.01"];
    for dtype in ["f32", "bf16"] {
        let rows = json(&[&arguments[..], &["--collective", collectives, "--dtype", dtype, "--json"]].concat());
        assert_eq!(rows.as_array().unwrap().len(), 6);
        assert_eq!(rows[5]["dtype"], dtype);
    }
    let table = run(&arguments);
    assert!(table.status.success() && String::from_utf8_lossy(&table.stdout).contains("all_reduce"));
}

#[test]
fn links_are_measured_in_both_directions() {
    let report = json(&["link", "--ranks", "3", "--transport", "tcp", "--budget", "5", "--json"]);
    let links = report["links"].as_array().unwrap();
    assert_eq!(links.len(), 6);
    for link in links {
        for key in ["from", "to", "latency_us_median", "latency_us_p99", "bandwidth", "loss", "retries", "errors"] {
            assert!(link[key].is_number() || key == "retries", "{key} of {link}");
        }
    }
    assert!(report["warnings"].is_array());
    let table = run(&["link", "--budget", "5"]);
    assert!(table.status.success() && String::from_utf8_lossy(&table.stdout).contains("shared memory"));
}

#[test]
fn wrong_requests_are_told_what_is_wrong() {
    assert!(failure(&["bench", "collectives", "--ranks", "1"]).contains("at least 2"));
    assert!(failure(&["bench", "collectives", "--sizes", "7"]).contains("whole number of elements"));
    // Whatever machine the tests run on, ranks on loopback have no RDMA port there.
    let no_ports = failure(&["bench", "collectives", "--transport", "rdma", "--sizes", "1K", "--seconds", "0.01"]);
    assert!(no_ports.contains("RDMA"), "{no_ports}");
    let uneven = failure(&["bench", "collectives", "--ranks", "3", "--sizes", "1K", "--collective", "all_to_all"]);
    assert!(uneven.contains("multiples of 12"), "{uneven}");
    assert!(failure(&["bench", "collectives", "--sizes", "1G"]).contains("not a number of bytes"));
    assert!(failure(&["bench"]).contains("MODEL"));
    assert!(failure(&["link", "--ranks", "0"]).contains("at least 2"));
}

#[test]
fn ranks_started_by_a_launcher_find_each_other() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let rank = |rank: &str| {
        let mut command = command(&["link", "--rendezvous", "env", "--budget", "5", "--json"]);
        command.env("RANK", rank).env("WORLD_SIZE", "3").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = ["2", "0", "1"].into_iter().map(rank).collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let report: serde_json::Value = serde_json::from_slice(&outputs[1].stdout).unwrap();
    assert_eq!((report["ranks"].as_u64(), report["links"].as_array().unwrap().len()), (Some(3), 6));
    assert!(outputs[0].stdout.is_empty() && outputs[2].stdout.is_empty(), "only rank 0 has something to say");
    let mut contradiction = command(&["link", "--rendezvous", "env", "--ranks", "3"]);
    contradiction.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
    assert!(String::from_utf8_lossy(&contradiction.output().unwrap().stderr).contains("contradicts torchrun"));
    let alone = command(&["link", "--rendezvous", "env"]).output().unwrap();
    assert!(String::from_utf8_lossy(&alone.stderr).contains("no launcher"));
}
