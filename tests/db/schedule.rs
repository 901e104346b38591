//! Schedules: when they enqueue, once for each time, and how missed times are handled.

use bucketq::error::Code;
use bucketq::job::{New, Payload, State, When};
use bucketq::op::{Claim, Op, Outcome, Queues};
use bucketq::policy::{Changes, Overflow};
use bucketq::query::{Answer, Query, ScheduleInfo};
use bucketq::schedule::{Missed, Schedule, Timing};
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, id, job};

use crate::policies::configure;

fn every(every_ms: i64) -> Timing {
    Timing::Every { every_ms, from_ms: None }
}

fn cron(expression: &str, zone: &str) -> Timing {
    Timing::Cron { expression: expression.into(), zone: zone.into() }
}

fn make(name: &str, timing: Timing, missed: Missed) -> Op {
    let schedule = Schedule { timing, missed, job: New { payload: Payload::text(name), ..job(0) } };
    Op::Schedule { queue: "q".into(), name: name.into(), schedule: Box::new(schedule) }
}

fn schedules(w: &mut World) -> Vec<ScheduleInfo> {
    match w.query(&Query::Schedules(None)) {
        Answer::Schedules(found) => found,
        other => panic!("schedules are {other:?}"),
    }
}

/// The times for which the jobs of a claim were enqueued.
fn fired(w: &mut World) -> Vec<i64> {
    let due = |c: &bucketq::job::Claimed| c.job.headers["bucketq-due-ms"].parse::<i64>().unwrap() - START_MS;
    w.claim(claim("q", 1_000, 1)).iter().map(due).collect()
}

#[test]
fn a_time_fires_once_and_a_waiting_claim_wakes_for_it() {
    let mut w = World::default();
    assert_eq!(w.ok(&make("tick", every(100), Missed::Skip)), Outcome::Scheduled { next_ms: START_MS + 100 });
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(START_MS + 100));
    assert!(fired(&mut w).is_empty());
    w.wait(99);
    assert!(fired(&mut w).is_empty());
    w.wait(1);
    assert_eq!(fired(&mut w), [100]);
    w.db.forget();
    assert!(fired(&mut w).is_empty(), "once");
    w.wait(100);
    let got = w.claim(claim("q", 9, 1));
    assert_eq!((&got[0].payload.bytes[..], &*got[0].job.headers["bucketq-schedule"]), (&b"tick"[..], "tick"));
    let info = schedules(&mut w).remove(0);
    assert_eq!((info.next_ms - START_MS, info.last_ms.unwrap() - START_MS, info.fired), (300, 200, 2));
}

#[test]
fn a_schedule_may_begin_in_any_year_that_can_be_written_down() {
    let mut w = World::default();
    let year_2099 = 4_070_908_800_000;
    let far = |from_ms| Timing::Every { every_ms: 1, from_ms: Some(from_ms) };
    assert_eq!(w.ok(&make("tick", far(year_2099), Missed::Skip)), Outcome::Scheduled { next_ms: year_2099 });
    for outside in [-1, 253_402_300_800_000] {
        assert_eq!(w.refused(&make("tick", far(outside), Missed::Skip)).code(), Code::Argument);
    }
}

#[test]
fn the_same_schedule_is_known_again_though_its_job_has_another_id_and_time() {
    let mut w = World::default();
    w.ok(&make("tick", every(100), Missed::Skip));
    let before = schedules(&mut w);
    let mut again = make("tick", every(100), Missed::Skip);
    if let Op::Schedule { schedule, .. } = &mut again {
        (schedule.job.id, schedule.job.when) = (id(9), When::In(5));
    }
    w.ok(&again);
    assert_eq!(schedules(&mut w), before);
}

#[test]
fn missed_times_are_skipped_but_for_the_newest_or_caught_up_with() {
    let mut w = World::default();
    w.ok(&make("skip", every(100), Missed::Skip));
    w.wait(1_050);
    assert_eq!(fired(&mut w), [1_000]);
    w.ok(&Op::Unschedule { queue: "q".into(), name: "skip".into() });
    let mut w = World::default();
    w.ok(&make("catch up", every(100), Missed::CatchUp));
    w.wait(450);
    assert_eq!(fired(&mut w), [100, 200, 300, 400]);
    w.wait(100 * 250);
    assert_eq!(
        [fired(&mut w).len(), fired(&mut w).len(), fired(&mut w).len()],
        [100, 100, 50],
        "a batch a claim"
    );
    assert_eq!(schedules(&mut w)[0].fired, 254);
}

#[test]
fn a_long_sleep_is_skipped_in_no_time() {
    let mut w = World::default();
    w.ok(&make("minute", cron("* * * * *", "Europe/Berlin"), Missed::Skip));
    w.wait(20 * 366 * 86_400_000);
    let last = fired(&mut w);
    assert_eq!(last.len(), 1);
    let ago = w.now_ms - START_MS - last[0];
    assert!((0..60_000).contains(&ago), "{ago}");
}

