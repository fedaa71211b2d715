use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;

use clap::{Args, CommandFactory, Parser, Subcommand};
use proptest::prelude::*;

use super::{ConfigOptions, Failure, Loaded, Origin, Setting, file, load, option};

#[derive(Parser, Debug)]
#[command(name = "program")]
struct Program {
    #[command(flatten)]
    config: ConfigOptions,
    #[arg(long, global = true, default_value = "warn")]
    log: String,
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand, Debug)]
enum Commands {
    Serve(Serve),
    Bench(Bench),
    Compare(Compare),
}

#[derive(Args, Debug, PartialEq, Default)]
struct Serve {
    #[arg(required_unless_present = "models_dir")]
    models: Vec<String>,
    #[arg(long)]
    models_dir: Option<String>,
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    #[arg(long, value_delimiter = ',')]
    shares: Option<Vec<f64>>,
    #[arg(long)]
    map: bool,
    #[arg(long, conflicts_with = "map")]
    no_map: bool,
    #[arg(long, requires = "secret")]
    remote: Option<usize>,
    #[arg(long)]
    secret: Option<String>,
    #[arg(long, hide_env_values = true, env = "CONFIG_TEST_KEY")]
    key: Vec<String>,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Bench {
    #[command(subcommand)]
    inner: Option<Inner>,
    #[arg(long)]
    repetitions: Option<u8>,
}

#[derive(Subcommand, Debug)]
enum Inner {
    Kernels {
        #[arg(long)]
        only: Option<String>,
    },
}

#[derive(Args, Debug)]
struct Compare {
    first: String,
    second: String,
}

/// What a command line with a file and variables comes to.
fn loaded(arguments: &[&str], variables: &[(&str, &str)], text: &str) -> Result<Loaded, Failure> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let config = [OsString::from("program"), "--config".into(), file.path().into()];
    let arguments = config.into_iter().chain(arguments.iter().map(OsString::from)).collect();
    let variables: Vec<_> = variables.iter().map(|&(name, value)| (name.into(), value.into())).collect();
    load(&Program::command(), arguments, &variables)
}

fn command(arguments: &[&str], variables: &[(&str, &str)], text: &str) -> Result<Commands, Failure> {
    Ok(Program::try_parse_from(loaded(arguments, variables, text)?.arguments)?.command)
}

fn serve(arguments: &[&str], variables: &[(&str, &str)], text: &str) -> Serve {
    match command(&[&["serve"], arguments].concat(), variables, text).unwrap() {
        Commands::Serve(serve) => serve,
        other => panic!("{other:?}"),
    }
}

fn setting(arguments: &[&str], variables: &[(&str, &str)], text: &str, key: &str) -> Setting {
    let settings = loaded(arguments, variables, text).unwrap().settings;
    settings.into_iter().find(|setting| setting.key == key).unwrap()
}

/// The mistakes in a file, as lines of `NUMBER: REASON`.
fn mistakes(text: &str) -> String {
    let mistakes = file::parse(&Program::command(), text).unwrap_err();
    mistakes.iter().map(|mistake| format!("{}: {}\n", mistake.line, mistake.reason)).collect()
}

#[test]
fn the_latter_of_file_environment_and_flags_wins() {
    let text = "[serve]\nmodels = ['a', 'b']\nparallel = 2\nshares = [3, 1.5]\nmap = true";
    let all = serve(&[], &[], text);
    let expected = Serve { parallel: 2, map: true, shares: Some(vec![3.0, 1.5]), ..Serve::default() };
    assert_eq!(all, Serve { models: vec!["a".to_owned(), "b".to_owned()], ..expected });
    let variables =
        [("ROPEWALK_SERVE_PARALLEL", "3"), ("ROPEWALK_SERVE_MAP", "off"), ("ROPEWALK_SERVE_MODELS", "['c']")];
    let some = serve(&[], &variables, text);
    assert_eq!((some.models, some.parallel, some.map), (vec!["c".to_owned()], 3, false));
    let flags = serve(&["d", "--parallel", "5", "--shares=1,2"], &variables, text);
    assert_eq!((flags.models, flags.parallel, flags.shares), (vec!["d".to_owned()], 5, Some(vec![1.0, 2.0])));
    assert_eq!(serve(&["d"], &[("ROPEWALK_SERVE_PARALLEL", "")], "").parallel, 4);
}

