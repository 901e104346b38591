//! Queries: lists with their filters and cursors, counts, ages.

use bucketq::error::Code;
use bucketq::job::{New, Payload, State, When};
use bucketq::op::{Op, Queues};
use bucketq::query::{Answer, Cursor, DetailPage, Filter, Query};
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, grouped, held, id, job, number};

/// 200 ready jobs in `q`, then in `p`: 1001 leased and expired, 1002 leased, 1003 done, 1004 dead, 1005 cancelled,
/// 1006 scheduled, 1007 in a group.
fn busy() -> World {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..200).map(job)));
    w.ok(&enqueue("p", (1001..=1005).map(job)));
    w.claim(bucketq::op::Claim { lease_ms: Some(10), ..claim("p", 1, 1) });
    w.claim(claim("p", 3, 2));
    w.ok(&Op::Ack { held: held(1003, 2), result: None });
    w.ok(&Op::Reject { held: held(1004, 2), error: Some("why".into()) });
    w.ok(&Op::Cancel { id: id(1005), leased: false });
    w.ok(&enqueue("p", [New { when: When::In(500), ..job(1006) }, grouped(1007, "g")]));
    w.wait(10);
    w
}

fn numbers(w: &mut World, filter: &Filter) -> Vec<u32> {
    w.list(filter).into_iter().map(|j| number(j.id)).collect()
}

#[test]
fn an_empty_filter_lists_everything_in_order() {
    let mut w = busy();
    assert_eq!(numbers(&mut w, &Filter::default()), (0..200).chain(1001..1008).collect::<Vec<_>>());
}

#[test]
fn each_filter_lets_its_jobs_through() {
    let mut w = busy();
    let p = || Filter { queue: Some("p".into()), ..Filter::default() };
    assert_eq!(numbers(&mut w, &p()), (1001..1008).collect::<Vec<_>>());
    let by_state = [
        (State::Leased, vec![1001, 1002]),
        (State::Done, vec![1003]),
        (State::Dead, vec![1004]),
        (State::Cancelled, vec![1005]),
        (State::Scheduled, vec![1006]),
        (State::Ready, vec![1007]),
    ];
    for (state, expected) in by_state {
        assert_eq!(numbers(&mut w, &Filter { states: vec![state], ..p() }), expected);
        if state != State::Ready {
            assert_eq!(numbers(&mut w, &Filter { states: vec![state], ..Filter::default() }), expected);
        }
    }
    let several = vec![State::Scheduled, State::Done, State::Leased];
    assert_eq!(numbers(&mut w, &Filter { states: several, ..Filter::default() }), [1001, 1002, 1003, 1006]);
    assert_eq!(numbers(&mut w, &Filter { expired: true, ..Filter::default() }), [1001]);
    assert_eq!(
        numbers(&mut w, &Filter { expired: true, states: vec![State::Done], ..p() }),
        Vec::<u32>::new()
    );
    assert_eq!(numbers(&mut w, &Filter { group: Some("g".into()), ..Filter::default() }), [1007]);
    assert_eq!(numbers(&mut w, &Filter { group: Some("g".into()), expired: true, ..p() }), Vec::<u32>::new());
    assert_eq!(
        numbers(&mut w, &Filter { queue: Some("unknown".into()), ..Filter::default() }),
        Vec::<u32>::new()
    );
    assert_eq!(w.list(&Filter { states: vec![State::Dead], ..p() })[0].last_error.as_deref(), Some("why"));
}

#[test]
fn a_page_ends_where_the_next_one_begins() {
    let mut w = busy();
    let page =
        |w: &mut World, after, limit| match w.query(&Query::List { filter: Filter::default(), after, limit })
        {
            Answer::Page(page) => page,
            other => panic!("{other:?}"),
        };
    let first = page(&mut w, None, 207);
    assert_eq!((first.jobs.len(), first.next), (207, None), "exactly all");
    let first = page(&mut w, None, 206);
    assert_eq!(first.next, Some(Cursor(first.jobs[205].seq)));
    assert_eq!(page(&mut w, first.next, 5).jobs.len(), 1);
    assert!(page(&mut w, Some(Cursor(u64::MAX)), 5).jobs.is_empty());
    for limit in [0, 1001] {
        let query = Query::List { filter: Filter::default(), after: None, limit };
        let at = w.at();
        assert_eq!(w.db.query(&query, &at).unwrap_err().code(), Code::Argument);
    }
}

#[test]
fn a_list_is_followed_from_where_it_ended() {
    let mut w = World::default();
    let list = |w: &mut World, after| {
        let query = Query::List { filter: Filter::default(), after, limit: 10 };
        let Answer::Page(page) = w.query(&query) else { panic!("no page") };
        page
    };
    assert_eq!(list(&mut w, None).last, None);
    w.ok(&enqueue("q", (0..3).map(job)));
    let page = list(&mut w, None);
    assert_eq!((page.jobs.len(), page.next), (3, None));
    assert_eq!(page.last, Some(Cursor(page.jobs[2].seq)));
    assert_eq!(list(&mut w, page.last).last, page.last, "nothing came");
    w.ok(&enqueue("q", [job(7)]));
    assert_eq!(list(&mut w, page.last).jobs[0].id, id(7));
}

