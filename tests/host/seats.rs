//! The seats: each has one process, and is free again when that process ends.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bucketq::internals::place::{MeetingPlace, SEATS, Seat};
use bucketq::{Code, Env};
use rustix::process::test_kill_process;

use crate::kit::{Neighbour, temporary};

fn place(dir: &Path) -> MeetingPlace {
    MeetingPlace::find(Some(dir), "jobs").expect("it is ours")
}

fn take(place: &MeetingPlace, seat: u8) -> Option<Seat> {
    place.take(seat).expect("it is ours")
}

fn is_taken(place: &MeetingPlace, seat: u8) -> bool {
    place.is_taken(seat).expect("it is ours")
}

#[test]
fn a_seat_has_one_process_until_that_leaves() {
    let temp = temporary();
    let (mut other, here) = (Neighbour::at(temp.path()), place(temp.path()));
    for seat in 0..SEATS {
        assert!(!is_taken(&here, seat), "nobody has taken {seat} yet");
        assert_eq!(other.is_told(&format!("take {seat}")), "taken");
        assert_eq!(other.is_told(&format!("bind {seat}")), "done");
        assert!(is_taken(&here, seat));
        assert!(take(&here, seat).is_none());
        assert!(here.socket(seat).exists());
    }
    assert_eq!(other.is_told("leave"), "done");
    for seat in 0..SEATS {
        assert!(!is_taken(&here, seat));
        assert!(!here.socket(seat).exists());
        assert_eq!(take(&here, seat).expect("it is free").number(), seat);
    }
}

#[test]
fn two_writers_of_one_process_have_two_seats() {
    let temp = temporary();
    let (one, two) = (place(temp.path()), place(temp.path()));
    let seat = take(&one, 0).expect("it is free");
    assert!(take(&two, 0).is_none() && is_taken(&two, 0) && is_taken(&one, 0));
    assert_eq!(take(&two, 1).expect("it is free").number(), 1);
    drop(seat);
    assert!(take(&two, 0).is_some());
}

#[test]
fn a_look_takes_nothing_and_creates_nothing() {
    let temp = temporary();
    let here = place(temp.path());
    assert!(!is_taken(&here, 0));
    assert_eq!(fs::read_dir(temp.path()).expect("it is there").count(), 0);
    drop(take(&here, 0).expect("it is free"));
    let mut other = Neighbour::at(temp.path());
    for _ in 0..10 {
        assert!(!is_taken(&here, 0));
        assert_eq!(other.is_told("take 0"), "taken");
        assert!(is_taken(&here, 0) && is_taken(&here, 0));
        assert_eq!(other.is_told("look 0"), "held");
        other.is_told("leave");
    }
}

#[test]
fn of_many_processes_that_want_a_seat_one_gets_it() {
    let temp = temporary();
    let mut others: Vec<Neighbour> = (0..4).map(|_| Neighbour::at(temp.path())).collect();
    for _ in 0..25 {
        let start = Barrier::new(others.len());
        let replies: Vec<String> = std::thread::scope(|scope| {
            let start = &start;
            let started = others.iter_mut().map(|other| {
                scope.spawn(move || {
                    start.wait();
                    other.is_told("take 0")
                })
            });
            let started: Vec<_> = started.collect();
            started.into_iter().map(|one| one.join().expect("no thread panics")).collect()
        });
        assert_eq!(replies.iter().filter(|r| *r == "taken").count(), 1, "{replies:?}");
        assert_eq!(replies.iter().filter(|r| *r == "busy").count(), 3, "{replies:?}");
        for other in &mut others {
            other.is_told("leave");
        }
    }
}

#[test]
fn processes_that_only_look_keep_none_off() {
    let temp = temporary();
    let here = place(temp.path());
    drop(take(&here, 0).expect("it is free"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    is_taken(&here, 0);
                }
            });
        }
        let kept_off = (0..2_000).filter(|_| take(&here, 0).is_none()).count();
        is_over.store(true, SeqCst);
        assert_eq!(kept_off, 0);
    });
}

#[test]
fn a_killed_process_leaves_its_seat_and_the_next_one_can_bind_its_socket() {
    let temp = temporary();
    let (mut leader, here) = (Neighbour::at(temp.path()), place(temp.path()));
    assert_eq!(leader.is_told("take 0"), "taken");
    assert_eq!(leader.is_told("bind 0"), "done");
    leader.dies();
    assert!(!is_taken(&here, 0));
    assert!(here.socket(0).exists(), "nobody has tidied up yet");
    let mut next = Neighbour::at(temp.path());
    assert_eq!(next.is_told("take 0"), "taken");
    assert!(!here.socket(0).exists());
    assert_eq!(next.is_told("bind 0"), "done");
}