#[test]
fn settings_say_where_they_come_from() {
    let text = "log = 'info'\n[serve]\nparallel = 2";
    let variables = [("ROPEWALK_SERVE_SECRET", "s")];
    let of = |key: &str| {
        let setting = setting(&["serve", "--models-dir", "x"], &variables, text, key);
        (setting.values.join(","), setting.origin)
    };
    assert_eq!(of("log"), ("info".to_owned(), Origin::File { line: 1 }));
    assert_eq!(of("parallel"), ("2".to_owned(), Origin::File { line: 3 }));
    assert_eq!(of("secret"), ("s".to_owned(), Origin::Variable("ROPEWALK_SERVE_SECRET".to_owned())));
    assert_eq!(of("models-dir"), ("x".to_owned(), Origin::Flag));
    assert_eq!(of("map"), ("false".to_owned(), Origin::Default));
    assert_eq!(of("remote"), (String::new(), Origin::Default));
    assert!(setting(&["serve", "a"], &[], "", "key").is_secret);
}

#[test]
fn what_a_flag_or_variable_excludes_does_not_count() {
    let text = "[serve]\nmodels = ['a']\nmap = true";
    let serve_map = |arguments: &[&str], variables: &[(&str, &str)]| {
        let serve = serve(arguments, variables, text);
        (serve.map, serve.no_map)
    };
    assert_eq!(serve_map(&["--no-map"], &[]), (false, true));
    assert_eq!(serve_map(&[], &[("ROPEWALK_SERVE_NO_MAP", "1")]), (false, true));
    assert_eq!(serve_map(&["--map"], &[("ROPEWALK_SERVE_NO_MAP", "1")]), (true, false));
    let both = command(&["serve"], &[], "[serve]\nmodels = ['a']\nmap = true\nno-map = true").unwrap_err();
    let message = both.to_string();
    assert!(message.contains(":3: [serve] map") && message.contains(":4: [serve] no-map"), "{message}");
    assert!(!serve(&[], &[], "[serve]\nmodels = ['a']\nmap = true\nno-map = false").no_map);
}

#[test]
fn what_is_required_may_be_configured() {
    assert_eq!(serve(&[], &[], "[serve]\nmodels-dir = 'x'").models_dir.as_deref(), Some("x"));
    let with_secret = serve(&["a", "--remote", "1"], &[("ROPEWALK_SERVE_SECRET", "s")], "");
    assert_eq!((with_secret.remote, with_secret.secret.as_deref()), (Some(1), Some("s")));
    let missing = |result: Result<Commands, Failure>| matches!(result, Err(Failure::Usage(_)));
    assert!(missing(command(&["serve"], &[], "[serve]\nparallel = 3")));
    assert!(missing(command(&["serve", "a"], &[], "[serve]\nremote = 3")));
    // The user's own mistakes are told before anything is read.
    assert!(missing(command(&["serve", "a", "--parallel", "0"], &[], "nonsense")));
}

#[test]
fn arguments_without_flags_keep_their_places() {
    let compare = |arguments: &[&str], text: &str| {
        let command = command(&[&["compare"], arguments].concat(), &[], text);
        command.map(|command| match command {
            Commands::Compare(Compare { first, second }) => (first, second),
            other => panic!("{other:?}"),
        })
    };
    let pair = |first: &str, second: &str| (first.to_owned(), second.to_owned());
    let both = "[compare]\nfirst = 'x'\nsecond = 'y'";
    assert_eq!(compare(&[], both).unwrap(), pair("x", "y"));
    assert_eq!(compare(&["a"], both).unwrap(), pair("a", "y"));
    assert_eq!(compare(&["--", "-a"], both).unwrap(), pair("-a", "y"));
    assert_eq!(compare(&["a", "b"], both).unwrap(), pair("a", "b"));
    assert!(compare(&[], "[compare]\nsecond = 'y'").is_err());
    assert!(mistakes("[compare]\nfirst = '-x'").contains("must not begin with a hyphen"));
}

