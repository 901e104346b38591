//! The directory where processes meet: which one it is, and which ones are refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bucketq::Code;
use bucketq::internals::place::{LONGEST_SOCKET, MeetingPlace, SEATS};

use crate::kit::{Mounted, Neighbour, STRANGER, directory, is_root, mode, set_mode, temporary};

/// The directory in which a process with these variables meets others, or its reason why not.
fn usual(variables: &[(&str, &Path)]) -> Result<PathBuf, String> {
    let reply = Neighbour::start(variables).is_told("find - jobs");
    match reply.split_once(' ').expect("a reply has two parts") {
        ("found", socket) => Ok(Path::new(socket).parent().expect("it lies in a directory").to_owned()),
        ("cannot", reason) => Err(reason.to_owned()),
        _ => panic!("{reply}"),
    }
}

/// The reason why processes cannot meet in this directory.
fn refused(dir: &Path) -> String {
    let error = MeetingPlace::find(Some(dir), "jobs").expect_err("it is not safe");
    assert_eq!(error.code(), Code::LocalFile, "{error}");
    assert!(error.message().contains(dir.to_str().expect("plain")), "{error}");
    error.message().to_owned()
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn processes_meet_in_the_runtime_directory_of_their_user() {
    let (runtime, other) = (temporary(), temporary());
    let found = usual(&[("XDG_RUNTIME_DIR", runtime.path()), ("TMPDIR", other.path())]);
    assert_eq!(found, Ok(runtime.path().join("bucketq")));
    assert_eq!(mode(&runtime.path().join("bucketq")), 0o700);
    assert_eq!(fs::read_dir(other.path()).expect("it is there").count(), 0);
}

#[test]
fn without_a_private_runtime_directory_processes_meet_among_the_temporary_files() {
    let temp = temporary();
    let expected = temp.path().join(format!("bucketq-{}", me()));
    let open = directory(temp.path().join("open"), 0o755);
    let file = temp.path().join("file");
    fs::write(&file, "").expect("it can be written");
    set_mode(&file, 0o700);
    let mut wrong = vec![open.clone(), file, temp.path().join("missing"), PathBuf::from("."), PathBuf::new()];
    if is_root() {
        let foreign = directory(temp.path().join("foreign"), 0o700);
        chown(&foreign, Some(STRANGER), None).expect("root may");
        wrong.push(foreign);
    }
    for runtime in wrong {
        let found = usual(&[("XDG_RUNTIME_DIR", &runtime), ("TMPDIR", temp.path())]);
        assert_eq!(found, Ok(expected.clone()), "{}", runtime.display());
    }
    assert_eq!(usual(&[("TMPDIR", temp.path())]), Ok(expected.clone()));
    assert_eq!(mode(&expected), 0o700);
    assert_eq!(fs::read_dir(open).expect("it is there").count(), 0);
}

#[test]
fn a_usual_directory_that_others_may_access_is_refused_and_left_as_it_is() {
    let temp = temporary();
    let dir = directory(temp.path().join(format!("bucketq-{}", me())), 0o700);
    let variables = [("TMPDIR", temp.path())];
    for wrong in [0o755, 0o710, 0o777, 0o1777, 0o770] {
        set_mode(&dir, wrong);
        let reason = usual(&variables).expect_err("others may access it");
        assert!(reason.contains(&format!("others may access it (mode {wrong:o})")), "{reason}");
        assert_eq!(mode(&dir), wrong);
    }
    set_mode(&dir, 0o700);
    assert_eq!(usual(&variables), Ok(dir));
}

#[test]
fn a_usual_directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let temp = temporary();
    let dir = directory(temp.path().join(format!("bucketq-{}", me())), 0o700);
    chown(&dir, Some(STRANGER), None).expect("root may");
    let reason = usual(&[("TMPDIR", temp.path())]).expect_err("it is not ours");
    let expected = format!("it belongs to user {STRANGER}, and this process runs as user {}", me());
    assert!(reason.contains(&expected), "{reason}");
}

