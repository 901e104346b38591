//! A gate in front of a real server: it lets everything through until it is shut, and then drops every byte. It still
//! accepts connections but never replies, like a server behind a firewall that drops packets.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The gate, open at first.
#[derive(Debug)]
pub struct Gate {
    /// Its address.
    pub endpoint: String,
    shut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Gate {
    /// Start one in front of this host and port.
    pub async fn before(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let endpoint = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let shut = watch::Sender::new(false);
        let (address, watched) = (address.to_owned(), shut.subscribe());
        let task = tokio::spawn(async move {
            while let Ok((here, _)) = listener.accept().await {
                tokio::spawn(pass(here, address.clone(), watched.clone()));
            }
        });
        Self { endpoint, shut, task }
    }

    /// Lets nothing through from now on, or everything again.
    pub fn shut(&self, shut: bool) {
        self.shut.send_replace(shut);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(mut here: TcpStream, address: String, mut shut: watch::Receiver<bool>) {
    let Ok(mut there) = TcpStream::connect(&address).await else { return };
    let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        if *shut.borrow_and_update() {
            // Bytes on their way are lost: when the gate opens, a client needs another connection.
            let _ = shut.wait_for(|shut| !shut).await;
            return;
        }
        let moved = tokio::select! {
            biased;
            _ = shut.changed() => continue,
            read = here.read(&mut up) => match read {
                Ok(n) if n > 0 => there.write_all(&up[..n]).await,
                _ => return,
            },
            read = there.read(&mut down) => match read {
                Ok(n) if n > 0 => here.write_all(&down[..n]).await,
                _ => return,
            },
        };
        if moved.is_err() {
            return;
        }
    }
}