#[test]
fn commands_inside_of_commands_have_tables_inside_of_tables() {
    let text = "[bench]\nrepetitions = 3\n[bench.kernels]\nonly = 'multiply'";
    match command(&["bench", "kernels"], &[], text).unwrap() {
        Commands::Bench(Bench { inner: Some(Inner::Kernels { only }), .. }) => {
            assert_eq!(only.as_deref(), Some("multiply"));
        }
        other => panic!("{other:?}"),
    }
    match command(&["bench"], &[("ROPEWALK_BENCH_KERNELS_ONLY", "add")], text).unwrap() {
        Commands::Bench(Bench { inner: None, repetitions }) => assert_eq!(repetitions, Some(3)),
        other => panic!("{other:?}"),
    }
    assert!(loaded(&["bench"], &[("ROPEWALK_BENCH_KERNELS_ONLY", "add")], "").unwrap().warnings.is_empty());
}

#[test]
fn a_mistake_in_the_file_is_told_with_its_line() {
    for (text, expected) in [
        ("[serve]\nparalel = 3", "2: [serve] `paralel`: there is no such option; did you mean `parallel`?\n"),
        ("[serve]\n\nparallel = 300", "3: [serve] parallel = 300: 300 is not in 1..=256\n"),
        ("[serve]\nparallel = '3'", "2: [serve] parallel = '3': expected a number, found a string\n"),
        ("[serve]\nmap = 1", "2: [serve] map = 1: expected true or false, found a number\n"),
        ("[serve]\nsecret = [1]", "2: [serve] secret = [1]: expected a string, found an array\n"),
        ("[serve]\nmodels = [1]", "2: [serve] models = [1]: expected a string, or an array of such, found a number\n"),
        ("[serve]\nkey = 7", "2: [serve] key: expected a string, or an array of such, found a number\n"),
        ("[serv]", "1: [serv]: there is no such command; did you mean `[serve]`?\n"),
        ("[bench.kernel]\nonly=''", "1: [bench.kernel]: there is no such command; did you mean `[bench.kernels]`?\n"),
        ("serve = 3", "1: `serve` is a command: expected the table [serve]\n"),
        ("[serve\n", "1: unclosed table, expected `]`\n"),
    ] {
        assert_eq!(mistakes(text), expected);
    }
    assert!(mistakes("parallel = 3").contains("[serve]"));
    assert_eq!(mistakes("x = 1\n[serve]\ny = 2\nmap = 3").lines().count(), 3);
    assert!(mistakes("config = 'other'").starts_with("1: "));
}

#[test]
fn a_mistake_in_the_environment_is_told_with_the_variable() {
    let error = loaded(&["serve", "a"], &[("ROPEWALK_SERVE_PARALLEL", "x")], "").unwrap_err().to_string();
    assert!(error.contains("ROPEWALK_SERVE_PARALLEL"), "{error}");
    let warnings =
        loaded(&["serve", "a"], &[("ROPEWALK_SERVE_PARALEL", "3"), ("ROPEWALK_HOME", "x")], "").unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("ROPEWALK_SERVE_PARALEL ") && warnings[0].contains("`ROPEWALK_SERVE_PARALLEL`"));
    assert!(loaded(&["bench"], &[("ROPEWALK_SERVE_PARALEL", "3")], "").unwrap().warnings.is_empty());
}