#[test]
fn a_schedule_made_again_moves_nothing_unless_its_times_differ() {
    let mut w = World::default();
    w.ok(&make("tick", every(100), Missed::Skip));
    w.wait(60);
    assert_eq!(w.ok(&make("tick", every(100), Missed::Skip)), Outcome::Scheduled { next_ms: START_MS + 100 });
    w.ok(&make("tick", every(100), Missed::CatchUp));
    assert_eq!(schedules(&mut w)[0].next_ms, START_MS + 100, "what it does is another thing");
    w.ok(&make("tick", every(50), Missed::CatchUp));
    assert_eq!(schedules(&mut w)[0].next_ms, START_MS + 110);
    assert_eq!(schedules(&mut w).len(), 1);
}

#[test]
fn an_unscheduled_one_fires_no_more() {
    let mut w = World::default();
    w.ok(&make("tick", every(100), Missed::Skip));
    let gone = Op::Unschedule { queue: "q".into(), name: "tick".into() };
    assert_eq!(w.ok(&gone), Outcome::Unscheduled { was_there: true });
    assert_eq!(w.ok(&gone), Outcome::Unscheduled { was_there: false });
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), None);
    w.wait(1_000);
    assert!(fired(&mut w).is_empty());
}

#[test]
fn a_full_or_closed_queue_keeps_its_times_for_later() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { max_pending: Some(Some(1)), ..Changes::default() }));
    w.ok(&make("tick", every(100), Missed::CatchUp));
    w.ok(&enqueue("q", [job(7)]));
    w.wait(300);
    let first = w.claim(claim("q", 1, 1));
    assert_eq!(first[0].job.id, id(7));
    assert_eq!(fired(&mut w), [100]);
    assert_eq!(fired(&mut w), [200]);
    w.ok(&Op::Drain { queue: "q".into() });
    assert!(fired(&mut w).is_empty());
    w.ok(&Op::Resume { queue: "q".into() });
    assert_eq!(fired(&mut w), [300]);
    let drops = Changes { overflow: Some(Overflow::DropOldest), ..Changes::default() };
    w.ok(&configure("q", drops));
    w.wait(300);
    assert_eq!(fired(&mut w), [600], "the newest where room is made");
}

#[test]
fn a_schedule_that_makes_no_sense_is_refused_and_told_what_would_be_right() {
    let mut w = World::default();
    for text in [
        "",
        "* * * *",
        "60 * * * *",
        "* * 0 * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "a * * * *",
        "0 0 30 2 *",
        "@never",
    ] {
        let error = w.refused(&make("x", cron(text, "UTC"), Missed::Skip));
        assert_eq!(error.code(), Code::Argument, "{text}: {error}");
    }
    assert!(
        w.refused(&make("x", cron("0 0 * * *", "Mars/Base"), Missed::Skip))
            .message()
            .contains("Europe/Berlin")
    );
    assert_eq!(w.refused(&make("x", every(0), Missed::Skip)).code(), Code::Argument);
    assert_eq!(w.refused(&make("", every(1), Missed::Skip)).code(), Code::Argument);
}

#[test]
fn a_scheduled_job_can_be_cancelled_before_it_runs_and_waits_as_far_as_the_year_9999() {
    let mut w = World::default();
    w.ok(&enqueue(
        "q",
        [New { when: When::At(253_402_300_799_999), ..job(1) }, New { when: When::In(5), ..job(2) }],
    ));
    w.ok(&Op::Cancel { id: id(2), leased: false });
    w.wait(100 * 366 * 86_400_000);
    assert!(w.claim(Claim { queues: Queues::Any, ..claim("q", 9, 1) }).is_empty());
    assert_eq!(w.state(1), State::Scheduled);
}

/// The next five times of an expression as local time.
fn times(expression: &str, zone: &str, from: &str) -> Vec<String> {
    let zoned: jiff::Zoned = format!("{from}[{zone}]").parse().unwrap();
    let mut ms = zoned.timestamp().as_millisecond();
    let timing = cron(expression, zone);
    (0..5)
        .map(|_| {
            ms = timing.after(ms).unwrap().unwrap();
            let at = jiff::Timestamp::from_millisecond(ms).unwrap().to_zoned(zoned.time_zone().clone());
            at.strftime("%Y-%m-%d %H:%M %a").to_string()
        })
        .collect()
}