#[test]
fn a_link_or_a_file_in_the_place_of_the_directory_is_refused() {
    let temp = temporary();
    let elsewhere = directory(temp.path().join("elsewhere"), 0o700);
    let dir = temp.path().join(format!("bucketq-{}", me()));
    for target in [elsewhere.clone(), temp.path().join("nowhere")] {
        symlink(target, &dir).expect("it can be made");
        let reason = usual(&[("TMPDIR", temp.path())]).expect_err("it leads elsewhere");
        assert!(reason.contains("it is a symbolic link"), "{reason}");
        assert!(refused(&dir).contains("it is a symbolic link"));
        let with_slash = PathBuf::from(format!("{}/", dir.display()));
        let error = MeetingPlace::find(Some(&with_slash), "jobs").expect_err("it leads elsewhere");
        assert!(error.message().contains("it is a symbolic link"), "{error}");
        fs::remove_file(&dir).expect("it is ours");
    }
    assert!(!temp.path().join("nowhere").exists());
    assert_eq!(fs::read_dir(elsewhere).expect("it is there").count(), 0);
    fs::write(&dir, "").expect("it can be written");
    let reason = usual(&[("TMPDIR", temp.path())]).expect_err("it is a file");
    assert!(reason.contains("it is not a directory"), "{reason}");
    assert!(refused(&dir).contains("it is not a directory"));
}

#[test]
fn a_chosen_directory_has_the_rights_that_the_user_gave_it() {
    let temp = temporary();
    for (name, mode) in [("mine", 0o700), ("read", 0o755), ("group", 0o2770), ("all", 0o1777)] {
        let dir = directory(temp.path().join(name), mode);
        let place = MeetingPlace::find(Some(&dir), "jobs").unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(place.take(0).expect("it is ours").is_some());
    }
    let made = temp.path().join("new").join("dir");
    MeetingPlace::find(Some(&made), "jobs").expect("it is created");
    assert_eq!((mode(&made), mode(made.parent().expect("it has one"))), (0o700, 0o700));
    if is_root() {
        let shared = directory(temp.path().join("shared"), 0o770);
        chown(&shared, Some(STRANGER), None).expect("root may");
        MeetingPlace::find(Some(&shared), "jobs").expect("the user chose it");
    }
}

#[test]
fn a_chosen_directory_where_everybody_may_delete_is_refused() {
    let temp = temporary();
    let dir = directory(temp.path().join("shared"), 0o777);
    assert!(refused(&dir).contains("everybody may delete files in it (mode 777)"));
}

#[test]
fn a_directory_that_only_others_may_write_to_is_refused() {
    if !is_root() {
        return;
    }
    let temp = temporary();
    set_mode(temp.path(), 0o755);
    let dir = directory(temp.path().join("ours"), 0o755);
    let mut stranger = Neighbour::start(&[]);
    assert_eq!(stranger.is_told(&format!("become {STRANGER}")), "done");
    let reply = stranger.is_told(&format!("find {} jobs", dir.display()));
    assert!(reply.contains("this process may not create files in it"), "{reply}");
    let reply = stranger.is_told(&format!("find {}/new jobs", dir.display()));
    assert!(reply.contains("cannot create a directory in"), "{reply}");
}

#[test]
fn a_full_or_read_only_disk_is_named() {
    let temp = temporary();
    // The root of the disk is its only file.
    let Some(disk) = Mounted::over(temp.path(), "nr_inodes=1,mode=700") else { return };
    let error = MeetingPlace::find(Some(&temp.path().join("dir")), "jobs").expect_err("it is full");
    assert_eq!(error.code(), Code::DiskFull, "{error}");
    let place = MeetingPlace::find(Some(temp.path()), "jobs").expect("nothing was created");
    let error = place.take(0).expect_err("there is no room for the lock");
    assert_eq!(error.code(), Code::DiskFull, "{error}");
    assert!(error.message().contains("make room"), "{error}");
    disk.is_only_read();
    assert!(refused(temp.path()).contains("this process may not create files in it: Read-only file system"));
}

