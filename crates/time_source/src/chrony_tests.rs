//! A chronyd of the test's own answers, rightly and wrongly.

use std::thread::JoinHandle;

use super::*;
use crate::tracking::tests::reply;

fn seconds() -> u64 {
    Moment::now().unwrap().real_ns / 1_000_000_000
}

/// Answers one request with what `answers` makes of its sequence number.
fn responder(answers: impl Fn(u32) -> Vec<Vec<u8>> + Send + 'static) -> (Chrony, JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let thread = std::thread::spawn(move || {
        let mut request = [0; 200];
        let (length, from) = socket.recv_from(&mut request).unwrap();
        let sequence = u32::from_be_bytes(request[8..12].try_into().unwrap());
        assert_eq!(request[..length], tracking::request(sequence));
        for answer in answers(sequence) {
            socket.send_to(&answer, from).unwrap();
        }
    });
    (Chrony::new(ChronyAddress::Udp(address)), thread)
}

/// The outcome of one exchange. The time limit may pass on a busy machine, so that is no failure
/// of the test; `None` then.
fn outcome(
    answers: impl Fn(u32) -> Vec<Vec<u8>> + Send + Clone + 'static,
) -> Result<Tracking, Unknown> {
    let mut last = Err(Unknown::Torn);
    for _ in 0..200 {
        let (source, thread) = responder(answers.clone());
        last = source.exchange();
        thread.join().unwrap();
        if !matches!(last, Err(Unknown::Missing(_))) {
            break;
        }
    }
    last
}

#[test]
fn the_reply_to_the_request_is_taken_and_others_are_skipped() {
    let now = seconds();
    let tracking = outcome(move |sequence| {
        vec![reply(sequence.wrapping_add(1), now).to_vec(), reply(sequence, now).to_vec()]
    });
    assert!(tracking.unwrap().bound_ns.abs_diff(2_500_000) < 10);
}

#[test]
fn unsynchronized_and_torn_replies_are_refused() {
    let unsynchronized = outcome(|sequence| {
        let mut bytes = reply(sequence, 1).to_vec();
        bytes[55] = 3;
        vec![bytes]
    });
    assert_eq!(unsynchronized, Err(Unknown::Unsynchronized));
    let torn = outcome(|sequence| vec![reply(sequence, 1)[..90].to_vec()]);
    assert_eq!(torn, Err(Unknown::Malformed("length of the reply")));
    let long = outcome(|sequence| vec![[&reply(sequence, 1)[..], &[0]].concat()]);
    assert_eq!(long, Err(Unknown::Malformed("length of the reply")));
}

#[test]
fn silence_and_wrong_sequence_numbers_are_no_answer() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut source = Chrony::new(ChronyAddress::Udp(silent.local_addr().unwrap()));
    assert_eq!(source.read(), Err(Unknown::Missing("no answer".to_owned())));
    let (mut source, thread) = responder(|sequence| vec![reply(sequence ^ 1, 1).to_vec(); 40]);
    assert_eq!(source.read(), Err(Unknown::Missing("no answer".to_owned())));
    thread.join().unwrap();
}

