//! The proof of a joining process that it may itself write where the queue file is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bucketq::config::{Credentials, S3Options};
use bucketq::internals::proof::{Credential, Proof, Proven, sign, verify};
use bucketq::store::{StoreUrl, find_store};
use bucketq::{Env, Options};

use crate::kit::{Mounted, Neighbour, STRANGER, directory, is_root, set_mode, temporary};

const ID: &str = "AKIAEXAMPLE";
const SECRET: &str = "wJalrEXAMPLEKEY";

fn key(id: &str, secret: &str) -> Credential {
    Credential::Key { id: id.to_owned(), secret: secret.to_owned() }
}

/// The proof of another process for a nonce of sevens, with these variables in its environment.
fn proven_by(variables: &[(&str, &Path)], url: &str) -> Option<Proof> {
    read(&Neighbour::start(variables).is_told(&format!("prove {url}")))
}

fn read(reply: &str) -> Option<Proof> {
    if reply == "no proof" {
        return None;
    }
    let json = reply.strip_prefix("proof ").unwrap_or_else(|| panic!("{reply}"));
    Some(serde_json::from_str(json).expect("it is a proof"))
}

/// The same proof with one bit of its last part changed.
fn damaged(proof: &Proof, byte: usize) -> Proof {
    let mut proof = proof.clone();
    let (Proof::Directory { mac, .. } | Proof::Key { mac, .. }) = &mut proof;
    mac[byte] ^= 1;
    proof
}

#[test]
fn the_secret_of_the_same_key_is_proof_for_one_nonce() {
    let nonce: [u8; 32] = Env::default().bytes();
    let proof = sign(&key(ID, SECRET), &nonce).expect("a key proves");
    assert_eq!(verify(&key(ID, SECRET), &nonce, &proof), Proven::Valid);
    assert_eq!(verify(&key(ID, "another"), &nonce, &proof), Proven::Invalid);
    assert_eq!(verify(&key("AKIAOTHER", SECRET), &nonce, &proof), Proven::Unknown);
    assert_eq!(verify(&Credential::None, &nonce, &proof), Proven::Unknown);
    assert_eq!(verify(&key(ID, SECRET), &Env::default().bytes(), &proof), Proven::Invalid);
    for byte in 0..32 {
        assert_eq!(verify(&key(ID, SECRET), &nonce, &damaged(&proof, byte)), Proven::Invalid, "byte {byte}");
    }
    assert_eq!(sign(&Credential::None, &nonce), None);
}

#[test]
fn a_proof_of_a_known_nonce_is_the_same_in_every_version() {
    let Some(Proof::Key { id, mac }) = sign(&key(ID, SECRET), &[7; 32]) else { panic!("a key proves") };
    assert_eq!(id, ID);
    let expected = [
        0xef, 0xd1, 0x06, 0x97, 0x21, 0xaf, 0x27, 0x22, 0x1b, 0x1b, 0xd6, 0x7b, 0x92, 0x28, 0xf7, 0xdd, 0x62,
        0x9c, 0x24, 0x04, 0x00, 0x6f, 0x9a, 0x5e, 0x49, 0x8f, 0xee, 0x15, 0xdb, 0x4c, 0x2c, 0x6b,
    ];
    assert_eq!(mac, expected);
}

#[test]
fn a_process_that_may_write_to_the_directory_proves_it_by_any_name() {
    let temp = temporary();
    let (dir, other) =
        (directory(temp.path().join("dir"), 0o700), directory(temp.path().join("other"), 0o700));
    let link = temp.path().join("link");
    symlink(&dir, &link).expect("it can be made");
    let mine = Credential::Directory(dir.clone());
    for name in [&dir, &link] {
        let proof = proven_by(&[], &format!("{}/jobs", name.display())).expect("it may write");
        assert_eq!(verify(&mine, &[7; 32], &proof), Proven::Valid);
        assert_eq!(verify(&mine, &[8; 32], &proof), Proven::Invalid);
        assert_eq!(verify(&mine, &[7; 32], &damaged(&proof, 31)), Proven::Invalid);
        assert_eq!(verify(&Credential::Directory(other.clone()), &[7; 32], &proof), Proven::Unknown);
        assert_eq!(verify(&key(ID, SECRET), &[7; 32], &proof), Proven::Invalid);
        let Proof::Directory { device, inode, mac } = proof else { panic!("it is of a directory") };
        let forged = Proof::Directory { device, inode: inode + 1, mac };
        assert_eq!(verify(&mine, &[7; 32], &forged), Proven::Invalid);
    }
    assert_eq!(proven_by(&[], &format!("{}/missing/jobs", temp.path().display())), None);
    fs::remove_dir(&dir).expect("it is ours");
    let proof = sign(&Credential::Directory(other), &[7; 32]).expect("it is ours");
    assert_eq!(verify(&mine, &[7; 32], &proof), Proven::Unknown, "its own directory is gone");
}