#[test]
fn whole_jobs_come_in_pages_of_limited_bytes() {
    let mut w = World::default();
    // Sixteen of them have less than 4 MiB.
    let large = |n| New { payload: Payload::bytes(vec![7; 250_000]), ..job(n) };
    w.ok(&enqueue("q", (0..20).map(large)));
    let mut pages = vec![];
    let mut after = None;
    loop {
        let query = Query::ListWhole { filter: Filter::default(), after, limit: 100 };
        let Answer::Details(DetailPage { jobs, next, last }) = w.query(&query) else { panic!("no page") };
        assert_eq!(last, jobs.last().map(|one| Cursor(one.job.seq)));
        pages.push(jobs.iter().map(|one| number(one.job.id)).collect::<Vec<_>>());
        if next.is_none() {
            break;
        }
        after = next;
    }
    assert_eq!(pages, [(0..16).collect::<Vec<_>>(), (16..20).collect()]);
    let Answer::Jobs(some) = w.query(&Query::GetMany((0..20).map(id).collect())) else { panic!("no jobs") };
    assert_eq!(some.len(), 16, "ask for the rest");
    let Answer::Jobs(some) = w.query(&Query::GetMany(vec![id(99), id(6)])) else { panic!("no jobs") };
    assert_eq!(some.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    let at = w.at();
    let too_many = Query::GetMany((0..1_001).map(id).collect());
    assert_eq!(w.db.query(&too_many, &at).unwrap_err().code(), Code::Argument);
}

#[test]
fn a_queue_shows_its_counts_and_what_time_did() {
    let mut w = busy();
    let p = w.queue("p");
    assert_eq!(
        p.counts.into_iter().collect::<Vec<_>>(),
        [
            (State::Scheduled, 1),
            (State::Ready, 1),
            (State::Leased, 2),
            (State::Done, 1),
            (State::Dead, 1),
            (State::Cancelled, 1)
        ]
    );
    assert_eq!((p.expired, p.due, p.paused), (1, 0, false));
    w.wait(490);
    assert_eq!(w.queue("p").due, 1);
    assert_eq!(w.queue("q").counts[&State::Ready], 200);
}

#[test]
fn stats_tell_the_commit_and_the_pages() {
    let mut w = busy();
    let Answer::Stats(stats) = w.query(&Query::Stats) else { panic!("not stats") };
    assert_eq!((stats.commit_seq, stats.commit_ms), (w.commit_seq, w.now_ms));
    assert_eq!(stats.queues.iter().map(|q| q.name.as_str()).collect::<Vec<_>>(), ["p", "q"]);
    assert!(stats.pages > 20);
    w.ok(&Op::Purge { queue: "q".into(), states: State::ALL.to_vec() });
    let Answer::Stats(after) = w.query(&Query::Stats) else { panic!("not stats") };
    assert!(after.free_pages > stats.free_pages);
}

#[test]
fn the_age_is_that_of_the_job_claimable_longest() {
    let mut w = World::default();
    let age = |w: &mut World| w.queue("q").oldest_ready_ms;
    w.ok(&enqueue(
        "q",
        [
            New { when: When::In(100), priority: 9, ..job(1) },
            New { when: When::At(3), priority: 5, ..job(2) },
        ],
    ));
    w.wait(10);
    assert_eq!(age(&mut w), Some(10), "a time in the past does not make a job older than its enqueue");
    w.ok(&enqueue("q", [New { priority: 1, ..job(3) }]));
    w.claim(claim("q", 1, 1));
    w.wait(10);
    assert_eq!(age(&mut w), Some(20));
    assert_eq!(w.claim_numbers(claim("q", 1, 2)), [2]);
    assert_eq!(age(&mut w), None);
    w.ok(&Op::Release { held: held(3, 1) });
    w.wait(5);
    assert_eq!(age(&mut w), Some(5), "since it came back");
    w.wait(80);
    assert_eq!(w.now_ms, START_MS + 105);
    assert_eq!(age(&mut w), Some(85));
    w.claim(claim("q", 1, 3));
    assert_eq!(age(&mut w), Some(5), "due since a while, though no claim has promoted it");
    w.claim(claim("q", 1, 4));
    assert_eq!(age(&mut w), None);
    w.now_ms = START_MS + 60_100;
    assert_eq!(age(&mut w), Some(80), "an expired lease, since it expired");
}

#[test]
fn a_question_about_an_unknown_job_has_an_answer() {
    assert_eq!(World::default().query(&Query::Get(id(1))), Answer::Job(None));
    assert_eq!(World::default().db.next_due_ms(&Queues::Named(vec!["x".into()])).unwrap(), None);
}

#[test]
fn a_page_ends_early_when_its_headers_are_large() {
    let mut w = World::default();
    let large = |n| New { headers: [("k".into(), "v".repeat(200_000))].into(), ..job(n) };
    w.ok(&enqueue("q", (0..60).map(large)));
    w.ok(&enqueue("other", (100..1600).map(job)));
    for n in 0..60 {
        if n % 3 > 0 {
            w.ok(&Op::Cancel { id: id(n), leased: false });
        }
    }
    for states in [vec![], vec![State::Cancelled, State::Dead], vec![State::Cancelled, State::Ready]] {
        let filter = Filter { queue: Some("q".into()), states: states.clone(), ..Filter::default() };
        let (mut after, mut seen, mut pages) = (None, vec![], 0);
        loop {
            let Answer::Page(page) = w.query(&Query::List { filter: filter.clone(), after, limit: 1000 })
            else {
                panic!("no page");
            };
            assert!(page.jobs.len() <= 44, "{} jobs", page.jobs.len());
            seen.extend(page.jobs.iter().map(|job| job.seq));
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let most = if states.contains(&State::Ready) || states.is_empty() { 60 } else { 40 };
        assert_eq!(seen.len(), most);
        assert!(seen.is_sorted() && pages > 1, "{pages} pages of {states:?}");
    }
}