#[test]
fn a_stopped_daemon_is_missing() {
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut source = Chrony::new(ChronyAddress::Udp(gone));
    assert!(matches!(source.read(), Err(Unknown::Missing(_))));
    let directory = tempfile::tempdir().unwrap();
    let mut source = Chrony::new(ChronyAddress::Unix(directory.path().join("chronyd.sock")));
    assert!(matches!(source.read(), Err(Unknown::Missing(_))));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn at(real_ns: u64, raw_ns: u64) -> Moment {
    Moment { real_ns: 1_700_000_000_000_000_000 + real_ns, raw_ns, gap_ns: 0 }
}

fn answer() -> Answer {
    let tracking = Tracking { bound_ns: 1_000_000, updated_s: 1_699_999_990 };
    Answer { tracking, asked: at(0, 0), answered: at(100_000, 100_000) }
}

#[test]
fn the_bound_grows_with_age_and_with_corrections() {
    let age = 10_000_000;
    let bound = |ns| Ok(Serves::Bound(ns));
    assert_eq!(answer().serves_at(&at(age, age)), bound(1_000_000 + 5_000));
    // Slewed by 100 us in either direction.
    assert_eq!(answer().serves_at(&at(age + 100_000, age)), bound(1_105_000));
    assert_eq!(answer().serves_at(&at(age - 100_000, age)), bound(1_105_000));
    // A correction during the exchange is not undone by one afterwards.
    let answered = at(300_000, 100_000);
    assert_eq!(Answer { answered, ..answer() }.serves_at(&at(age, age)), bound(1_405_000));
}

#[test]
fn a_step_or_age_voids_an_answer() {
    let age = 10_000_000;
    assert_eq!(answer().serves_at(&at(age + 5_000_000, age)), Ok(Serves::Stepped));
    assert_eq!(answer().serves_at(&at(0, 5_000_000)), Ok(Serves::Stepped));
    assert_eq!(answer().serves_at(&at(26_000_000, 26_000_000)), Ok(Serves::TooOld));
    // After a long time without a reading, what chronyd may have slewed is no step.
    let hour = 3_600_000_000_000;
    assert_eq!(answer().serves_at(&at(hour + hour / 12, hour)), Ok(Serves::TooOld));
    assert_eq!(answer().serves_at(&at(hour + hour / 10, hour)), Ok(Serves::Stepped));
    // The clock was set back before the source was opened.
    let updated = |updated_s| Tracking { updated_s, ..answer().tracking };
    let serves =
        |updated_s| Answer { tracking: updated(updated_s), ..answer() }.serves_at(&at(age, age));
    assert!(serves(1_700_000_001).is_ok());
    assert_eq!(serves(1_700_000_002), Err(Unknown::Stepped));
}

/// Reads the source beside a chronyd that names this update.
fn answered(source: &mut Chrony, updated_s: u64) -> Result<Reading, Unknown> {
    // A busy machine may let the time of an answer pass, so one that did not come is asked for again.
    for _ in 0..200 {
        let (other, thread) = responder(move |sequence| vec![reply(sequence, updated_s).to_vec()]);
        source.address = other.address;
        let reading = source.read();
        // The responder may not have been asked at all.
        if let ChronyAddress::Udp(address) = &source.address {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(&tracking::request(0), address).unwrap();
        }
        thread.join().unwrap();
        if !matches!(reading, Err(Unknown::Missing(_) | Unknown::Slow)) {
            return reading;
        }
    }
    panic!("no answer came in time");
}

/// A source whose last answer named this update. Since then the clock was stepped by 5 s.
fn stepped(updated_s: u64) -> Chrony {
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut source = Chrony::new(ChronyAddress::Udp(gone));
    assert!(answered(&mut source, updated_s).is_ok());
    let last = source.last.as_mut().unwrap();
    last.answered.real_ns -= 5_000_000_000;
    last.asked.real_ns -= 5_000_000_000;
    source
}

/// Another program has stepped the clock by 5 s. chronyd does not know, and states a small bound.
#[test]
fn after_a_step_chronyds_answers_do_not_count_until_its_next_update() {
    let now = seconds();
    let mut source = stepped(now - 100);
    assert_eq!(answered(&mut source, now - 100), Err(Unknown::Stepped));
    assert_eq!(answered(&mut source, now - 100), Err(Unknown::Stepped));
    assert!(answered(&mut source, now).is_ok());
}

/// chronyd has compared the clock after this source's last question, and another program has stepped
/// it after that. The update is new to this source, and yet from before the step.
#[test]
fn an_update_between_the_last_answer_and_the_step_does_not_know_of_the_step() {
    let now = seconds();
    let mut source = stepped(now - 100);
    assert_eq!(answered(&mut source, now - 50), Err(Unknown::Stepped));
    assert_eq!(answered(&mut source, now - 50), Err(Unknown::Stepped));
    assert!(answered(&mut source, now).is_ok());
}

#[test]
fn a_daemon_that_has_lost_its_servers_is_stale() {
    let tracking = Tracking { bound_ns: 1, updated_s: 1_699_990_000 };
    assert_eq!(Answer { tracking, ..answer() }.serves_at(&at(0, 0)), Err(Unknown::Stale(10_000)));
}