#[test]
fn a_path_too_long_for_a_socket_is_refused_and_the_longest_possible_one_works() {
    let temp = temporary();
    let name = Path::new("0123456789abcdef.7.sock");
    let free = LONGEST_SOCKET - temp.path().join("x").join(name).as_os_str().len();
    let (longest, longer) = (temp.path().join("x".repeat(free + 1)), temp.path().join("x".repeat(free + 2)));
    let place = MeetingPlace::find(Some(&longest), "jobs").expect("it is as long as possible");
    let seat = place.take(SEATS - 1).expect("it is ours").expect("it is free");
    assert_eq!(seat.socket().as_os_str().len(), LONGEST_SOCKET);
    UnixListener::bind(seat.socket()).expect("the system takes it");
    let error = MeetingPlace::find(Some(&longer), "jobs").expect_err("it is too long");
    assert_eq!(error.code(), Code::Option, "{error}");
    assert!(error.message().contains(&format!("at most {LONGEST_SOCKET} are possible")), "{error}");
    assert!(!longer.exists());
}

#[test]
fn every_queue_file_and_every_user_has_a_place_of_its_own() {
    let temp = temporary();
    let at = |place| MeetingPlace::find(Some(temp.path()), place).expect("it is ours");
    let (one, again, two) = (at("s3://a/jobs"), at("s3://a/jobs"), at("s3://a/jobs2"));
    assert_eq!(one.socket(3), again.socket(3));
    assert_ne!(one.socket(3), two.socket(3));
    assert_ne!(one.socket(3), one.socket(4));
    let name = one.socket(3).file_name().and_then(|n| n.to_str()).expect("plain").to_owned();
    let (hash, rest) = name.split_once('.').expect("it has an end");
    assert_eq!((hash.len(), rest), (16, "3.sock"));
    assert!(hash.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");

    let mut same = Neighbour::start(&[]);
    let order = format!("find {} s3://a/jobs", temp.path().display());
    assert_eq!(same.is_told(&order), format!("found {}", one.socket(0).display()));
    if is_root() {
        set_mode(temp.path(), 0o1777);
        let mut stranger = Neighbour::start(&[]);
        stranger.is_told(&format!("become {STRANGER}"));
        // Another version of this library must compute the same name.
        let socket = temp.path().join("38addf20830701ad.0.sock");
        assert_eq!(stranger.is_told(&order), format!("found {}", socket.display()));
    }
}

#[test]
fn a_relative_directory_is_the_same_place_wherever_the_process_goes_next() {
    let here = std::env::current_dir().expect("there is one");
    let dir = tempfile::tempdir_in(&here).expect("a directory can be made");
    let name = Path::new(dir.path().file_name().expect("it has a name"));
    let place = MeetingPlace::find(Some(name), "jobs").expect("it is ours");
    assert_eq!(place.socket(0).parent(), Some(dir.path()));
    let error = MeetingPlace::find(Some(Path::new("")), "jobs").expect_err("it is no path");
    assert_eq!(error.code(), Code::Option);
}

#[test]
fn only_their_user_can_open_the_files_of_a_seat_and_none_is_left_behind() {
    let temp = temporary();
    let dir = directory(temp.path().join("all"), 0o1777);
    let place = MeetingPlace::find(Some(&dir), "jobs").expect("it is sticky");
    let seat = place.take(2).expect("it is ours").expect("it is free");
    let _socket = UnixListener::bind(seat.socket()).expect("the seat is ours");
    let lock = seat.socket().with_extension("lock");
    let meta = lock.metadata().expect("it is there");
    assert_eq!((mode(&lock), meta.len(), meta.uid()), (0o600, 0, me()));
    drop(seat);
    assert_eq!(fs::read_dir(&dir).expect("it is there").count(), 0);
}
