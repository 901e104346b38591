//! `host`: one of the processes of a machine, for `tests/host`. It carries out the orders on its standard input, one a
//! line, and writes a line for each.
//!
//! | order | reply |
//! |---|---|
//! | `become UID` | `done`: it runs as this user from now on |
//! | `find DIR PLACE` | `found SOCKET`, the path of the socket of seat 0; `-` as DIR is no directory |
//! | `take SEAT` | `taken`, or `busy` |
//! | `bind SEAT` | `done`: it has bound the socket of the seat |
//! | `look SEAT` | `held`, or `free` |
//! | `leave` | `done`: it has left all its seats |
//! | `fork` | `forked PID`, after the child has left its copies of the seats; the child lives until it is killed |
//! | `prove URL` | `proof JSON` for a nonce of sevens, or `no proof` |
//! | `place URL` | `place TEXT`: processes with the same text meet |
//!
//! Every reply can be `cannot REASON` instead. `host peer` is a process with an open queue file and has other orders: see
//! `bucketq_tests::peer`.

#[cfg(not(unix))]
fn main() {}

#[cfg(unix)]
fn main() {
    use std::io::{BufRead, Write};
    if std::env::args().nth(1).as_deref() == Some("peer") {
        return bucketq_tests::peer::play();
    }
    let mut process = orders::Process::default();
    for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
        let reply = process.obey(&line).unwrap_or_else(|reason| format!("cannot {reason}"));
        // A test that has failed no longer reads.
        let _ = writeln!(std::io::stdout(), "{reply}");
    }
}

#[cfg(unix)]
mod orders {
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use bucketq::Options;
    use bucketq::internals::place::{MeetingPlace, Seat};
    use bucketq::internals::proof::{Credential, sign};
    use bucketq::store::{FoundStore, StoreUrl, find_store};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

    /// The seats it has, each with its socket once that is bound.
    #[derive(Default)]
    pub struct Process {
        place: Option<MeetingPlace>,
        seats: Vec<(Seat, Option<UnixListener>)>,
    }

    impl Process {
        pub fn obey(&mut self, order: &str) -> Result<String, String> {
            let words: Vec<&str> = order.split(' ').collect();
            match words[..] {
                ["become", uid] => {
                    become_user(number(uid)?).map_err(|e| e.to_string())?;
                    Ok("done".to_owned())
                }
                ["find", dir, place] => {
                    let dir = (dir != "-").then(|| Path::new(dir));
                    let found = MeetingPlace::find(dir, place).map_err(|e| e.to_string())?;
                    let reply = format!("found {}", found.socket(0).display());
                    self.place = Some(found);
                    Ok(reply)
                }
                ["take", seat] => {
                    let seat = self.place()?.take(number(seat)?).map_err(|e| e.to_string())?;
                    let reply = if seat.is_some() { "taken" } else { "busy" };
                    self.seats.extend(seat.map(|seat| (seat, None)));
                    Ok(reply.to_owned())
                }
                ["bind", seat] => {
                    let seat: u8 = number(seat)?;
                    let mine = self.seats.iter_mut().find(|(mine, _)| mine.number() == seat);
                    let (mine, socket) = mine.ok_or("it has no such seat")?;
                    *socket = Some(UnixListener::bind(mine.socket()).map_err(|e| e.to_string())?);
                    Ok("done".to_owned())
                }
                ["look", seat] => {
                    let is_taken = self.place()?.is_taken(number(seat)?).map_err(|e| e.to_string())?;
                    Ok(if is_taken { "held" } else { "free" }.to_owned())
                }
                ["leave"] => {
                    self.seats.clear();
                    Ok("done".to_owned())
                }
                ["fork"] => self.fork().map_err(|e| e.to_string()),
                ["prove", url] => prove(url),
                ["place", url] => store_of(url).map(|found| format!("place {}", found.place())),
                _ => Err(format!("do: {order}")),
            }
        }

        fn place(&self) -> Result<&MeetingPlace, String> {
            self.place.as_ref().ok_or_else(|| "do that before it has found the place".to_owned())
        }

        fn fork(&mut self) -> std::io::Result<String> {
            let child = bucketq_tests::peer::fork_and_park(|| self.seats.clear())?;
            Ok(format!("forked {child}"))
        }
    }

    fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
        text.parse().map_err(|_| format!("read the number {text}"))
    }

    /// Leaves every right of another user. This process has one thread.
    fn become_user(id: u32) -> std::io::Result<()> {
        use rustix::process::{Gid, Uid};
        let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
        Ok(())
    }

    fn store_of(url: &str) -> Result<FoundStore, String> {
        let url = StoreUrl::parse(url).map_err(|e| e.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| e.to_string())?;
        runtime.block_on(find_store(&url, &Options::default())).map_err(|e| e.to_string())
    }

    fn prove(url: &str) -> Result<String, String> {
        let credential = store_of(url).map_or(Credential::None, |found| Credential::of(&found));
        let Some(proof) = sign(&credential, &[7; 32]) else { return Ok("no proof".to_owned()) };
        Ok(format!("proof {}", serde_json::to_string(&proof).map_err(|e| e.to_string())?))
    }
}