#[test]
fn a_process_that_may_only_read_the_directory_proves_nothing() {
    if !is_root() {
        return;
    }
    let temp = temporary();
    set_mode(temp.path(), 0o755);
    let dir = directory(temp.path().join("dir"), 0o755);
    let mut stranger = Neighbour::start(&[]);
    let order = format!("prove {}/jobs", dir.display());
    assert!(read(&stranger.is_told(&order)).is_some(), "root may write");
    stranger.is_told(&format!("become {STRANGER}"));
    for (mode, may) in [(0o755, false), (0o757, true), (0o756, false), (0o751, false)] {
        set_mode(&dir, mode);
        assert_eq!(read(&stranger.is_told(&order)).is_some(), may, "mode {mode:o}");
    }
}

#[test]
fn a_directory_on_a_read_only_disk_proves_nothing() {
    let temp = temporary();
    let Some(disk) = Mounted::over(temp.path(), "mode=700") else { return };
    let credential = Credential::Directory(temp.path().to_owned());
    assert!(sign(&credential, &[7; 32]).is_some());
    disk.is_only_read();
    assert_eq!(sign(&credential, &[7; 32]), None);
}

#[tokio::test]
async fn the_credential_of_a_queue_file_is_that_of_its_store() {
    let temp = temporary();
    let text = format!("{}/./jobs", temp.path().display());
    let url = |text: &str| StoreUrl::parse(text).expect("it is right");
    let given = Credentials {
        access_key: ID.to_owned(),
        secret_key: SECRET.to_owned(),
        session_token: Some("TOKEN".to_owned()),
    };
    let options =
        Options { s3: S3Options { credentials: Some(given), ..S3Options::default() }, ..Options::default() };
    let real = temp.path().canonicalize().expect("it is there");
    for (text, expected) in [
        (text.as_str(), Credential::Directory(real)),
        ("memory://jobs", Credential::None),
        ("s3://acme/jobs", key(ID, SECRET)),
    ] {
        let found = find_store(&url(text), &options).await.expect("there are credentials");
        assert_eq!(Credential::of(&found), expected);
    }
}

#[test]
fn a_key_comes_from_the_environment_or_from_a_profile_as_for_requests() {
    let nonce = [7; 32];
    let (id, secret) = (("AWS_ACCESS_KEY_ID", Path::new(ID)), ("AWS_SECRET_ACCESS_KEY", Path::new(SECRET)));
    let token = ("AWS_SESSION_TOKEN", Path::new("TOKEN"));
    let metadata = ("AWS_EC2_METADATA_DISABLED", Path::new("true"));
    for variables in [&[id, secret, metadata][..], &[id, secret, token, metadata]] {
        let proof = proven_by(variables, "s3://acme/jobs").expect("there is a key");
        assert_eq!(verify(&key(ID, SECRET), &nonce, &proof), Proven::Valid);
    }

    let temp = temporary();
    let file = temp.path().join("credentials");
    let text = format!("[work]\naws_access_key_id = {ID}\naws_secret_access_key = {SECRET}\n");
    fs::write(&file, text).expect("it can be written");
    let profile =
        [("AWS_SHARED_CREDENTIALS_FILE", file.as_path()), ("AWS_PROFILE", Path::new("work")), metadata];
    let proof = proven_by(&profile, "s3://acme/jobs").expect("there is a key");
    assert_eq!(verify(&key(ID, SECRET), &nonce, &proof), Proven::Valid);

    assert_eq!(proven_by(&[metadata], "s3://acme/jobs"), None, "there is no key");
}

#[test]
fn a_proof_crosses_the_link_whole_and_shows_neither_key_nor_secret() {
    let temp = temporary();
    for credential in [key(ID, SECRET), Credential::Directory(temp.path().to_owned())] {
        let proof = sign(&credential, &[7; 32]).expect("it proves");
        let bytes = rmp_serde::to_vec_named(&proof).expect("it can be written");
        assert_eq!(rmp_serde::from_slice::<Proof>(&bytes).expect("it can be read"), proof);
        assert!(bytes.len() < 200, "{} bytes", bytes.len());
        assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()));
        let shown = format!("{credential:?} {proof:?}");
        assert!(!shown.contains("AKIA") && !shown.contains(SECRET), "{shown}");
    }
}