#[test]
fn a_stopped_process_keeps_its_seat_and_others_take_the_next() {
    let temp = temporary();
    let (mut leader, here) = (Neighbour::at(temp.path()), place(temp.path()));
    assert_eq!(leader.is_told("take 0"), "taken");
    assert_eq!(leader.is_told("bind 0"), "done");
    leader.stops();
    assert!(is_taken(&here, 0));
    assert!(take(&here, 0).is_none());
    assert!(here.socket(0).exists());
    assert!(take(&here, 1).is_some());
    leader.dies();
    assert!(take(&here, 0).is_some());
}

#[test]
fn a_forked_child_has_no_seat_and_takes_none_from_its_parent() {
    let temp = temporary();
    let (mut leader, here) = (Neighbour::at(temp.path()), place(temp.path()));
    assert_eq!(leader.is_told("take 0"), "taken");
    assert_eq!(leader.is_told("bind 0"), "done");
    let child = leader.forks();
    // The child has dropped its copy of the seat.
    assert!(is_taken(&here, 0) && here.socket(0).exists());
    assert_eq!(leader.is_told("leave"), "done");
    assert!(!is_taken(&here, 0) && !here.socket(0).exists());

    assert_eq!(leader.is_told("take 0"), "taken");
    let second = leader.forks();
    leader.dies();
    for pid in [child, second] {
        test_kill_process(pid).expect("the child lives");
    }
    assert!(!is_taken(&here, 0));
    assert!(take(&here, 0).is_some());
}

#[test]
fn a_leader_whose_lock_was_deleted_knows_it_and_leaves_the_socket_of_the_next() {
    let temp = temporary();
    let here = place(temp.path());
    let first = take(&here, 0).expect("it is free");
    assert!(first.is_current());
    for file in fs::read_dir(temp.path()).expect("it is there").flatten() {
        fs::remove_file(file.path()).expect("it is ours");
    }
    assert!(!first.is_current() && !is_taken(&here, 0));
    let mut next = Neighbour::at(temp.path());
    assert_eq!(next.is_told("take 0"), "taken");
    assert_eq!(next.is_told("bind 0"), "done");
    assert!(!first.is_current());
    drop(first);
    assert!(here.socket(0).exists() && is_taken(&here, 0));
}

#[test]
fn a_leader_tidies_away_the_seats_of_processes_that_were_killed_long_ago() {
    let temp = temporary();
    let (mut killed, here) = (Neighbour::at(temp.path()), place(temp.path()));
    let mut lives = Neighbour::start(&[]);
    lives.is_told(&format!("find {} others", temp.path().display()));
    for seat in [0, 3] {
        for process in [&mut killed, &mut lives] {
            assert_eq!(process.is_told(&format!("take {seat}")), "taken");
            assert_eq!(process.is_told(&format!("bind {seat}")), "done");
        }
    }
    killed.dies();
    let foreign =
        ["0123456789abcdef.9.lock", "0123456789ABCDEF.0.lock", "0123456789abcdef.0.txt", "jobs.0.lock"];
    for name in foreign {
        fs::write(temp.path().join(name), "").expect("it is ours");
    }
    let files = || fs::read_dir(temp.path()).expect("it is there").count();
    assert_eq!(files(), 4 + 4 + foreign.len());
    let now = Env::default().wall_ms();
    here.tidy(now + 1_800_000);
    assert_eq!(files(), 4 + 4 + foreign.len(), "they are young: their processes may just be starting");
    here.tidy(now + 7_200_000);
    assert_eq!(files(), 4 + foreign.len());
    assert!(!here.socket(0).exists() && !here.socket(3).exists());
    assert_eq!(lives.is_told("look 0"), "held");
    assert_eq!(lives.is_told("leave"), "done");
    assert_eq!(files(), foreign.len());
}

#[test]
fn a_place_that_was_deleted_is_created_again_for_the_next_leader() {
    let temp = temporary();
    let here = place(&temp.path().join("dir"));
    let first = take(&here, 0).expect("it is free");
    fs::remove_dir_all(temp.path().join("dir")).expect("it is ours");
    assert!(!first.is_current() && !is_taken(&here, 0));
    assert!(take(&here, 0).expect("nobody has it").is_current());
}

#[test]
fn a_lock_that_is_no_plain_file_is_refused_and_its_target_stays_as_it_is() {
    let temp = temporary();
    let here = place(temp.path());
    let lock = |seat| here.socket(seat).with_extension("lock");
    let target = temp.path().join("target");
    symlink(&target, lock(0)).expect("it can be made");
    fs::create_dir(lock(1)).expect("it can be made");
    rustix::fs::mknodat(rustix::fs::CWD, lock(2), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .expect("it can be made");
    for seat in 0..3 {
        for error in [here.take(seat).map(drop), here.is_taken(seat).map(drop)] {
            let error = error.expect_err("it is no lock");
            assert_eq!(error.code(), Code::LocalFile, "{error}");
            assert!(error.message().contains("cannot open a lock in"), "{error}");
        }
    }
    assert!(!target.exists());
}