#[test]
fn cron_expressions_mean_what_everybody_thinks() {
    let utc = |expression| times(expression, "UTC", "2026-11-18T10:07:30");
    let same_day = |times: Vec<String>| times.into_iter().map(|t| t[11..16].to_owned()).collect::<Vec<_>>();
    assert_eq!(same_day(utc("* * * * *")), ["10:08", "10:09", "10:10", "10:11", "10:12"]);
    assert_eq!(same_day(utc("*/15 * * * *")), ["10:15", "10:30", "10:45", "11:00", "11:15"]);
    assert_eq!(same_day(utc("5/20 10,12 * * *")), ["10:25", "10:45", "12:05", "12:25", "12:45"]);
    assert_eq!(
        utc("30 9 * * mon-fri")[..3],
        ["2026-11-19 09:30 Thu", "2026-11-20 09:30 Fri", "2026-11-23 09:30 Mon"]
    );
    assert_eq!(utc("0 0 1 */6 *")[..2], ["2027-01-01 00:00 Fri", "2027-07-01 00:00 Thu"]);
    assert_eq!(utc("0 0 29 feb *")[..2], ["2028-02-29 00:00 Tue", "2032-02-29 00:00 Sun"]);
    // Either day field is enough when both are restricted; 7 is Sunday too.
    assert_eq!(
        utc("0 0 20 * 7")[..3],
        ["2026-11-20 00:00 Fri", "2026-11-22 00:00 Sun", "2026-11-29 00:00 Sun"]
    );
    assert_eq!(utc("@weekly")[0], "2026-11-22 00:00 Sun");
    assert_eq!(same_day(utc("@hourly"))[..2], ["11:00", "12:00"]);
}

#[test]
fn clocks_that_go_forward_or_back_lose_no_time_and_double_none() {
    // In Berlin 2026-03-29 has no time from 02:00 to 03:00, and 2026-10-25 has it twice.
    let berlin = |expression, from| times(expression, "Europe/Berlin", from);
    assert_eq!(
        berlin("30 2 * * *", "2026-03-27T12:00:00")[..3],
        ["2026-03-28 02:30 Sat", "2026-03-29 03:00 Sun", "2026-03-30 02:30 Mon"]
    );
    assert_eq!(
        berlin("30 2 * * *", "2026-10-24T12:00:00")[..2],
        ["2026-10-25 02:30 Sun", "2026-10-26 02:30 Mon"]
    );
    let halves = |from| {
        let zoned: jiff::Zoned = format!("{from}[Europe/Berlin]").parse().unwrap();
        let mut ms = zoned.timestamp().as_millisecond();
        let timing = cron("*/30 * * * *", "Europe/Berlin");
        (0..8).all(|_| {
            let next = timing.after(ms).unwrap().unwrap();
            let apart = next - ms;
            ms = next;
            apart == 30 * 60_000
        })
    };
    assert!(halves("2026-03-29T00:30:00") && halves("2026-10-25T00:30:00"), "what goes by distance goes on");
    assert_eq!(
        berlin("0 0 * * *", "2026-03-28T12:00:00")[..2],
        ["2026-03-29 00:00 Sun", "2026-03-30 00:00 Mon"]
    );
    // A whole day is missing in Samoa: 2011-12-30.
    assert_eq!(
        times("0 12 * * *", "Pacific/Apia", "2011-12-28T13:00:00")[..3],
        ["2011-12-29 12:00 Thu", "2011-12-31 00:00 Sat", "2011-12-31 12:00 Sat"]
    );
}

#[test]
fn a_schedule_in_a_zone_this_library_does_not_know_is_paused_and_disturbs_nothing() {
    let mut w = World::default();
    w.ok(&make("strange", every(1_000), Missed::Skip));
    w.ok(&make("known", every(1_000), Missed::Skip));
    w.ok(&enqueue("q", [job(1)]));
    let newer = |w: &mut World, schedule: &str| {
        let sql = "UPDATE schedules SET schedule = ?1 WHERE name = 'strange'";
        w.db.connection().execute(sql, [schedule]).unwrap();
        w.db.forget();
    };
    let text: String =
        w.db.connection()
            .query_row("SELECT schedule FROM schedules WHERE name = 'strange'", [], |row| row.get(0))
            .unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["timing"] = serde_json::json!({"cron": {"expression": "* * * * *", "zone": "Mars/Olympus_Mons"}});
    let zone = value.to_string();
    value["timing"] = serde_json::json!({"tide": {"harbour": "Cuxhaven"}});
    for schedule in [zone.clone(), value.to_string()] {
        newer(&mut w, &schedule);
        w.wait(1_000);
        let expected = if schedule == zone { 2 } else { 1 };
        assert_eq!(
            w.claim(claim("q", 9, 1)).len(),
            expected,
            "the claim gets what there is, and what is known fires"
        );
        let due = w.db.next_due_ms(&Queues::Any).unwrap().expect("the known one");
        assert_eq!(due, w.now_ms + 1_000, "nobody wakes for the one that is paused");
        w.db.rewind(w.commit_seq - 1);
        assert!(w.claim(claim("q", 9, 2)).is_empty());
    }
    newer(&mut w, &zone);
    let found = schedules(&mut w);
    let strange = found.iter().find(|s| s.name == "strange").unwrap();
    assert!(strange.paused.as_ref().unwrap().contains("Mars/Olympus_Mons"), "{strange:?}");
    assert_eq!(strange.fired, 0, "and it is not moved, for those who know it");
    assert!(found.iter().all(|s| s.name == "strange" || s.paused.is_none()));
    // Created again, it fires again.
    w.ok(&make("strange", every(1_000), Missed::Skip));
    w.wait(1_000);
    assert_eq!(w.claim(claim("q", 9, 3)).len(), 2);
}
