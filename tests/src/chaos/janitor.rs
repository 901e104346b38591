//! Maintenance at a frantic pace: collections without grace, checks, exports, settling.

use std::time::Duration;

use bucketq::QueueFile;
use serde_json::json;

use super::{Diary, Dice, Orders};

/// Do maintenance until it is time to rest.
pub(super) async fn work(file: &QueueFile, orders: &Orders, diary: &Diary) {
    let mut dice = Dice::new(orders.seed);
    while !orders.idle.exists() {
        match dice.below(8) {
            0 => {
                let asked = diary.ask("check", json!({}));
                let report = bucketq::check(&orders.url, orders.options.clone()).await;
                if let Some(report) = diary.answer(asked, report, |_| json!({})) {
                    let foreign = report.foreign.is_some_and(|t| t.count > 0);
                    if !report.problems.is_empty() || foreign {
                        let why = format!("a check found {:?} {:?}", report.problems, report.foreign);
                        diary.note("!", json!({ "why": why }));
                    }
                }
            }
            1 => {
                let folder = tempfile::tempdir().expect("a temporary directory can be made");
                let asked = diary.ask("export", json!({}));
                diary.answer(asked, file.export(folder.path().join("image"), false).await, |_| json!({}));
            }
            2 => {
                let asked = diary.ask("settle", json!({}));
                diary.answer(asked, file.settle().await, |_| json!({}));
            }
            _ => {
                let asked = diary.ask("collect", json!({}));
                diary.answer(asked, file.collect(Duration::ZERO).await, |_| json!({}));
            }
        }
        tokio::time::sleep(Duration::from_millis(dice.below(100))).await;
    }
}