#[test]
fn the_configuration_can_be_left_aside() {
    let text = "[serve]\nmodels = ['a']\nparallel = 2";
    assert_eq!(serve(&["b", "--no-config"], &[("ROPEWALK_SERVE_PARALLEL", "3")], text).parallel, 4);
}

/// Variables that mean something else.
const OTHER_VARIABLES: [&str; 11] = [
    "ROPEWALK_HOME",
    "ROPEWALK_LOG",
    "ROPEWALK_CONFIG",
    "ROPEWALK_API_KEY",
    "ROPEWALK_API_KEY_FILE",
    "ROPEWALK_KERNELS",
    "ROPEWALK_PORT",
    "ROPEWALK_RDMA",
    "ROPEWALK_RDMA_DEVICES",
    "ROPEWALK_SECRET",
    "ROPEWALK_SECRET_FILE",
];

#[test]
fn every_option_has_a_key_and_a_variable_of_its_own() {
    let root = crate::Arguments::command();
    let mut names: HashSet<String> = OTHER_VARIABLES.iter().map(|&name| name.to_owned()).collect();
    for words in option::command_names(&root) {
        let command = words.iter().try_fold(&root, |command, word| command.find_subcommand(word)).unwrap();
        let mut keys: HashSet<_> = option::commands(command).map(|command| command.get_name().to_owned()).collect();
        for arg in option::options(command) {
            assert!(keys.insert(option::key(arg)), "{words:?} {arg}");
            let name = super::variables::name(&words, &option::key(arg));
            assert!(names.insert(name.clone()), "{name} is taken");
        }
        let others: Vec<_> = OTHER_VARIABLES.map(|name| (name.into(), "x".into())).to_vec();
        assert_eq!(super::variables::unknown(command, &words, &others), [""; 0]);
        // A flag without a long name could not be configured.
        assert!(command.get_arguments().all(|arg| arg.is_positional() || arg.get_long().is_some()), "{words:?}");
    }
    // Between the program's name and the command's only options with long names are looked for.
    assert!(root.get_arguments().all(|arg| arg.get_short().is_none() && !arg.is_positional()));
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in "\\PC{0,80}|([a-z.='\"\\[\\]{}#0-9 \n-]{0,80})") {
        let _ = file::parse(&Program::command(), &text);
    }

    #[test]
    fn no_document_is_too_strange(
        lines in prop::collection::vec(
            ("serve|bench|bench\\.kernels|log|x", "models|parallel|map|shares|key|only|log", "-?[0-9]{1,25}|'[a-z,-]*'|true|\\[1, 'x'\\]|1979-05-27|0x1f|inf|1e400|\\{a=1\\}"),
            0..6,
        ),
    ) {
        let text: String = lines.iter().map(|(table, key, value)| format!("{table}.{key} = {value}\n")).collect();
        if let Ok(entries) = file::parse(&Program::command(), &text) {
            prop_assert!(entries.iter().all(|entry| !entry.values.is_empty() || text.contains("[]")));
        }
    }

    #[test]
    fn the_last_word_is_the_flags(file in prop::option::of(1u16..=256), variable in prop::option::of(1u16..=256), flag in prop::option::of(1u16..=256)) {
        let text = file.map(|value| format!("[serve]\nparallel = {value}")).unwrap_or_default();
        let value = variable.map(|value| value.to_string());
        let variables: Vec<_> = value.iter().map(|value| ("ROPEWALK_SERVE_PARALLEL", value.as_str())).collect();
        let flag_text = flag.map(|value| format!("--parallel={value}"));
        let arguments: Vec<_> = ["a"].into_iter().chain(flag_text.as_deref()).collect();
        let expected = flag.or(variable).or(file).unwrap_or(4);
        prop_assert_eq!(serve(&arguments, &variables, &text).parallel, expected);
        let shown = setting(&[&["serve"], &*arguments].concat(), &variables, &text, "parallel");
        prop_assert_eq!(shown.values, vec![expected.to_string()]);
    }
}
